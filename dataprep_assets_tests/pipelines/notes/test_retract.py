"""Patients removed from notes: only their months are rebuilt, no trace of them remains, and no id appears anywhere."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from dataprep_assets.engine.lock.drift import find_content_drift, find_recipe_drift
from dataprep_assets.engine.lock.lock import lock_dataset
from dataprep_assets.engine.staleness.status import find_retracted_leftovers, find_stale, prune_retracted
from dataprep_assets.engine.trace.retraction import RetractionResult
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt, read_receipt
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import packed_cohorts
from dataprep_assets.pipelines.notes.component import CombinedCohorts, PackedCohorts
from dataprep_assets.pipelines.notes.dataset import notes_engine, notes_specs
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.patient_key import digest_key
from dataprep_assets.pipelines.notes.reading import digest_patient
from dataprep_assets.pipelines.notes.replay.replay import build_replay
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets.pipelines.notes.retract import retract_patients
from dataprep_assets.stream.engine_certificate import ensure_certificate
from dataprep_assets.tokenization.certificate import CLASSES
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.engine.found import run_checks
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.pipeline import Outcome, products, receipts
from dataprep_assets_tests.pipelines.corpus.shards import reference_ids
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.packed_months import failed, prove_cohort
from dataprep_assets_tests.pipelines.notes.pipeline import KEY, SAMPLE, run_notes
from dataprep_assets_tests.project import cloned_project
from dataprep_assets_tests.samples import SAMPLE as CORPUS

MONTHS = ("2010-01", "2010-02", "2010-03")
WORDS = ["kettle", "goat", "lantern", "teapot", "snow", "kite", "walk", "pie"]
HEADER = {
    "cohorts": {"fields": {"note": {"colour": "colour"}}},
    "template": {"header": "{colour}\n", "defaults": {"colour": "none"}},
}


def text(number: int) -> str:
    """Return a unique note that is shorter than a row."""
    return f"Visit {number}: " + " ".join(WORDS[(number * 5 + i * i) % 8] for i in range(12))


class Ward:
    """Eight patients per month with two notes each and their own ids: `P-2010-01-0`."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.people = {
            month: [patient(f"P-{month}-{at}", *(note(one) for one in self.texts(month, at))) for at in range(8)]
            for month in MONTHS
        }
        self.list, self.changes, self.months = folder / "retracted.jsonl", changes, MONTHS
        self.root = folder / "out"
        self.store = LocalArtifacts(self.root)

    @staticmethod
    def texts(month: str, at: int) -> list[str]:
        number = 1000 * int(month[-2:]) + 10 * at
        return [text(number), text(number + 1)]

    @property
    def notes(self) -> NotesDeclaration:
        base: dict[str, Any] = {
            "row_length": 64,
            "splits": {"train": 0.6, "val": 0.4},
            "retractions": self.list,
            "formats": ["tfrecord"],
        }
        return plain(written(self.folder / "in", self.people), self.months, **(base | self.changes))

    def run(self, root: Path | None = None) -> Outcome:
        outcome = run_notes(self.notes, root or self.root)
        assert not outcome.failed, outcome.failed
        return outcome

    def retract(self, *lines: str) -> RetractionResult:
        ids = self.folder / "ids"
        ids.write_text("".join(line + "\n" for line in lines))
        return retract_patients(self.notes, self.store, ids)

    def reasons(self) -> dict[str, str]:
        return {one.name.partition("/")[2]: one.reason for one in find_stale(notes_specs(self.notes), self.store)}

    def failed(self, month: str) -> dict[str, str]:
        (cohort,) = packed_cohorts(self.notes, self.store, [month])
        return failed(prove_cohort(cohort))

    def receipt(self, month: str) -> Receipt:
        found = read_receipt(self.store.directory(self.notes.artifact("packed_cohorts", month)))
        assert found is not None
        return found

    def equals_a_build_from_scratch(self) -> None:
        scratch = self.folder / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        self.run(scratch)
        assert products(scratch) == products(self.root)
        assert receipts(scratch) == receipts(self.root)
        assert self.reasons() == {}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ward")
    Ward(folder).run()
    return folder


@pytest.fixture
def ward(built: Path, tmp_path: Path) -> Ward:
    shutil.copytree(built, tmp_path / "ward")
    return Ward(tmp_path / "ward")


