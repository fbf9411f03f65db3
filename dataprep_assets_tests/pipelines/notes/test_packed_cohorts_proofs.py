"""Proofs on packed cohorts pass in every layout, and find what is planted: by place, and without a word of a note."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.verdicts import remember, remembered
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.packed_cohorts import CohortWork, cohort_works, packed_paths
from dataprep_assets.pipelines.notes.packed_cohorts_proofs import COHORT_PROOFS, prove_cohort
from dataprep_assets.pipelines.notes.packed_rows import PackedRowsFile, PackedRowsWriter, RowBlock
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.pipeline import declaration, run_notes

MONTH = "2010-12"
BOS: dict[str, Any] = {
    "document": {"separator": "<|endoftext|>", "bos": "<|pad|>"},
    "pad": {"id": 5, "may_occur": True},
}
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


def packed(root: Path, notes: NotesDeclaration, month: str = MONTH) -> CohortWork:
    """The work of a month that was packed below a root."""
    assert not run_notes(notes, root).failed
    (work,) = cohort_works(notes, LocalArtifacts(root), [month])
    return work


def failed(found: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.summary for name, finding in found.items() if not finding.passed}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_proof_passes_on_what_was_packed(layout: str, tmp_path: Path) -> None:
    changes = dict(LAYOUTS[layout])
    if changes.get("tokenizer", "") is None:
        changes["tokenizer"] = {"path": declaration().tokenizer.path, "engine": "tokenizers"}
    found = prove_cohort(packed(tmp_path, declaration(**changes)))
    assert list(found) == list(COHORT_PROOFS)
    assert failed(found) == {}
    assert found["round_trip"].facts["notes_compared"] == 16
    assert int(found["tokens_conserved"].facts["tokens"]) > 1000


@pytest.fixture(scope="module", params=["prepacked", "unpacked"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NotesDeclaration]:
    root, notes = tmp_path_factory.mktemp(request.param), declaration(layout=request.param)
    packed(root, notes)
    return root, notes


def rewritten(work: CohortWork, change: Callable[[RowBlock], RowBlock]) -> None:
    """Write the columnar file again with other rows."""
    path = work.store.directory(work.artifact) / packed_paths(work.plan.notes, work.month)["train"].rows
    file = PackedRowsFile(path)
    blocks = [change(block) for block in file.blocks(file.shape.batch_rows)]
    path.unlink()
    with PackedRowsWriter(path, file.shape) as writer:
        for block in blocks:
            writer.write(block)


@pytest.mark.parametrize("layout", ["prepacked", "unpacked"])
def test_ids_that_are_not_those_of_the_notes_are_found_wherever_the_rows_are_cut(layout: str, tmp_path: Path) -> None:
    work = packed(tmp_path, declaration(layout=layout))

    def shift(block: RowBlock) -> RowBlock:
        tokens = np.where(block.tokens > 10, np.maximum(block.tokens ^ 1, 11), block.tokens)
        return replace(block, tokens=tokens)

    rewritten(work, shift)
    found = prove_cohort(work)
    assert "chunk 1 is not in the rows of train" in found["round_trip"].summary
    assert not found["jsonl_equals_rows"].passed


def test_a_doubled_separator_and_a_doubled_bos_are_counted(tmp_path: Path) -> None:

    work = packed(tmp_path, declaration(**BOS))
    separator, bos = work.plan.stream.separator_id, work.plan.stream.bos_id
    assert bos is not None

    def double(block: RowBlock) -> RowBlock:
        tokens, stops = block.tokens.copy(), np.cumsum(block.segments)
        tokens[stops[0] - 2] = separator
        tokens[stops[1] - block.segments[1] + 1] = bos
        return replace(block, tokens=tokens)

    rewritten(work, double)
    found = prove_cohort(work)["separators_match_notes"]
    assert not found.passed
    assert [row["defect"] for row in found.table if "doubled" in str(row["defect"])] != []
    assert any("begin with two BOS" in str(row["defect"]) for row in found.table)


def test_a_row_of_padding_alone_and_one_that_is_too_long_are_refused(tmp_path: Path) -> None:
    work = packed(tmp_path, declaration())

    def empty(block: RowBlock) -> RowBlock:
        return replace(block, offsets=np.insert(block.offsets, 1, block.offsets[1]))

    rewritten(work, empty)
    assert "row 1 is all padding" in prove_cohort(work)["rows_valid"].summary


def test_a_json_line_that_a_crash_cut_is_named(made: tuple[Path, NotesDeclaration], tmp_path: Path) -> None:
    work = packed(tmp_path, made[1])
    path = work.store.directory(work.artifact) / f"{MONTH}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines)[:-7])
    assert f"line {len(lines)} has no end" in prove_cohort(work)["jsonl_equals_rows"].summary


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a column is missing": lambda row: row.pop(sorted(row)[-1]),
    "a column is shorter": lambda row: row[sorted(row)[0]].pop(),
    "an id is beyond the vocabulary": lambda row: row[sorted(row)[0]].__setitem__(1, 99_999),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_json_row_is_found(damage: str, made: tuple[Path, NotesDeclaration], tmp_path: Path) -> None:
    work = packed(tmp_path, made[1])
    path = work.store.directory(work.artifact) / f"{MONTH}.jsonl"
    *before, last = path.read_bytes().splitlines(keepends=True)
    row = orjson.loads(last)
    DAMAGE[damage](row)
    path.write_bytes(b"".join(before) + orjson.dumps(row) + b"\n")
    assert f"line {len(before) + 1}" in prove_cohort(work)["rows_valid"].summary


def test_notes_that_the_source_has_no_more_and_another_key_are_told(tmp_path: Path) -> None:
    people = [patient(f"id{at}", note(f"tea {at}")) for at in range(9)]
    source = written(tmp_path / "in", {"2010-01": people})
    work = packed(tmp_path / "out", plain(source), "2010-01")
    other_key = replace(work, plan=replace(work.plan, key=b"another key"))
    assert "are not among the latter" in prove_cohort(other_key)["notes_recounted"].summary
    written(source, {"2010-01": people[:-1]})
    (work,) = cohort_works(work.plan.notes, work.store, ["2010-01"])
    found = prove_cohort(work)["notes_recounted"]
    assert "the source has sha256" in found.summary
    assert any("notes that are kept 8, the receipt 9" in str(row["defect"]) for row in found.table)


def test_headers_present_and_missing_are_counted(tmp_path: Path) -> None:
    people = [patient("a", note("tea"), colour="red"), patient("b", note("cake"), note("pie"))]
    source = written(tmp_path / "in", {"2010-01": people})
    fields = {"fields": {"patient": {"colour": "colour"}}}
    template = {"header": "{colour}\n", "missing": "drop"}
    found = prove_cohort(packed(tmp_path / "out", plain(source, cohorts=fields, template=template), "2010-01"))
    assert failed(found) == {}
    facts = found["notes_recounted"].facts
    assert (facts["with_header"], facts["without_header"], facts["missing_metadata"]) == (1, 0, 2)


def test_a_cohort_that_is_not_there_fails_every_proof(tmp_path: Path) -> None:
    notes = declaration()
    work = packed(tmp_path, notes)
    (work.store.directory(work.artifact) / "receipt.json").unlink()
    assert len(failed(prove_cohort(work))) == len(COHORT_PROOFS)


def test_nothing_of_a_note_is_in_any_finding(tmp_path: Path) -> None:
    people = [patient(f"CANARY{at}", note(f"CANARY text {at}")) for at in range(9)]
    source = written(tmp_path / "in", {"2010-01": people})
    work = packed(tmp_path / "out", plain(source), "2010-01")
    directory = work.store.directory(work.artifact)
    (directory / "2010-01.jsonl").write_bytes(b'["CANARY"]\n')
    (directory / "2010-01.arrow").write_bytes(b"CANARY")
    (directory / "patients.bin").write_bytes(b"CANARY")
    written(source, {"2010-01": b'[{"CANARY": }]'})
    found = prove_cohort(work)
    assert len(failed(found)) >= 9
    assert "CANARY" not in repr(found)


def test_a_verdict_is_remembered_for_the_content_that_it_is_about(made: tuple[Path, NotesDeclaration]) -> None:
    root, notes = made
    (work,) = cohort_works(notes, LocalArtifacts(root), [MONTH])
    remember(work.artifact, work.store, {"rows_valid": Finding(passed=False, summary="seen")})
    assert remembered(work.artifact, work.store) == {"rows_valid": Finding(passed=False, summary="seen")}
    other = notes.artifact("packed_cohorts", "2011-01")
    assert remembered(other, work.store) is None
