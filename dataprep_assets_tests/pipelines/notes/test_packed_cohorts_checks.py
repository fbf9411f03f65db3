"""Checks of packed cohorts pass in every layout, and their findings quote no note."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.pipelines.notes.cohorts.packed_cohorts_checks import COHORT_CHECKS
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.packed_months import BOS, failed, packed, prove_cohort
from dataprep_assets_tests.pipelines.notes.pipeline import declaration

LAYOUTS: dict[str, dict[str, Any]] = {
    "repeated headers": {"row_length": 64},
    "header once, overlapping": {"row_length": 64, "long_notes": {"rule": "header_once", "overlap": 8}},
    "truncated": {"row_length": 64, "long_notes": {"rule": "truncate"}},
    "concatenated": {"packing": {"algorithm": "concat_then_split"}},
    "unpacked": {"layout": "unpacked"},
    "next fit": {"packing": {"algorithm": "concatenative"}},
    "with targets and splits": {"targets": True, "splits": {"train": 0.6, "val": 0.4}},
    "with BOS": {**BOS, "row_length": 64},
    "the reference engine": {"tokenizer": None},
    "dropped fields": {"template": {"header": "{colour}\n", "missing": "drop"}},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_check_passes_on_packed_cohorts(layout: str, tmp_path: Path) -> None:
    changes = dict(LAYOUTS[layout])
    if changes.get("tokenizer", "") is None:
        changes["tokenizer"] = {"path": declaration().tokenizer.path, "engine": "tokenizers"}
    found = prove_cohort(packed(tmp_path, declaration(**changes)))
    assert list(found) == [proof.name for proof in COHORT_CHECKS]
    assert failed(found) == {}
    assert found["round_trip"].facts["documents_compared"] == found["round_trip"].facts["documents"]
    assert int(found["tokens_conserved"].facts["tokens"]) > 1000


def test_a_missing_cohort_fails_every_check(tmp_path: Path) -> None:
    notes = declaration()
    cohort = packed(tmp_path, notes)
    (cohort.store.directory(cohort.artifact) / "receipt.json").unlink()
    assert len(failed(prove_cohort(cohort))) == len(COHORT_CHECKS)


def test_nothing_of_a_note_is_in_any_finding(tmp_path: Path) -> None:
    people = [patient(f"CANARY{at}", note(f"CANARY text {at}")) for at in range(9)]
    source = written(tmp_path / "in", {"2010-01": people})
    cohort = packed(tmp_path / "out", plain(source), "2010-01")
    directory = cohort.store.directory(cohort.artifact)
    (directory / "2010-01.jsonl").write_bytes(b'["CANARY"]\n')
    (directory / "2010-01.parquet").write_bytes(b"CANARY")
    (directory / "patients.bin").write_bytes(b"CANARY")
    written(source, {"2010-01": b'[{"CANARY": }]'})
    found = prove_cohort(cohort)
    assert len(failed(found)) >= 9
    assert "CANARY" not in repr(found)