def varint(number: int) -> bytes:
    """Return a number as a TFRecord's packed list contains it."""
    low, number = number & 127, number >> 7
    return bytes([low | 128]) + varint(number) if number else bytes([low])


def traces(root: Path, texts: list[str]) -> list[str]:
    """Return every file below a root that contains the tokens of one of these texts in any form, by a scan of its
    bytes.
    """
    wanted: list[bytes] = []
    for one in texts:
        ids = reference_ids([one])[0]
        wanted += [
            np.array(ids, "<i4").tobytes(),
            b"".join(map(varint, ids)),
            ",".join(map(str, ids)).encode(),
            one.encode(),
        ]
    return [
        path.relative_to(root).as_posix()
        for path in sorted(root.rglob("*"))
        if path.is_file() and any(one in contents(path) for one in wanted)
    ]


def contents(path: Path) -> bytes:
    """Return the bytes of a file, or for packed rows, which are compressed, their ids."""
    if path.suffix != ".parquet":
        return path.read_bytes()
    return pq.read_table(path).column("input_ids").combine_chunks().flatten().to_numpy().tobytes()


def test_only_the_months_of_removed_patients_are_rebuilt_and_no_trace_remains(ward: Ward) -> None:
    before, kept_receipts = products(ward.root), receipts(ward.root)
    gone = ward.texts("2010-01", 3) + ward.texts("2010-03", 0) + ward.texts("2010-03", 5)
    kinds = {Path(name).suffix for name in traces(ward.root, gone)}
    assert {".parquet", ".jsonl", ".tfrecords"} <= kinds
    assert any("tfds_directory" in name for name in traces(ward.root, gone))
    found = ward.retract("P-2010-01-3", '{"patient": "P-2010-03-0"}', "P-2010-03-5", "", "P-nobody")
    assert (found.given, found.found, found.already, found.added) == (4, 3, 0, 4)
    assert [line.line for line in found.not_found] == [5]
    assert [(held.partition, held.counts) for held in found.held] == [("2010-01", (1,)), ("2010-03", (2,))]
    reasons = ward.reasons()
    assert reasons["packed_cohorts/2010-03"].startswith("retracted was not set, now 2 patients (")
    assert {name for name in reasons if "packed" in name} == {"packed_cohorts/2010-01", "packed_cohorts/2010-03"}
    assert set(ward.failed("2010-01")) >= {"no_retracted_document"}, "until it is rebuilt"
    assert_names(ward.failed("2010-01")["no_retracted_document"], "1 retracted patient")
    outcome = ward.run()
    assert outcome.built == [
        "packed_cohorts/2010-01",
        "packed_cohorts/2010-03",
        "tfrecord_shards/2010-01",
        "tfrecord_shards/2010-03",
        "tfds_directory",
    ]
    assert traces(ward.root, gone) == []
    assert traces(ward.root, ward.texts("2010-03", 1)) != []
    assert [ward.failed(month) for month in MONTHS] == [{}, {}, {}]
    ledger = ward.receipt("2010-03").ledger
    assert ledger is not None
    assert (ledger.dropped, ledger.documents, ledger.rows_in) == ({"retracted": 4}, 12, 16)
    assert ward.receipt("2010-03").facts["patients"] == 6
    now, now_receipts = products(ward.root), receipts(ward.root)
    for artifact in ("packed_cohorts/2010-02", "tfrecord_shards/2010-02", "engine_certificate"):
        assert {n: d for n, d in now.items() if artifact in n} == {n: d for n, d in before.items() if artifact in n}
        assert now_receipts[f"notes/{artifact}"] == kept_receipts[f"notes/{artifact}"]
    assert ward.run().built == []
    ward.equals_a_build_from_scratch()


