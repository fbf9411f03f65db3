"""Checks of the rows of a cohort find planted faults in the columnar file and the JSON lines, by position."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dataprep_assets.formats.packed_rows import PackedRowBlock
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.notes.packed_months import BOS, MONTH, packed, prove_cohort, rewritten
from dataprep_assets_tests.pipelines.notes.pipeline import declaration


def test_a_doubled_separator_and_a_doubled_bos_are_counted(tmp_path: Path) -> None:
    cohort = packed(tmp_path, declaration(**BOS))
    separator, bos = cohort.plan.stream.separator_id, cohort.plan.stream.bos_id
    assert bos is not None

    def double(block: PackedRowBlock) -> PackedRowBlock:
        tokens, (starts, stops) = block.tokens.copy(), block.bounds()
        tokens[stops[0] - 2] = separator
        tokens[starts[1] + 1] = bos
        return replace(block, tokens=tokens)

    rewritten(cohort, double)
    found = prove_cohort(cohort)["separators_match_notes"]
    assert not found.passed
    assert any("1 separator is" in str(row["defect"]) for row in found.table)
    assert any("with two BOS" in str(row["defect"]) for row in found.table)


def test_a_row_of_only_padding_and_a_row_that_is_too_long_are_refused(tmp_path: Path) -> None:
    cohort = packed(tmp_path, declaration())

    def empty(block: PackedRowBlock) -> PackedRowBlock:
        return PackedRowBlock.from_segments(block.tokens, block.lengths, np.insert(block.heads, 1, block.heads[1]))

    rewritten(cohort, empty)
    assert_names(prove_cohort(cohort)["rows_valid"].summary, "row 1: the row", "empty")


LAYOUTS = ["prepacked", "unpacked"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_json_line_truncated_by_a_crash_is_named(layout: str, tmp_path: Path) -> None:
    cohort = packed(tmp_path, declaration(layout=layout))
    path = cohort.store.directory(cohort.artifact) / f"{MONTH}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines)[:-7])
    assert_names(prove_cohort(cohort)["jsonl_matches_rows"].summary, len(lines))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_json_line_with_different_formatting_is_parsed_and_compared(layout: str, tmp_path: Path) -> None:
    """A line that equals the expected text need not be parsed."""
    cohort = packed(tmp_path, declaration(layout=layout))
    path = cohort.store.directory(cohort.artifact) / f"{MONTH}.jsonl"
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"".join(json.dumps(json.loads(line)).encode() + b"\n" for line in lines))
    found = prove_cohort(cohort)
    assert [name for name, finding in found.items() if not finding.passed] == ["files_intact"]
    assert found["jsonl_matches_rows"].facts["lines_compared"] == len(lines)
    row = json.loads(lines[1])
    name = "tokens" if layout == "unpacked" else "inputs"
    row[name][0] += 1
    path.write_bytes(
        b"".join([lines[0], b"\n", json.dumps(row).encode(), b"\n", *(line + b"\n" for line in lines[2:])])
    )
    assert_names(prove_cohort(cohort)["jsonl_matches_rows"].summary, 2, name)


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a column is missing": lambda row: row.pop(sorted(row)[-1]),
    "a column is shorter": lambda row: row[sorted(row)[0]].pop(),
    "an id is beyond the vocabulary": lambda row: row[sorted(row)[0]].__setitem__(1, 99_999),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_json_row_is_found(damage: str, layout: str, tmp_path: Path) -> None:
    cohort = packed(tmp_path, declaration(layout=layout))
    path = cohort.store.directory(cohort.artifact) / f"{MONTH}.jsonl"
    *before, last = path.read_bytes().splitlines(keepends=True)
    row = orjson.loads(last)
    DAMAGE[damage](row)
    path.write_bytes(b"".join(before) + orjson.dumps(row) + b"\n")
    assert f"line {len(before) + 1}" in prove_cohort(cohort)["rows_valid"].summary


def test_trained_padding_in_an_unpacked_row_is_found(tmp_path: Path) -> None:
    """Rows of earlier versions were filled with a pad id that MaxText's tokenizer does not have."""
    cohort = packed(tmp_path, declaration(layout="unpacked", pipeline="grain"))
    path = cohort.store.directory(cohort.artifact) / f"{MONTH}.jsonl"
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    short = lines[-1]["tokens"]
    stored = len(short)
    assert stored < 256
    short += [7] * (256 - stored)
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    finding = prove_cohort(cohort)["labels_within_notes"]
    assert (finding.passed, finding.warning) == (False, False)
    assert finding.facts["labels_on_padding"] == 256 - stored
    assert "labels are padding" in finding.summary


def test_a_stream_of_notes_is_a_warning_with_the_number_of_labels_across_notes(tmp_path: Path) -> None:
    cohort = packed(tmp_path, declaration(layout="unpacked", rows="stream"))
    finding = prove_cohort(cohort)["labels_within_notes"]
    assert (finding.passed, finding.warning) == (False, True)
    assert finding.facts["labels_on_padding"] == 0
    assert int(finding.facts["labels_across_notes"]) > 0
    assert_names(finding.summary, "stream")


@pytest.mark.parametrize("pipeline", ["tfds", "grain", "hf"])
def test_no_label_of_a_single_note_row_leads_out_of_the_note(pipeline: str, tmp_path: Path) -> None:
    finding = prove_cohort(packed(tmp_path, declaration(layout="unpacked", pipeline=pipeline)))["labels_within_notes"]
    assert finding.passed, finding.summary
    assert (finding.facts["labels_on_padding"], finding.facts["labels_across_notes"]) == (0, 0)
    assert int(finding.facts["labels"]) > 100
