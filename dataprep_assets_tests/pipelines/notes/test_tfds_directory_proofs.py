"""Proofs on directories and their combinations pass in every mode, and find what is planted."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.finding import Finding
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes import tfds_directory_proofs as proofs
from dataprep_assets.pipelines.notes import tfds_reader
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration, ReplayDeclaration
from dataprep_assets.pipelines.notes.replay import build_replay
from dataprep_assets.pipelines.notes.tfds_directory_proofs import (
    COMBINED_PROOFS,
    DIRECTORY_PROOFS,
    VIRTUAL_PROOFS,
    prove_combined,
    prove_directory,
)
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.pipeline import declaration, run_notes
from dataprep_assets_tests.readers.families import TENSORFLOW

SPLITS = {"train": 0.7, "val": 0.3}
NOTES = declaration(splits=SPLITS)
OTHER = declaration(dataset="replay", template={"header": "replay\n"}, splits=SPLITS)


@pytest.fixture(autouse=True)
def without_tensorflow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of TFDS takes seconds each time; it has tests of its own here."""
    if "tfds" not in request.node.name:
        monkeypatch.setattr(tfds_reader, "_NEEDED", ("tensorflow_of_another_world",))


def directory(root: Path, notes: NotesDeclaration | ReplayDeclaration = NOTES) -> Path:
    return LocalArtifacts(root).directory(notes.artifact("tfds_directory")) / notes.dataset / "1.0.0"


def proven(found: Iterator[tuple[str, Finding]]) -> dict[str, Finding]:
    return dict(found)