@pytest.mark.parametrize(
    "changes",
    [
        {"layout": "unpacked"},
        {"packing": {"algorithm": "concat_then_split"}},
        {"row_length": 16, "long_notes": {"rule": "repeat_header", "overlap": 2}, **HEADER},
        {"row_length": 16, "cohorts": HEADER["cohorts"], "template": {**HEADER["template"], "encode": "together"}},
        {"row_length": 16, "long_notes": {"rule": "truncate"}},
        {"tokenizer": {"path": CORPUS / "tokenizer", "engine": "fastokens", "refuse": CLASSES}},
    ],
    ids=["unpacked", "one_stream", "cut", "encoded_together", "truncated", "by_the_reference"],
)
def test_the_check_recognizes_notes_in_every_layout_of_rows(changes: dict[str, Any], tmp_path: Path) -> None:
    ward = Ward(tmp_path, **changes)
    ward.run()
    month = "2010-02"
    with_it = shutil.copytree(ward.store.directory(ward.notes.artifact("packed_cohorts", month)), tmp_path / "with_it")
    ward.retract(*(f"P-{month}-{at}" for at in range(4)))
    ward.run()
    assert ward.failed(month) == {}
    ward.equals_a_build_from_scratch()
    # Restore the rows with the removed tokens, although the lists of digests no longer contain these patients.
    for rows in with_it.glob("*/*.parquet"):
        shutil.copyfile(
            rows, ward.store.directory(ward.notes.artifact("packed_cohorts", month)) / rows.parent.name / rows.name
        )
    assert_names(ward.failed(month)["no_retracted_document"], "retracted")


def test_an_equal_note_of_another_patient_stays_and_is_no_defect(tmp_path: Path) -> None:
    ward = Ward(tmp_path, splits={"train": 1.0})
    same = "Came for the yearly walk, is well, comes again in a year. " + text(1)
    for at in (0, 1):
        ward.people["2010-01"][at]["notes"].append(note(same))
    ward.run()
    ward.retract("P-2010-01-0")
    ward.run()
    assert traces(ward.root, [same]) != []
    assert ward.failed("2010-01") == {}
    ward.retract("P-2010-01-1")
    ward.run()
    assert traces(ward.root, [same]) == []


def test_a_month_from_which_all_patients_are_removed_is_empty_and_valid(ward: Ward) -> None:
    assert ward.retract(*(f"P-2010-02-{at}" for at in range(8))).held[0].counts == (8,)
    ward.run()
    assert ward.failed("2010-02") == {}
    facts = ward.receipt("2010-02").facts
    assert [split["rows"] for split in facts["splits"].values()] == [0, 0]
    spec = next(spec for spec in notes_specs(ward.notes) if spec.name == "tfds_directory")
    assert run_checks(spec, ward.store)["matches_cohort_shards"].passed
    assert traces(ward.root, [one for at in range(8) for one in ward.texts("2010-02", at)]) == []
    ward.equals_a_build_from_scratch()


def test_repeated_retractions_are_reported_and_patients_taken_off_the_list_return(ward: Ward) -> None:
    before = products(ward.root)
    ward.retract("P-2010-01-3")
    ward.run()
    listed = ward.list.read_bytes()
    again = ward.retract("P-2010-01-3")
    assert (again.found, again.already, again.added, again.not_found) == (0, 1, 0, ())
    assert ward.list.read_bytes() == listed
    ward.list.unlink()
    assert set(ward.failed("2010-01")) >= {"note_counts_match", "no_retracted_document"}
    ward.run()
    assert products(ward.root) == before


def test_a_listed_patient_without_notes_is_left_out_when_notes_arrive(ward: Ward) -> None:
    assert ward.retract("P-later").found == 0
    assert ward.run().built == []
    ward.people["2010-02"].append(patient("P-later", note(text(7777))))
    ward.people["2010-02"].append(patient("P-too", note(text(8888))))
    ward.run()
    assert traces(ward.root, [text(7777)]) == []
    assert traces(ward.root, [text(8888)]) != []
    assert ward.failed("2010-02") == {}
    ward.equals_a_build_from_scratch()


def test_notes_that_fit_no_row_are_dropped_for_that_reason_for_any_patient(tmp_path: Path) -> None:
    ward = Ward(tmp_path, bad_records={"policy": "drop", "budget": 0.9}, **HEADER)
    long = "kettle and teapot " * 40
    month = "2010-01"
    ward.people[month] += [
        # This note was never in a row, because its header is too long.
        patient("P-header", note(text(5001), colour=long)),
        patient("P-both", note(text(5002), colour=long), note(text(5003)), note(" "), note(None)),
        patient("P-none"),
    ]
    ward.run()
    assert ward.retract("P-header", "P-none").held == ()
    assert ward.run().built == [], "nothing of theirs was there"
    assert ward.failed(month) == {}
    ward.equals_a_build_from_scratch()
    assert ward.retract("P-both").found == 1
    ward.run()
    ledger = ward.receipt(month).ledger
    assert ledger is not None
    assert ledger.dropped == {"empty_note": 1, "header_too_long": 2, "null_text": 1, "retracted": 1}
    assert ward.failed(month) == {}
    ward.equals_a_build_from_scratch()


