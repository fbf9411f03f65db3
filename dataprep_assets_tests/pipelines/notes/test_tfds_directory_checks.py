"""Checks of the directory of one dataset pass on a good build, and find planted faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.tfds.tfds_directory import DIRECTORY_CHECKS, OpenedNotes, check_patients
from dataprep_assets_tests.faults.edits import edit_receipt
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.directories import directory, edit, failed, prove, sealed
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes

pytestmark = pytest.mark.usefixtures("without_tensorflow")


def test_every_check_passes_on_a_good_build(notes_root: Path) -> None:
    found = prove(notes_root)
    assert list(found) == [check.name for check in DIRECTORY_CHECKS]
    assert failed(found) == set()
    assert found["matches_cohort_shards"].facts["months"] == 4
    assert found["patients_disjoint"].facts["patients"] == 22


FAULTS: dict[str, Callable[[list[Any]], Any]] = {
    "out of order": lambda entries: entries.reverse(),
    "twice": lambda entries: entries.append(entries[0]),
    "a shard less": lambda entries: entries.pop(1),
    "another shard": lambda entries: entries[0].update(source_shard="train"),
    "a month less": lambda entries: [entries.pop(0) for e in [*entries] if e["partition"] == "2010-11"],
    "another month": lambda entries: entries[0].update(partition="1999-01"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_misordered_duplicate_missing_and_incomplete_months_are_found(fault: str, notes_root: Path) -> None:
    artifact = directory(notes_root).parents[1]
    edit(artifact / "provenance.json", lambda value: FAULTS[fault](value["splits"]["train"]))
    assert failed(prove(notes_root)) == {"files_intact"}
    sealed(artifact)
    assert failed(prove(notes_root)) == {"matches_cohort_shards"}


def test_missing_rows_are_reported(notes_root: Path) -> None:
    receipt = notes_root / "sample_notes" / "packed_cohorts" / "2010-12" / "receipt.json"
    receipt.unlink()
    assert "missing: 2010-12" in prove(notes_root)["matches_cohort_shards"].summary


@pytest.mark.parametrize("what", ["rows", "shards"])
def test_a_receipt_with_other_counts_is_reported(what: str, notes_root: Path) -> None:
    path = directory(notes_root).parents[1] / "receipt.json"
    edit_receipt(path, lambda value: value["facts"]["splits"]["val"].update({what: 99}))
    assert_names(prove(notes_root)["matches_cohort_shards"].summary, "facts", "receipt")


def test_patients_in_two_cohorts_are_a_fact_if_that_is_declared(tmp_path: Path) -> None:
    people = {month: [patient("same", note(f"tea {month}"))] for month in ("2010-01", "2010-02")}
    source = written(tmp_path / "in", people)
    notes = plain(source, ("2010-01", "2010-02"), duplicate_patients="allow")
    assert not run_notes(notes, tmp_path / "out").failed
    store = LocalArtifacts(tmp_path / "out")

    def opened(notes: NotesDeclaration) -> OpenedNotes:
        return OpenedNotes(notes.artifact("tfds_directory"), store, notes, notes, "tfrecord")

    finding = check_patients(opened(notes))
    assert finding.passed
    assert finding.facts["patients_in_several_cohorts"] == 1
    strict = notes.model_copy(update={"duplicate_patients": "fail"})
    finding = check_patients(opened(strict))
    assert_names(finding.summary, "1 patient", "2010-01, 2010-02")
