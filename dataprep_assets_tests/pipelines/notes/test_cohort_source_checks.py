"""Proofs that read the source again find notes, keys and ids that are not those that were packed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.formats.packed_rows import PackedRowBlock
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import packed_cohorts
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.packed_months import failed, packed, prove_cohort, rewritten
from dataprep_assets_tests.pipelines.notes.pipeline import declaration


@pytest.mark.parametrize("layout", ["prepacked", "unpacked"])
def test_ids_that_are_not_those_of_the_notes_are_found_wherever_the_rows_are_cut(layout: str, tmp_path: Path) -> None:
    cohort = packed(tmp_path, declaration(layout=layout))

    def shift(block: PackedRowBlock) -> PackedRowBlock:
        tokens = np.where(block.tokens > 10, np.maximum(block.tokens ^ 1, 11), block.tokens)
        return replace(block, tokens=tokens)

    rewritten(cohort, shift)
    found = prove_cohort(cohort)
    assert_names(found["round_trip"].summary, "chunk 1", "train")
    assert not found["jsonl_matches_rows"].passed


def test_notes_that_the_source_has_no_more_and_another_key_are_told(tmp_path: Path) -> None:
    people = [patient(f"id{at}", note(f"tea {at}")) for at in range(9)]
    source = written(tmp_path / "in", {"2010-01": people})
    cohort = packed(tmp_path / "out", plain(source), "2010-01")
    other_key = replace(cohort, plan=replace(cohort.plan, key=b"another key"))
    assert_names(prove_cohort(other_key)["note_counts_match"].summary, "notes")
    written(source, {"2010-01": people[:-1]})
    (cohort,) = packed_cohorts(cohort.plan.notes, cohort.store, ["2010-01"])
    found = prove_cohort(cohort)["note_counts_match"]
    assert "digest: the source has" in found.summary
    assert any("kept notes: the source has 8, but the receipt has 9" in str(row["defect"]) for row in found.table)


def test_headers_present_and_missing_are_counted(tmp_path: Path) -> None:
    people = [patient("a", note("tea"), colour="red"), patient("b", note("cake"), note("pie"))]
    source = written(tmp_path / "in", {"2010-01": people})
    fields = {"fields": {"patient": {"colour": "colour"}}}
    template = {"header": "{colour}\n", "missing": "drop"}
    found = prove_cohort(packed(tmp_path / "out", plain(source, cohorts=fields, template=template), "2010-01"))
    assert failed(found) == {}
    facts = found["note_counts_match"].facts
    assert (facts["with_header"], facts["without_header"], facts["missing_metadata"]) == (1, 0, 2)