def test_records_that_are_single_notes_are_removed_by_patient(tmp_path: Path) -> None:
    ward = Ward(
        tmp_path,
        cohorts={"format": "jsonl", "pattern": r"(?P<year>\d{4})-(?P<month>\d{2})\.json", "fields": {"notes": None}},
    )
    lines = [{"patient_id": number % 4, "text": text(number), "date": "2011-01-01"} for number in range(12)]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    ward.people = dict.fromkeys(MONTHS[:1], content) | {m: content.replace(b'_id": ', b'_id": 9') for m in MONTHS[1:2]}
    ward.people[MONTHS[2]] = content.replace(b'_id": ', b'_id": 8')
    ward.run()
    assert ward.retract('{"patient": 2}').found == 1
    ward.run()
    assert traces(ward.store.directory(ward.notes.artifact("packed_cohorts", MONTHS[0])), [text(2), text(6)]) == []
    assert [ward.failed(month) for month in MONTHS] == [{}, {}, {}]
    ward.equals_a_build_from_scratch()


def test_a_mixture_with_removed_patients_is_stale_until_it_is_rebuilt(ward: Ward, tmp_path: Path) -> None:
    other = plain(SAMPLE, ("2010-11", "2010-12"), dataset="finetune", row_length=64, splits=ward.notes.splits)
    assert not run_notes(other, ward.root).failed
    replay = MixtureDeclaration.model_validate(
        {"dataset": "both", "sources": [{"dataset": "notes"}, {"dataset": "finetune"}], "splits": ["train", "val"]}
    )
    gone = [one for at in range(4) for one in ward.texts("2010-01", at)]
    build_replay(replay, ward.store)
    assert traces(ward.root / "both", gone) != []
    ward.retract(*(f"P-2010-01-{at}" for at in range(4)))
    ward.run()
    found = {one.name: one.reason for one in find_stale(CombinedCohorts(replay).specs, ward.store)}
    assert found["both/tfds_directory"] == "its input changed: notes:tfds_directory"
    build_replay(replay, ward.store)
    assert traces(ward.root / "both", gone) == []


def test_a_fresh_machine_builds_the_locked_version_of_a_retracted_dataset(ward: Ward) -> None:
    ward.retract("P-2010-01-3")
    ward.run()
    specs = notes_specs(ward.notes)
    lock, fresh = lock_dataset(specs, ward.store), LocalArtifacts(ward.folder / "fresh")
    ensure_certificate(notes_engine(ward.notes), fresh)
    assert list(find_recipe_drift(specs, fresh, lock)) == [], "to whom the list applies is not known yet"
    ward.run(fresh.root)
    assert list(find_content_drift(specs, fresh, lock)) == []
    ward.retract("P-2010-01-4")
    told = [drift.name for drift in find_recipe_drift(specs, fresh, lock)]
    assert told == ["packed_cohorts/2010-01"]


FORMS = ('{"patient": …}', "month:record:note", "month:record")


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("", ("ids",)),
        ("\n \n", ("ids",)),
        (
            'a\n{"patient": 1.5}\n',
            ("line 2", *FORMS),
        ),
        (
            '{"patient": ""}\n',
            ("line 1", *FORMS),
        ),
        (
            '{"patient": true}\n',
            ("line 1", *FORMS),
        ),
        (
            '{"id": "SECRET"}\n',
            ("line 1", *FORMS),
        ),
        (
            'a\nb\n{"patient": "SECRET\n',
            ("line 3", *FORMS),
        ),
        (
            '{"patient": "SECRET\\ud800"}\n',
            ("line 1", *FORMS),
        ),
        (
            "[" * 3 + '"SECRET"\n{' + '"SECRET":{' * 100_000 + "\n",
            ("line 2", *FORMS),
        ),
    ],
)
def test_an_empty_or_malformed_list_of_ids_names_the_line_and_quotes_nothing(
    ward: Ward, content: str, values: tuple[str, ...]
) -> None:
    ids = ward.folder / "ids"
    ids.write_text(content)
    with raises(ConfigError, ids, *values) as raised:
        retract_patients(ward.notes, ward.store, ids)
    assert "SECRET" not in f"{raised.value} {raised.value.__cause__} {raised.value.__context__}"
    assert not ward.list.exists()