def failed(found: dict[str, Finding]) -> set[str]:
    """Names of what failed, but the reader that is not there."""
    return {name for name, finding in found.items() if not finding.passed} - {"tfds_reads"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    assert not run_notes(NOTES, tmp_path).failed
    return tmp_path


def prove(root: Path) -> dict[str, Finding]:
    return proven(prove_directory(NOTES, LocalArtifacts(root), "tfrecord"))


def test_every_proof_passes_on_what_was_made(root: Path) -> None:
    found = prove(root)
    assert list(found) == list(DIRECTORY_PROOFS)
    assert failed(found) == set()
    assert found["months_complete"].facts["months"] == 4
    assert found["patients_disjoint"].facts["patients"] == 22
    assert found["equals_cohort_shards"].facts["rows"] == found["shard_lengths_counted"].facts["rows"]


def edit(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.unlink()
    path.write_text(json.dumps(value))


def test_a_missing_shard_and_one_of_another_total_are_named(root: Path) -> None:
    where = directory(root)
    lost = where / next(name for name in sorted(path.name for path in where.iterdir()) if "train" in name)
    lost.rename(where / "sample_notes-train.tfrecord-00000-of-00077")
    found = prove(root)
    assert {"files_intact", "names_complete", "shard_lengths_counted", "num_bytes_counted"} <= failed(found)
    assert lost.name in found["names_complete"].summary
    assert "of-00077" in str(found["names_complete"].table)


def test_a_wrong_version_or_name_inside_the_metadata_is_told(root: Path) -> None:
    edit(directory(root) / "dataset_info.json", lambda info: info.update(name="other", version="2.0.0"))
    assert "says name other, declared is sample_notes" in prove(root)["names_complete"].summary


def test_metadata_that_tfds_refuses_fail_what_needs_them(root: Path) -> None:
    edit(directory(root) / "dataset_info.json", lambda info: info.update(strange=1))
    assert {"names_complete", "shard_lengths_counted", "num_bytes_counted", "features_match"} <= failed(prove(root))


MONTH_FAULTS: dict[str, Callable[[list[Any]], Any]] = {
    "its months are not in order": lambda entries: entries.reverse(),
    "is there twice": lambda entries: entries.append(entries[0]),
    "or not in their order": lambda entries: entries.pop(1),
    "months are missing: 2010-11": lambda entries: [entries.pop(0) for e in [*entries] if e["partition"] == "2010-11"],
    "months are not declared: 1999-01": lambda entries: entries[0].update(partition="1999-01"),
}


@pytest.mark.parametrize("said", MONTH_FAULTS)
def test_a_month_out_of_order_twice_missing_or_without_a_shard_is_told(said: str, root: Path) -> None:
    def change(value: Any) -> None:
        MONTH_FAULTS[said](value["splits"]["train"])
        value["splits"]["val"] = [e for e in value["splits"]["val"] if e["partition"] != "2010-11"]

    edit(directory(root).parents[1] / "provenance.json", change)
    finding = prove(root)["months_complete"]
    assert not finding.passed
    assert any(said in str(row["defect"]) for row in finding.table)


def test_shards_made_of_other_rows_than_there_are_now_are_told(root: Path) -> None:
    receipt = root / "sample_notes" / "packed_cohorts" / "2010-12" / "receipt.json"
    receipt.unlink()
    assert "2010-12: its shards or its packed rows are not there" in prove(root)["equals_cohort_shards"].summary


def test_patients_in_two_cohorts_are_a_fact_where_that_is_declared(tmp_path: Path) -> None:
    people = {month: [patient("same", note(f"tea {month}"))] for month in ("2010-01", "2010-02")}
    source = written(tmp_path / "in", people)
    notes = plain(source, ("2010-01", "2010-02"), duplicate_patients="allow")
    assert not run_notes(notes, tmp_path / "out").failed
    store = LocalArtifacts(tmp_path / "out")
    finding = proofs.patients_disjoint(notes, store)
    assert finding.passed
    assert finding.facts["in_several_cohorts"] == 1
    strict = notes.model_copy(update={"duplicate_patients": "fail"})
    finding = proofs.patients_disjoint(strict, store)
    assert "1 patients are in several cohorts, of 2010-01, 2010-02" in finding.summary


def test_tfds_reads_every_row_and_does_not_notice_a_wrong_length_with_a_right_sum(root: Path) -> None:
    if TENSORFLOW.missing:
        pytest.skip(TENSORFLOW.missing)
    finding = prove(root)["tfds_reads"]
    assert finding.passed, finding.summary
    assert (
        finding.facts["rows_read"] == finding.facts["rows"] == 149
        or finding.facts["rows_read"] == finding.facts["rows"]
    )

    def shift(info: Any) -> None:
        lengths = info["splits"][0]["shardLengths"]
        lengths[0], lengths[-1] = str(int(lengths[0]) - 1), str(int(lengths[-1]) + 1)

    edit(directory(root) / "dataset_info.json", shift)
    # with a right sum TFDS reads all rows as if nothing were wrong: it is the count of each shard that tells
    found = prove(root)
    assert found["tfds_reads"].passed
    assert not found["shard_lengths_counted"].passed


MODES: dict[str, dict[str, Any]] = {
    "concat": {},
    "interleave": {},
    "weighted": {"weights": (1.0, 2.0), "tolerance": 0.2},
    "virtual": {},
}


def combined(root: Path, mode: str) -> ReplayDeclaration:
    """Both datasets and their combination below a root."""
    for notes in (NOTES, OTHER):
        assert not run_notes(notes, root).failed
    options = dict(MODES[mode])
    weights = options.pop("weights", (None, None))
    sources = [
        {"dataset": notes.dataset, **({"weight": weight} if weight else {})}
        for notes, weight in zip((NOTES, OTHER), weights, strict=True)
    ]
    replay = ReplayDeclaration.model_validate(
        {"dataset": "mix", "sources": sources, "mode": mode, "splits": ["train", "val"], **options}
    )
    build_replay(replay, LocalArtifacts(root))
    return replay


@pytest.mark.parametrize("mode", MODES)
def test_every_proof_passes_on_a_combination(mode: str, tmp_path: Path) -> None:
    replay = combined(tmp_path, mode)
    found = proven(prove_combined(replay, LocalArtifacts(tmp_path)))
    assert list(found) == list(VIRTUAL_PROOFS if mode == "virtual" else COMBINED_PROOFS)
    assert {name: found[name].summary for name in failed(found)} == {}


def test_shards_that_are_not_mixed_are_told(tmp_path: Path) -> None:
    replay = combined(tmp_path, "concat")
    as_if = replay.model_copy(update={"mode": "interleave"})
    found = proven(prove_combined(as_if, LocalArtifacts(tmp_path)))
    assert "more or fewer than its share" in found["shares_achieved"].summary


def test_shares_that_are_not_the_declared_ones_are_told(tmp_path: Path) -> None:
    replay = combined(tmp_path, "weighted")
    strict = replay.model_copy(update={"tolerance": 1e-6})
    assert "has a share of" in proven(prove_combined(strict, LocalArtifacts(tmp_path)))["shares_achieved"].summary


def test_a_shard_that_nobody_asked_to_have_twice_is_told(tmp_path: Path) -> None:
    replay = combined(tmp_path, "weighted")
    as_if = replay.model_copy(update={"mode": "interleave"})
    found = proven(prove_combined(as_if, LocalArtifacts(tmp_path)))["provenance_complete"]
    assert "more often than in them" in found.summary


def test_a_source_that_changed_or_is_gone_is_told(tmp_path: Path) -> None:
    replay = combined(tmp_path, "virtual")
    mixture = tmp_path / "mix" / "tfds_directory" / "builder_directories.json"
    mixture.write_text(json.dumps(json.loads(mixture.read_bytes())[:1]))
    found = proven(prove_combined(replay, LocalArtifacts(tmp_path)))
    assert failed(found) == {"files_intact", "virtual_files"}
    (tmp_path / "replay" / "tfds_directory" / "receipt.json").unlink()
    with pytest.raises(DataprepError, match="replay/tfds_directory"):
        proven(prove_combined(replay, LocalArtifacts(tmp_path)))


def test_a_patient_who_trains_in_one_source_and_validates_in_another_is_told(tmp_path: Path) -> None:
    replay = combined(tmp_path, "interleave")
    packed = tmp_path / "sample_notes" / "packed_cohorts" / "2010-11"
    target = tmp_path / "replay" / "packed_cohorts" / "2010-12" / "val" / "patients.bin"
    target.write_bytes(target.read_bytes() + (packed / "train" / "patients.bin").read_bytes()[:16])
    found = proven(prove_combined(replay, LocalArtifacts(tmp_path)))
    assert failed(found) == {"splits_disjoint"}
    assert "1 patients are in several of the splits train, val" in found["splits_disjoint"].summary
