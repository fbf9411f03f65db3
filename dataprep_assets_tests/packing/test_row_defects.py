"""Tests of `dataprep_assets.packing.row_defects`: each invariant is broken once, and reported with its position."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dataprep_assets.packing.algorithms import pack_items
from dataprep_assets.packing.row_defects import RowDefect, find_row_defects
from dataprep_assets.packing.rows import COLUMNS, TARGETS, pack_rows
from dataprep_assets_tests.messages import assert_names

LENGTH, PAD, VOCABULARY = 8, 9, 1000
Columns = dict[str, NDArray[Any]]


def make_good_rows() -> Columns:
    """Return row 0 with documents of 4 and 2 tokens and 2 of padding, and row 1 with documents of 3 and 5 tokens."""
    tokens = np.arange(500, 514, dtype=np.uint32)
    bins = pack_items(np.array([4, 2, 3, 5]), LENGTH, "concatenative")
    rows = pack_rows(tokens, np.array([0, 4, 6, 9, 14]), bins, row_length=LENGTH, pad_id=PAD, targets=True)
    return {name: column.copy() for name, column in rows.columns().items()}


def find_defects(columns: Columns, **settings: Any) -> list[RowDefect]:
    return find_row_defects(columns, row_length=LENGTH, pad_id=PAD, vocab_size=VOCABULARY, **settings)


def put(name: str, row: int, position: int | slice, value: Any) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        columns[name][row, position] = value

    return change


def test_good_rows_have_no_defects() -> None:
    assert make_good_rows()["inputs_segmentation"].tolist() == [[1, 1, 1, 1, 2, 2, 0, 0], [1, 1, 1, 2, 2, 2, 2, 2]]
    assert find_defects(make_good_rows(), pad_is_reserved=True) == []
    assert find_defects({name: column.astype(np.uint16) for name, column in make_good_rows().items()}) == []
    without = make_good_rows()
    del without[TARGETS]
    assert find_defects(without) == []


SEGMENTS, POSITIONS = "inputs_segmentation", "inputs_position"

BROKEN = {
    "all padding": (put(SEGMENTS, 1, slice(None), 0), SEGMENTS, 1, 0, "the row has only padding"),
    "negative": (put(SEGMENTS, 0, 6, -1), SEGMENTS, 0, 6, "the segment number is negative"),
    "starts at 2": (put(SEGMENTS, 0, slice(4), 2), SEGMENTS, 0, 0, "the first segment number is not 1"),
    "starts with padding": (put(SEGMENTS, 1, 0, 0), SEGMENTS, 1, 0, "the first segment number is not 1"),
    "jumps": (put(SEGMENTS, 1, slice(3, 8), 3), SEGMENTS, 1, 3, "not followed by the same number, the next number"),
    "falls": (put(SEGMENTS, 1, slice(6, 8), 1), SEGMENTS, 1, 6, "not followed by the same number, the next number"),
    "hole": (put(SEGMENTS, 1, 4, 0), SEGMENTS, 1, 5, "padding is followed by a segment"),
    "position on padding": (put(POSITIONS, 0, 7, 2), POSITIONS, 0, 7, "the value is not 0 on padding"),
    "no restart": (put(POSITIONS, 0, slice(4, 6), [4, 5]), POSITIONS, 0, 4, "is not 0 at the beginning of a"),
    "starts above 0": (put(POSITIONS, 1, slice(0, 3), [1, 2, 3]), POSITIONS, 1, 0, "is not 0 at the beginning of a"),
    "position skips": (put(POSITIONS, 1, 5, 3), POSITIONS, 1, 5, "is not one more than the previous value"),
    "token on padding": (put("inputs", 0, 6, 777), "inputs", 0, 6, "is not the pad id on padding"),
    "negative token": (put("inputs", 0, 5, -777), "inputs", 0, 5, "a token id is negative"),
    "beyond vocabulary": (put("inputs", 1, 7, 777_000), "inputs", 1, 7, "outside the vocabulary (0 to 999)"),
    "label of a boundary": (put("targets_segmentation", 0, 3, 1), "targets_segmentation", 0, 3, "is not 0 at"),
    "label of the last": (put("targets_segmentation", 1, 7, 2), "targets_segmentation", 1, 7, "is not 0 at"),
    "label of padding": (put("targets_segmentation", 0, 6, 2), "targets_segmentation", 0, 6, "is not 0 at"),
    "label lost": (put("targets_segmentation", 1, 4, 0), "targets_segmentation", 1, 4, "differs from inputs_seg"),
    "label of another": (put("targets_segmentation", 1, 4, 1), "targets_segmentation", 1, 4, "differs from inputs_seg"),
    "target position": (put("targets_position", 1, 4, 7), "targets_position", 1, 4, "differs from inputs_position"),
    "position of no label": (put("targets_position", 0, 3, 3), "targets_position", 0, 3, "is not 0 at"),
    "wrong target": (put(TARGETS, 0, 1, 777), TARGETS, 0, 1, "is not the next token of the segment"),
    "target of a boundary": (put(TARGETS, 0, 3, 777), TARGETS, 0, 3, "not the pad id at a position without a label"),
    "target of the last": (put(TARGETS, 1, 7, 777), TARGETS, 1, 7, "not the pad id at a position without a label"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_broken_invariant_is_reported_with_its_position_and_without_a_token(case: str) -> None:
    breaks, column, row, position, why = BROKEN[case]
    columns = make_good_rows()
    breaks(columns)
    found = find_defects(columns)
    place = f"row {row}, column {column}, position {position}: "
    assert any(str(defect).startswith(place) and why in defect.why for defect in found)
    assert (found[0].column, found[0].row, found[0].position) == (column, row, position)
    for defect in found:
        assert "777" not in str(defect)
        assert "50" not in str(defect)


def test_a_pad_id_in_a_document_is_a_defect_only_if_it_is_reserved() -> None:
    columns = make_good_rows()
    columns["inputs"][1, 7] = PAD
    columns[TARGETS][1, 6] = PAD
    assert find_defects(columns) == []
    (found,) = find_defects(columns, pad_is_reserved=True)
    assert (found.column, found.row, found.position) == ("inputs", 1, 7)
    assert "contains the reserved pad id" in found.why


def test_tokens_lost_by_segmenting_at_the_pad_id_are_found() -> None:
    columns = make_good_rows()
    columns["inputs"][1, 4] = PAD
    columns[TARGETS][1, 3] = PAD
    columns[SEGMENTS][1] = np.where(columns["inputs"][1] != PAD, columns[SEGMENTS][1], 0)
    assert any(defect.column == SEGMENTS for defect in find_defects(columns))


def test_each_broken_invariant_is_reported_once_with_its_first_position() -> None:
    columns = make_good_rows()
    columns[POSITIONS][:, 1:3] = 7
    found = [(defect.row, defect.position) for defect in find_defects(columns) if defect.column == POSITIONS]
    assert found == [(0, 1)]


def test_shifted_positions_do_not_read_the_neighbors_of_another_row() -> None:
    columns = {name: np.concatenate([column, column]) for name, column in make_good_rows().items()}
    assert find_defects(columns) == []


@pytest.mark.parametrize("name", COLUMNS)
def test_a_missing_or_misshapen_column_is_named(name: str) -> None:
    def found(change: Callable[[Columns], Any]) -> str:
        columns = make_good_rows()
        change(columns)
        return " / ".join(str(defect) for defect in find_defects(columns))

    def one_row_less(columns: Columns) -> None:
        columns[TARGETS] = columns[TARGETS][:1]

    assert found(lambda columns: columns.pop(name)) == f"column {name} is missing"
    assert "is float64, not integers" in found(lambda columns: columns.update({name: columns[name].astype(float)}))
    assert_names(found(lambda columns: columns.update({name: columns[name][:, 1:]})), "(2, 7)", 8)
    assert "has the shape (8,)" in found(lambda columns: columns.update({name: columns[name][0]}))
    assert found(one_row_less) == "column targets has 1 row, but the columns before it have 2"


@given(
    row=st.integers(0, 1),
    position=st.integers(0, LENGTH - 1),
    name=st.sampled_from([name for name in (*COLUMNS, TARGETS) if name != "inputs"]),
    value=st.integers(-1, 8),
)
def test_every_single_change_of_a_derived_column_is_found(row: int, position: int, name: str, value: int) -> None:
    columns = make_good_rows()
    before = int(columns[name][row, position])
    columns[name][row, position] = value
    # Reserve the pad id, because otherwise a pad id after a row's last document could be a document of one token.
    assert bool(find_defects(columns, pad_is_reserved=True)) == (value != before)