def test_an_invalid_retraction_list_names_the_line_and_quotes_nothing(ward: Ward) -> None:
    ward.retract("P-2010-01-3")
    good = ward.list.read_text()
    assert json.loads(good) == {
        "patient": digest_patient(KEY.encode(), "P-2010-01-3").hex(),
        "key": digest_key(KEY.encode()),
    }
    for wrong in (
        "SECRET",
        '{"patient": "SECRET"}',
        '{"patient": "00"}',
        '["SECRET"]',
        '{"hash": "SECRET", "of": "text"}',
    ):
        ward.list.write_text(f"{good}\n{wrong}\n")
        with raises(ConfigError, 3) as raised:
            ward.run()
        assert "SECRET" not in f"{raised.value} {raised.value.__cause__}"
    ward.list.write_text(good.replace(digest_key(KEY.encode()), "0" * 16))
    with raises(ConfigError, 1, "key"):
        ward.run()


def test_a_dataset_without_own_patients_names_where_to_retract(ward: Ward) -> None:
    replay = MixtureDeclaration.model_validate({"dataset": "both", "sources": [{"dataset": "notes"}]})
    with raises(ConfigError, "both", "CombinedCohorts"):
        CombinedCohorts(replay).retract(ward.store, ward.folder / "ids")
    (ward.folder / "ids").write_text("P-2010-01-1\n")
    assert PackedCohorts(ward.notes).retract(ward.store, ward.folder / "ids").found == 1


CANARY = "CANARY"


@pytest.mark.slow
def test_no_output_or_file_of_a_sensitive_dataset_names_a_patient(tmp_path: Path) -> None:
    clone = cloned_project(tmp_path / "project")
    folder, work = clone / "dataprep_assets" / "defs" / "ward", tmp_path / "work"
    for other in folder.parent.iterdir():
        if other.is_dir():
            shutil.rmtree(other)
    people = [patient(f"{CANARY}-id-{at}", note(f"{CANARY} {text(at)}")) for at in range(6)]
    written(folder / "data", {"2010-01": people, "2010-02": [patient(f"{CANARY}-other", note(text(99)))]})
    attributes = {
        "dataset": "ward",
        "source": {"kind": "local", "path": "./data"},
        "months": {"first": "2010-01", "last": "2010-02"},
        "tokenizer": {"path": str(CORPUS / "tokenizer"), "engine": "tokenizers"},
        "document": {"separator": "<|endoftext|>"},
        "pad": {"token": "<|pad|>"},
        "patient_key": {"env": "NOTES_KEY"},
        "row_length": 64,
        "workers": 1,
        "accept": {"readable_by_tfds": "TensorFlow has a test of its own"},
    }
    declared = {"type": "dataprep_assets.components.PackedCohorts", "attributes": attributes}
    (folder / "defs.yaml").write_text(yaml.safe_dump(declared))
    key = f"{CANARY}-key-{'0' * 32}"
    ids = tmp_path / "ids"
    ids.write_text(f"{CANARY}-id-3\n{CANARY}-nobody\n")

    def said(*arguments: str, code: int = 0) -> str:
        done = dataprep(work, *arguments, project=clone, NOTES_KEY=key)
        assert done.returncode == code, done.stdout + done.stderr
        assert CANARY not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    said("run", "ward")
    said("lock", "ward", "--output", str(tmp_path / "before.lock"))
    shutil.copytree(work / "artifacts", tmp_path / "before")
    told = said("retract", "ward", "--ids", str(ids))
    assert "ward: entries found. Run `dataprep show --private ward`\n" in told
    assert f"  {'2010-01':<20}{'< 11 patients':>20}\n" in told
    assert_names(told, "line 2")
    assert_names(told, folder / "retracted.jsonl", "`dataprep run ward`")
    told = said("status", "ward", "--json", code=1)
    (first, *_) = (one for one in json.loads(told)["rebuild"] if one["artifact"] == "packed_cohorts")
    assert first["reason"] == first["kind"]
    assert first["tokens"] % 10 == 0
    told = said("run", "ward", "--lock", str(tmp_path / "before.lock"), code=1)
    assert "drift: packed_cohorts/2010-01" in told
    assert "patients" not in told
    said("run", "ward")
    told = said("verify", str(work / "artifacts"), "--lock", str(tmp_path / "before.lock"), code=1)
    assert not re.search(r"\b[1-9] patients", told), told
    for told in (
        said("diff", str(tmp_path / "before.lock"), str(work / "artifacts"), "--dataset", "ward", code=1),
        said("diff", str(tmp_path / "before.lock"), str(work / "artifacts"), "--dataset", "ward", "--json", code=1),
    ):
        assert "< 11" in told
        assert not re.search(r"\b[1-9] (patients|documents|notes)|documents\": [1-9]\d*[,}]", told), told
    folders = [str(tmp_path / "before"), str(work / "artifacts")]
    declaration = (folder / "defs.yaml").read_text()
    for text_of_yaml in ("type: [", None):  # the declaration is first invalid, and then missing
        (folder / "defs.yaml").unlink() if text_of_yaml is None else (folder / "defs.yaml").write_text(text_of_yaml)
        told = said("diff", *folders, "--dataset", "ward", code=1)
        assert "< 11" in told
        assert not re.search(r"\b[1-9] (patients|documents|notes)", told), told
    (folder / "defs.yaml").write_text(declaration)
    assert '"retracted":1' in (work / "artifacts/ward/packed_cohorts/2010-01/receipt.json").read_text().replace(" ", "")
    ids.write_text(f'{{"patient": ["{CANARY}"]}}\n')
    assert_names(said("retract", "ward", "--ids", str(ids), code=2), "line 1", *FORMS)
    shutil.rmtree(folder / "data")
    ids.unlink()
    digests = [digest_patient(key.encode(), f"{CANARY}-id-3").hex().encode()]
    for path in [*work.rglob("*"), *clone.rglob("*.jsonl")]:
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path
            assert path.name == "retracted.jsonl" or digests[0] not in path.read_bytes(), path
    assert traces(work, [f"{CANARY} {text(3)}"]) == []


