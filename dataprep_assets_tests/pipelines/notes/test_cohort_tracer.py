"""Every row of a directory leads to the notes that are in it, and every note to all its rows."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dataprep_assets.engine.trace.place import TokenRange
from dataprep_assets.engine.trace.trace import Trace, Tracer, trace_documents
from dataprep_assets.errors import ConfigError, IntegrityError, NotFoundError
from dataprep_assets.formats.tensorflow import example, tfrecord
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohorts.cohort_tracer import build_mixture_tracer, build_notes_tracer
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import packed_cohorts
from dataprep_assets.pipelines.notes.cohorts.row_layout import RECORD
from dataprep_assets.pipelines.notes.component import PackedCohorts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.replay.replay import build_replay
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets_tests.formats.shard_reader import read_directory
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.shards import bundle, reference_ids
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.directories import SPLITS
from dataprep_assets_tests.pipelines.notes.packed_months import prove_cohort
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes

END = bundle().find_token("<|endoftext|>", key="separator").id
MONTHS = ("2010-01", "2010-02")
LONG = "The goat counts its buttons twice, then the kite. " * 8
"""Longer than a row of 64."""


class Clinic(NamedTuple):
    """Two months of notes, packed and in directories."""

    notes: NotesDeclaration
    root: Path
    tracer: Tracer


def people(month: str) -> list[Any]:
    """Patients of one to five notes, the third of which is long."""
    return [
        patient(
            f"{month}-p{i}", *(note(f"{month}, child {i}, note {n}. {LONG if n == 2 else 'Tea.'}") for n in range(i))
        )
        for i in range(1, 6)
    ]


def declared(folder: Path, **changes: Any) -> NotesDeclaration:
    """The clinic's notes, in rows of 64."""
    source = written(folder / "in", {month: people(month) for month in MONTHS})
    return plain(source, MONTHS, row_length=64, **({"splits": SPLITS, "order": "source"} | changes))


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Clinic:
    folder = tmp_path_factory.mktemp("clinic")
    notes = declared(folder)
    assert not run_notes(notes, folder / "out").failed
    return Clinic(notes, folder / "out", build_notes_tracer(notes, LocalArtifacts(folder / "out")))


def files(root: Path, dataset: str, split: str) -> Iterator[tuple[str, list[list[int]]]]:
    """Each TFRecord file of a split of a directory, in the reader's order: its path, and the ids of its rows."""
    where = root / dataset / "tfds_directory" / dataset / "1.0.0"
    info = read_directory(where)
    chosen = next(one for one in info.splits if one.name == split)
    column = next(c for c in info.columns if c.name in ("inputs", "tokens"))
    for name in info.list_shard_names(chosen):
        payloads = [record.payload for record in tfrecord.read_records(where / name)]
        rows = example.decode_rows(payloads, info.columns)[column.name]
        yield f"{dataset}/1.0.0/{name}", rows.tolist()


@cache
def encoded(text: str) -> list[int]:
    found: list[int] = reference_ids([text])[0]
    return found


def wanted(month: str, record: int, number: int) -> list[int]:
    """The ids that a note has, by the reference engine and not by the pipeline."""
    text = people(month)[record - 1]["notes"][number - 1]["text"]
    return [*encoded(text), END]


def held(places: list[TokenRange], content: dict[str, list[list[int]]]) -> list[int]:
    """The ids at some places of a directory, one place after another."""
    return [i for place in places for i in content[place.file][number(place, "row")][place.start : place.stop]]


def number(place: TokenRange, name: str) -> int:
    value = place.at[name]
    assert isinstance(value, int)
    return value


def in_directory(found: Trace, dataset: str) -> list[TokenRange]:
    return [place for place in found.places if place.artifact == f"{dataset}/tfds_directory"]


