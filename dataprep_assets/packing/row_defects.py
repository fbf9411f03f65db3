"""Checks of packed rows against the invariants of their format, without knowledge of the bins.

The invariants are listed in docs/formats/packed-rows.md#invariants.

Each invariant gives at most one defect: the first one in row order. A defect names row, column and position but never
a token, so it may be shown for rows of protected text.

Entry point: `find_row_defects`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import count_of
from dataprep_assets.packing.rows import COLUMNS, TARGETS, PackedRows

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class RowDefect:
    """A defect and its first position; ``row`` and ``position`` are None if it concerns a whole column."""

    column: str
    row: int | None = None
    position: int | None = None
    why: str

    def __str__(self) -> str:
        if self.row is None:
            return f"column {self.column} {self.why}"
        return f"row {self.row}, column {self.column}, position {self.position}: {self.why}"


def find_row_defects(
    rows: PackedRows | Mapping[str, NDArray[Any]],
    *,
    row_length: int,
    pad_id: int,
    vocab_size: int | None = None,
    pad_is_reserved: bool = False,
) -> list[RowDefect]:
    """Return the invariants that the rows violate, in a fixed order; an empty list for valid rows.

    ``rows``: `PackedRows`, or name → integer array of shape ``(rows, L)``; ``targets`` may be missing.
    ``row_length``: positions L of a row. ``pad_id``: the id of positions without a document.
    ``vocab_size``: ids of documents must be less than this (None: no limit; ids must still be 0 or more).
    ``pad_is_reserved``: no document may contain the pad id, so a pad id in a segment is also a defect.
    If a column is missing or misshapen, only that is reported.
    """
    columns = rows.columns() if isinstance(rows, PackedRows) else rows
    defects = list(_find_shape_defects(columns, row_length))
    if defects:
        return defects
    if all(_is_sound(block, pad_id, vocab_size, pad_is_reserved) for block in _cut_batches(columns, row_length)):
        return defects
    segments = columns["inputs_segmentation"]
    checks = chain(
        _check_segmentation(segments),
        _check_positions(segments, columns["inputs_position"]),
        _check_tokens(segments, columns["inputs"], pad_id, vocab_size, pad_is_reserved),
        _check_targets(columns, pad_id),
    )
    for column, is_wrong, reason in checks:
        if is_wrong.any():
            row, position = np.unravel_index(int(is_wrong.argmax()), is_wrong.shape)
            defects.append(RowDefect(column=column, row=int(row), position=int(position), why=reason))
    return defects


def _find_shape_defects(columns: Mapping[str, NDArray[Any]], row_length: int) -> Iterator[RowDefect]:
    rows: int | None = None
    for name in (*COLUMNS, TARGETS):
        column = columns.get(name)
        if column is None:
            if name != TARGETS:
                yield RowDefect(column=name, why="is missing")
        elif column.dtype.kind not in "iu":
            yield RowDefect(column=name, why=f"is {column.dtype}, not integers")
        elif column.ndim != 2 or column.shape[1] != row_length:
            yield RowDefect(column=name, why=f"has the shape {column.shape}, but rows have {row_length} positions")
        elif rows is not None and column.shape[0] != rows:
            yield RowDefect(
                column=name, why=f"has {count_of(column.shape[0], 'row')}, but the columns before it have {rows}"
            )
        else:
            rows = column.shape[0]


_POSITIONS = 1 << 17
"""Number of positions whose columns fit in a core's cache."""