def test_a_month_that_is_no_longer_declared_is_also_searched_and_removed(ward: Ward) -> None:
    ward.months = MONTHS[:2]
    ward.run()
    specs = notes_specs(ward.notes)
    assert find_retracted_leftovers(specs, ward.store) == []
    found = ward.retract("P-2010-03-0")
    assert [(held.partition, held.planned) for held in found.held] == [("2010-03", False)]
    left = [ward.notes.artifact(name, "2010-03") for name in ("tfrecord_shards", "packed_cohorts")]
    assert find_retracted_leftovers(specs, ward.store) == left
    assert list(prune_retracted(specs, ward.store)) == [(one, True) for one in left]
    assert traces(ward.root, ward.texts("2010-03", 0)) == []


def test_shards_of_an_undeclared_format_are_removed_with_their_notes(ward: Ward) -> None:
    pytest.importorskip("array_record")
    ward.changes["formats"] = ["array_record"]
    ward.retract("P-2010-03-0")
    ward.run()
    specs = notes_specs(ward.notes)
    left = {str(one).partition("/")[2] for one in find_retracted_leftovers(specs, ward.store)}
    assert left >= {"tfrecord_shards/2010-03"}, "its cohort was rebuilt without the patient, it was not"
    assert not left & {"tfrecord_shards/2010-01", "tfrecord_shards/2010-02"}
    assert all(gone for _, gone in prune_retracted(specs, ward.store))
    assert traces(ward.root, ward.texts("2010-03", 0)) == []


def test_strict_writes_nothing_when_a_patient_is_not_found(ward: Ward) -> None:
    (ward.folder / "ids").write_text("P-2010-01-3\nP-nobody\n")
    found = retract_patients(ward.notes, ward.store, ward.folder / "ids", strict=True)
    assert (found.added, [one.line for one in found.not_found], ward.list.exists()) == (0, [2], False)


def of_note(ward: Ward, month: str, at: int, number: int) -> str:
    """Return a note of the ward as `dataprep trace` names it, with its text."""
    return ward.people[month][at]["notes"][number - 1]["text"]