def test_every_row_of_every_file_leads_to_its_notes_and_these_are_where_it_says(clinic: Clinic) -> None:
    seen, several = set(), 0
    for split in SPLITS:
        content, at = dict(files(clinic.root, "notes", split)), 0
        for file, rows in content.items():
            for row, ids in enumerate(rows):
                every = trace_documents(clinic.tracer, tfrecord_row=at, split=split)
                assert every == trace_documents(clinic.tracer, tfrecord_row=row, shard=file.rpartition("/")[2])
                covered = []
                for found in every:
                    places = in_directory(found, "notes")
                    note_number = number(places[0], "note")
                    assert held(places, content) == wanted(found.file, found.row, note_number)
                    assert found.text == people(found.file)[found.row - 1]["notes"][note_number - 1]["text"]
                    assert found.tokens == sum(place.stop - place.start for place in places)
                    covered += [p for p in places if (p.file, p.at["row"], p.at["row_of_split"]) == (file, row, at)]
                    seen.add((found.file, found.row, note_number))
                    several += len(places) > 1
                spans = sorted((p.start, p.stop) for p in covered)
                assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])], "a token of nobody"
                assert all(i == clinic_pad() for i in ids[spans[-1][1] :])
                at += 1
    assert seen == {(m, r + 1, n + 1) for m in MONTHS for r, p in enumerate(people(m)) for n in range(len(p["notes"]))}
    assert several, "no note is longer than a row: the test shows less than it says"


def clinic_pad() -> int:
    return bundle().find_token("<|pad|>", key="pad").id


def test_packed_rows_shards_records_and_patients_name_the_same_notes(clinic: Clinic) -> None:
    directory = LocalArtifacts(clinic.root).directory(clinic.notes.artifact("packed_cohorts", "2010-02"))
    for split in SPLITS:
        for line, text in enumerate((directory / split / "2010-02.jsonl").read_bytes().splitlines()):
            ids = json.loads(text)["inputs"]
            for found in trace_documents(clinic.tracer, packed_row=line, shard="2010-02", split=split):
                of_file = [p for p in found.places if p.file == f"{split}/2010-02.jsonl" and p.at["row"] == line]
                note_number = number(of_file[0], "note")
                assert all(
                    "".join(map(chr, ids[p.start : p.stop]))
                    in "".join(map(chr, wanted("2010-02", found.row, note_number)))
                    for p in of_file
                )
                assert found in trace_documents(clinic.tracer, file="2010-02", row=found.row)
                assert found in trace_documents(clinic.tracer, id=f"2010-02-p{found.row}")
                shard = next(p for p in found.places if p.artifact == "notes/tfrecord_shards/2010-02")
                name = shard.file.rpartition("/")[2].removesuffix(".tfrecords")
                assert found in trace_documents(
                    clinic.tracer, tfrecord_row=number(shard, "row"), shard=name, split=split
                )
    assert len(trace_documents(clinic.tracer, file="2010-01", row=5)) == 5
    assert {found.row for found in trace_documents(clinic.tracer, id="2010-01-p3")} == {3}


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"tfrecord_row": 10**6, "split": "train"}, "row 1000000 is out of range: notes/tfds_directory, train, has"),
        ({"tfrecord_row": 0}, "trace: `split` is required with `tfrecord_row`. Use one of train, val"),
        ({"tfrecord_row": 0, "shard": "2010-01_009-of-009"}, "notes/tfds_directory has no file '2010-01_009-of-009'"),
        ({"packed_row": 0, "split": "train"}, "the month is missing. Available: 2010-01 to 2010-02"),
        ({"packed_row": 99, "shard": "2010-01", "split": "val"}, "trace: row 99 is out of range: 2010-01, val, has"),
        (
            {"file": "2010-01", "row": 99},
            "trace: record 99 of 2010-01 is not in any row: the record does not exist, or was dropped",
        ),
        ({"id": "p-CANARY"}, "trace: notes has no row of this patient"),
        (
            {"token": 3, "split": "train"},
            "trace: set `tfrecord_row`; or `shard` (a month) and `packed_row`; or `file` (a month) and `row` (a "
            "record); or `id` (a patient)",
        ),
    ],
)
def test_what_does_not_exist_is_one_clear_line(clinic: Clinic, question: dict[str, Any], told: str) -> None:
    with pytest.raises((NotFoundError, ConfigError)) as raised:
        trace_documents(clinic.tracer, **question)
    assert told in str(raised.value)
    assert "CANARY" not in str(raised.value)