def _cut_batches(columns: Mapping[str, NDArray[Any]], row_length: int) -> Iterator[dict[str, NDArray[Any]]]:
    step = max(1, _POSITIONS // max(1, row_length))
    for start in range(0, len(columns["inputs"]), step):
        yield {name: column[start : start + step] for name, column in columns.items()}


def _is_sound(columns: Mapping[str, NDArray[Any]], pad_id: int, vocab_size: int | None, pad_is_reserved: bool) -> bool:
    """Return whether rows certainly have no defect; this takes a third of the time of finding the defects.

    False can also mean that this function does not recognize valid rows; then the checks below decide.
    """
    inputs, segments, positions = (columns[name] for name in COLUMNS[:3])
    if not inputs.size or any(column.dtype != np.int32 for column in columns.values()):
        return False
    left_segments, right_segments = segments[:, :-1], segments[:, 1:]
    real = segments != 0
    labeled = (left_segments == right_segments) & real[:, 1:]
    # A row must begin with segment 1. Each later position must continue the segment of the previous position, begin the
    # next segment, or be padding at the end of the row.
    continues = labeled | ((right_segments == left_segments + 1) & real[:, :-1])
    if (segments[:, 0] != 1).any() or not (continues | ~real[:, 1:]).all():
        return False
    is_pad = inputs == pad_id
    if not (is_pad | real).all() or (pad_is_reserved and (is_pad & real).any()):
        return False
    if int(inputs.min()) < 0 or (vocab_size is not None and int(inputs.max()) >= vocab_size):
        return False
    # Positions must count up from 0 within each segment, and must be 0 in padding.
    if positions[:, 0].any() or not np.array_equal(positions[:, 1:], (positions[:, :-1] + 1) * labeled):
        return False
    for name in ("segmentation", "position"):
        targets, expected_targets = columns[f"targets_{name}"], columns[f"inputs_{name}"]
        if targets[:, -1].any() or not np.array_equal(targets[:, :-1], expected_targets[:, :-1] * labeled):
            return False
    if TARGETS in columns:
        targets, expected_targets = columns[TARGETS], np.where(labeled, inputs[:, 1:], np.int32(pad_id))
        return bool((targets[:, -1] == pad_id).all()) and np.array_equal(targets[:, :-1], expected_targets)
    return True


Check = tuple[str, Mask, str]
"""Column, mask of the wrong positions, and reason."""


def _get_left_neighbors(values: NDArray[Any]) -> NDArray[Any]:
    """Return each position's left neighbor, 0 at the first position."""
    return np.concatenate([np.zeros_like(values[:, :1]), values[:, :-1]], axis=1)


def _check_segmentation(segments: NDArray[Any]) -> Iterator[Check]:
    name = "inputs_segmentation"
    is_first = np.arange(segments.shape[1]) == 0
    left_neighbors = _get_left_neighbors(segments)
    padding_only = ~segments.any(axis=1, keepdims=True)
    yield name, padding_only & is_first, "the row has only padding"
    yield name, segments < 0, "the segment number is negative"
    yield name, is_first & (segments != 1) & ~padding_only, "the first segment number is not 1"
    stays = (segments == left_neighbors) | (segments == left_neighbors + 1) | (segments == 0)
    # Exclude positions after padding, because the next check reports them.
    yield (
        name,
        ~(stays | is_first | (left_neighbors == 0)),
        "a segment number is not followed by the same number, the next number or padding",
    )
    yield name, (segments != 0) & (left_neighbors == 0) & ~is_first, "padding is followed by a segment"


def _check_positions(segments: NDArray[Any], positions: NDArray[Any]) -> Iterator[Check]:
    name = "inputs_position"
    real = segments != 0
    begins = segments != _get_left_neighbors(segments)
    yield name, ~real & (positions != 0), "the value is not 0 on padding"
    yield name, real & begins & (positions != 0), "the value is not 0 at the beginning of a segment"
    yield (
        name,
        real & ~begins & (positions != _get_left_neighbors(positions) + 1),
        "the value is not one more than the previous value",
    )


def _check_tokens(
    segments: NDArray[Any], inputs: NDArray[Any], pad_id: int, vocab_size: int | None, pad_is_reserved: bool
) -> Iterator[Check]:
    name = "inputs"
    real = segments != 0
    yield name, ~real & (inputs != pad_id), "the value is not the pad id on padding"
    yield name, real & (inputs < 0), "a token id is negative"
    if vocab_size is not None:
        yield name, real & (inputs >= vocab_size), f"a token id is outside the vocabulary (0 to {vocab_size - 1})"
    if pad_is_reserved:
        yield name, real & (inputs == pad_id), "a segment contains the reserved pad id"


def _check_targets(columns: Mapping[str, NDArray[Any]], pad_id: int) -> Iterator[Check]:
    segments = columns["inputs_segmentation"]
    labeled = np.zeros(segments.shape, np.bool_)
    labeled[:, :-1] = (segments[:, :-1] != 0) & (segments[:, :-1] == segments[:, 1:])
    for name in ("segmentation", "position"):
        column, inputs_column = columns[f"targets_{name}"], columns[f"inputs_{name}"]
        yield f"targets_{name}", labeled & (column != inputs_column), f"the value differs from inputs_{name} at a label"
        yield f"targets_{name}", ~labeled & (column != 0), "the value is not 0 at a position without a label"
    if TARGETS in columns:
        # The roll moves the first token of a row to the last position. This is harmless, because the last position
        # never has a label.
        targets, next_inputs = columns[TARGETS], np.roll(columns["inputs"], -1, axis=1)
        yield TARGETS, labeled & (targets != next_inputs), "the value is not the next token of the segment"
        yield TARGETS, ~labeled & (targets != pad_id), "the value is not the pad id at a position without a label"