def test_a_note_is_removed_by_its_trace_name_and_its_patient_stays(ward: Ward) -> None:
    month = MONTHS[1]
    gone, kept = of_note(ward, month, 3, 2), of_note(ward, month, 3, 1)
    before = {one: ward.receipt(one).content for one in MONTHS}
    found = ward.retract(f"{month}:4:2", f"{month}:4:7", f"{month}:99:1", "2031-01:1:1", "nobody")
    assert (found.found, found.added, found.counted) == (1, 2, ("patient", "note"))
    assert [(held.partition, held.counts) for held in found.held] == [(month, (0, 1))]
    assert [one.line for one in found.not_found] == [2, 3, 4, 5]
    assert "P-" not in ward.list.read_text()
    assert gone not in ward.list.read_text()
    # Exactly the announced artifacts are rebuilt: this month and its downstream artifacts.
    assert f"packed_cohorts/{month}" in ward.reasons()
    assert not [name for name in ward.reasons() if name.endswith((MONTHS[0], MONTHS[2]))]
    ward.run()
    assert ward.reasons() == {}
    assert ward.failed(month) == {}
    assert ward.receipt(month).ledger is not None
    assert ward.receipt(month).ledger.dropped == {"retracted": 1}
    assert {one for one in MONTHS if ward.receipt(one).content != before[one]} == {month}
    assert traces(ward.root, [gone]) == []
    assert traces(ward.root, [kept])
    ward.equals_a_build_from_scratch()
    again = ward.retract(f"{month}:4:2")
    assert (again.already, again.found, again.added) == (1, 0, 0)


def test_a_record_is_removed_with_all_its_notes(ward: Ward) -> None:
    month = MONTHS[0]
    found = ward.retract(f"{month}:2")
    assert (found.found, found.added, found.counted) == (1, 1, ("patient",))
    ward.run()
    assert ward.failed(month) == {}
    assert traces(ward.root, Ward.texts(month, 1)) == []
    assert ward.retract(f"{month}:2:1").already == 1


def test_removing_the_only_notes_of_a_patient_leaves_an_up_to_date_artifact(ward: Ward) -> None:
    month = MONTHS[2]
    assert ward.retract(f"{month}:5:1", f"{month}:5:2").found == 2
    ward.run()
    assert ward.reasons() == {}
    assert ward.failed(month) == {}
    assert traces(ward.root, Ward.texts(month, 4)) == []
    ward.equals_a_build_from_scratch()
    # The notes stay removed if a record is inserted before them, because a note is identified by its text and not by
    # its position.
    ward.people[month].insert(0, patient("P-new", note(text(9999))))
    ward.run()
    assert ward.failed(month) == {}
    assert traces(ward.root, Ward.texts(month, 4)) == []
    ward.equals_a_build_from_scratch()


def test_removing_notes_first_and_then_the_patient_equals_removing_the_patient_at_once(ward: Ward) -> None:
    month = MONTHS[2]
    ward.retract(f"{month}:5:1", f"{month}:5:2")
    ward.run()
    found = ward.retract(f"P-{month}-4")
    assert (found.found, found.already, found.added, found.not_found) == (0, 1, 1, ())
    assert set(ward.reasons()) >= {f"packed_cohorts/{month}"}
    ward.run()
    assert ward.failed(month) == {}
    ward.equals_a_build_from_scratch()


def test_a_position_in_a_changed_source_is_refused(ward: Ward) -> None:
    month = MONTHS[0]
    ward.people[month].insert(0, patient("P-new", note(text(9999))))
    with raises(ConfigError, month, "changed"):
        ward.retract(f"{month}:4:2")
    assert not ward.list.exists()


def test_a_retracted_note_that_is_still_present_fails_the_check(ward: Ward) -> None:
    month = MONTHS[1]
    ward.retract(f"{month}:4:2")
    assert "no_retracted_document" in ward.failed(month)
    ward.run()
    assert ward.failed(month) == {}
    listed = ward.list.read_bytes()
    ward.list.unlink()
    assert_names(ward.failed(month)["no_retracted_document"], "1 note", "list")
    ward.list.write_bytes(listed.replace(b'"note": "', b'"note": "00'))
    with raises(ConfigError, 1):
        ward.failed(month)