def test_a_stream_of_notes_is_traced_through_a_combination_of_datasets(tmp_path: Path) -> None:
    unpacked = {"layout": "unpacked", "rows": "stream", "pipeline": "grain", "splits": {"train": 1.0}}
    for name in ("first", "second"):
        source = declared(tmp_path / name, dataset=name, template={"header": f"{name}\n"}, **unpacked)
        assert not run_notes(source, tmp_path / "out").failed
    mix = MixtureDeclaration.model_validate(
        {"dataset": "mix", "sensitive": False, "sources": [{"dataset": "first"}, {"dataset": "second"}]}
    )
    build_replay(mix, LocalArtifacts(tmp_path / "out"))
    tracer = build_mixture_tracer(mix, LocalArtifacts(tmp_path / "out"))
    content, at, notes, datasets = dict(files(tmp_path / "out", "mix", "train")), 0, 0, set()
    for rows in content.values():
        for _ in rows:
            for found in trace_documents(tracer, tfrecord_row=at, split="train"):
                places = in_directory(found, "mix")
                # A note that is split at the end of a row continues in the next row.
                body = wanted(found.file, found.row, number(places[0], "note"))
                assert held(places, content) == [*encoded(f"{found.dataset}\n"), *body]
                datasets.add(found.dataset)
                notes += 1
            at += 1
    assert (datasets, notes >= 60) == ({"first", "second"}, True)
    with raises(ConfigError, "other datasets"):
        trace_documents(tracer, file="2010-01", row=1)


def test_rows_of_shards_with_equal_bytes_lead_to_their_own_notes(tmp_path: Path) -> None:
    alike = [patient(f"p{i}", note("The tea of this month is that of the last one, without change.")) for i in range(3)]
    notes = plain(written(tmp_path / "in", {"2010-01": alike}), rows_per_shard=1, order="source")
    assert not run_notes(notes, tmp_path / "out").failed
    tracer = build_notes_tracer(notes, LocalArtifacts(tmp_path / "out"))
    found = [one for row in range(3) for one in trace_documents(tracer, tfrecord_row=row, split="train")]
    assert [one.row for one in found] == [1, 2, 3]
    assert [[p.at["row_of_split"] for p in in_directory(one, "notes")] for one in found] == [[0], [1], [2]]


def test_of_a_sensitive_dataset_no_text_is_told_and_patients_need_their_key(
    clinic: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = {"env": "WARD_KEY"}
    update = {"sensitive": True, "patient_key": clinic.notes.patient_key.model_validate(key)}
    tracer = PackedCohorts(clinic.notes.model_copy(update=update)).tracer(LocalArtifacts(clinic.root))
    assert [found.text for found in trace_documents(tracer, tfrecord_row=0, split="train")] == [None] * len(
        trace_documents(clinic.tracer, tfrecord_row=0, split="train")
    )
    monkeypatch.delenv("WARD_KEY", raising=False)
    with raises(ConfigError, "WARD_KEY"):
        trace_documents(tracer, id="2010-01-p3")
    monkeypatch.setenv("WARD_KEY", "another key, of more than thirty-two characters")
    with pytest.raises(NotFoundError):
        trace_documents(tracer, id="2010-01-p3")


def test_what_was_made_of_other_rows_is_left_out_and_damage_is_found(tmp_path: Path) -> None:
    notes = declared(tmp_path, splits={"train": 1.0})
    assert not run_notes(notes, tmp_path / "out").failed
    store = LocalArtifacts(tmp_path / "out")
    (cohort,) = packed_cohorts(notes, store, ["2010-01"])
    path = store.directory(cohort.artifact) / "origins.npy"
    origins = np.load(path)
    origins[[0, 1], RECORD] = origins[[1, 0], RECORD]
    path.unlink()
    np.save(path, origins)
    failed = {name: finding.summary for name, finding in prove_cohort(cohort).items() if not finding.passed}
    assert set(failed) == {"files_intact", "round_trip"}
    assert_names(failed["round_trip"], "origins.npy")
    path.write_bytes(path.read_bytes()[:-1])
    with raises(IntegrityError, "origins.npy"):
        trace_documents(build_notes_tracer(notes, store), packed_row=0, shard="2010-01")
