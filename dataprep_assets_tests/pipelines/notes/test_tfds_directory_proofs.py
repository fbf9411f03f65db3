"""Proofs on the directory of one dataset pass on what was made, and find what is planted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.tfds_directory import DIRECTORY_PROOFS, patients_disjoint
from dataprep_assets_tests.faults.edits import edit_receipt
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.directories import directory, edit, failed, prove
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes

pytestmark = pytest.mark.usefixtures("without_tensorflow")


def test_every_proof_passes_on_what_was_made(notes_root: Path) -> None:
    found = prove(notes_root)
    assert list(found) == [proof.name for proof in DIRECTORY_PROOFS]
    assert failed(found) == set()
    assert found["months_complete"].facts["months"] == 4
    assert found["patients_disjoint"].facts["patients"] == 22
    assert found["equals_cohort_shards"].facts["rows"] == found["shard_lengths_counted"].facts["rows"]


MONTH_FAULTS: dict[str, Callable[[list[Any]], Any]] = {
    "its months are not in order": lambda entries: entries.reverse(),
    "occurs twice": lambda entries: entries.append(entries[0]),
    "or not in their order": lambda entries: entries.pop(1),
    "of 0 shards": lambda entries: entries[0].update(source_shard="train"),
    "months are missing: 2010-11": lambda entries: [entries.pop(0) for e in [*entries] if e["partition"] == "2010-11"],
    "months are not declared: 1999-01": lambda entries: entries[0].update(partition="1999-01"),
}


@pytest.mark.parametrize("said", MONTH_FAULTS)
def test_a_month_out_of_order_twice_missing_or_without_a_shard_is_told(said: str, notes_root: Path) -> None:
    def change(value: Any) -> None:
        MONTH_FAULTS[said](value["splits"]["train"])
        value["splits"]["val"] = [e for e in value["splits"]["val"] if e["partition"] != "2010-11"]

    edit(directory(notes_root).parents[1] / "provenance.json", change)
    finding = prove(notes_root)["months_complete"]
    assert not finding.passed
    assert any(said in str(row["defect"]) for row in finding.table)


def test_shards_made_of_other_rows_than_there_are_now_are_told(notes_root: Path) -> None:
    receipt = notes_root / "sample_notes" / "packed_cohorts" / "2010-12" / "receipt.json"
    receipt.unlink()
    assert "2010-12: its shards or its packed rows are not there" in prove(notes_root)["equals_cohort_shards"].summary


@pytest.mark.parametrize("what", ["rows", "shards"])
def test_a_receipt_that_counts_otherwise_is_told(what: str, notes_root: Path) -> None:
    path = directory(notes_root).parents[1] / "receipt.json"
    edit_receipt(path, lambda value: value["facts"]["splits"]["val"].update({what: 99}))
    finding = prove(notes_root)["equals_cohort_shards"]
    assert "its receipt counts other rows or shards than dataset_info.json" in finding.summary


def test_patients_in_two_cohorts_are_a_fact_where_that_is_declared(tmp_path: Path) -> None:
    people = {month: [patient("same", note(f"tea {month}"))] for month in ("2010-01", "2010-02")}
    source = written(tmp_path / "in", people)
    notes = plain(source, ("2010-01", "2010-02"), duplicate_patients="allow")
    assert not run_notes(notes, tmp_path / "out").failed
    store = LocalArtifacts(tmp_path / "out")
    finding = patients_disjoint(notes, store)
    assert finding.passed
    assert finding.facts["in_several_cohorts"] == 1
    strict = notes.model_copy(update={"duplicate_patients": "fail"})
    finding = patients_disjoint(strict, store)
    assert "1 patients are in several cohorts, of 2010-01, 2010-02" in finding.summary
