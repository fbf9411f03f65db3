"""Tests of `dataprep_assets.packing.rows`."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, FormatError
from dataprep_assets.packing.algorithms import ALGORITHMS, Algorithm, pack_items
from dataprep_assets.packing.bins import Bins, Segments
from dataprep_assets.packing.next_fit import concat_then_split
from dataprep_assets.packing.row_defects import find_row_defects
from dataprep_assets.packing.rows import COLUMNS, TARGETS, PackedRows, pack_rows
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.packing.excerpt import select_bins

PAD = 3


def compute_offsets(lengths: list[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)


def make_row_by_hand(documents: list[list[int]], length: int, pad: int) -> dict[str, list[int]]:
    """Return one row, built token by token according to docs/formats/packed-rows.md#row."""
    inputs, segmentation, position = [], [], []
    for number, document in enumerate(documents, 1):
        for place, token in enumerate(document):
            inputs.append(token)
            segmentation.append(number)
            position.append(place)
    padding = length - len(inputs)
    inputs += [pad] * padding
    segmentation += [0] * padding
    position += [0] * padding
    row: dict[str, list[int]] = {
        "inputs": inputs,
        "inputs_segmentation": segmentation,
        "inputs_position": position,
        "targets_segmentation": [0] * length,
        "targets_position": [0] * length,
        "targets": [pad] * length,
    }
    for i in range(length - 1):
        if segmentation[i] and segmentation[i] == segmentation[i + 1]:
            row["targets"][i] = inputs[i + 1]
            row["targets_segmentation"][i] = segmentation[i]
            row["targets_position"][i] = position[i]
    return row


def group_documents_by_bin(tokens: NDArray[Any], offsets: NDArray[Any], segments: Segments) -> list[list[list[int]]]:
    bins = []
    for at in range(len(segments)):
        one = select_bins(segments, at, at + 1)
        parts = zip(one.items.tolist(), one.starts.tolist(), one.stops.tolist(), strict=True)
        bins.append([tokens[offsets[i] + start : offsets[i] + stop].tolist() for i, start, stop in parts])
    return bins


def check(rows: PackedRows, documents: list[list[list[int]]], length: int, pad: int) -> None:
    wanted = [make_row_by_hand(row, length, pad) for row in documents]
    for name, column in rows.columns().items():
        assert column.dtype == np.int32
        assert column.shape == (len(documents), length)
        assert column.tolist() == [row[name] for row in wanted], name
    assert find_row_defects(rows, row_length=length, pad_id=pad, vocab_size=2**31) == []


@given(
    lengths=st.lists(st.integers(1, 12), max_size=25),
    capacity=st.integers(12, 20),
    slack=st.integers(0, 3),
    algorithm=st.sampled_from(ALGORITHMS),
    dtype=st.sampled_from(["<u2", "<u4", "<i4", "<i8", ">u4"]),
    pad=st.sampled_from([0, 3, -1]),
    targets=st.booleans(),
)
def test_rows_equal_those_made_by_hand(
    lengths: list[int], capacity: int, slack: int, algorithm: Algorithm, dtype: str, pad: int, targets: bool
) -> None:
    offsets = compute_offsets(lengths)
    # Use few different ids, so that documents also contain the pad id.
    tokens = (np.arange(offsets[-1]) * 7 % 11).astype(dtype)
    bins = pack_items(np.array(lengths, np.int64), capacity, algorithm)
    rows = pack_rows(tokens, offsets, bins, row_length=capacity + slack, pad_id=pad, targets=targets)
    assert list(rows.columns()) == [*COLUMNS, TARGETS][: 6 if targets else 5]
    assert len(rows) == len(bins)
    check(
        rows, group_documents_by_bin(tokens, offsets, bins.segments(np.array(lengths, np.int64))), capacity + slack, pad
    )


@given(lengths=st.lists(st.integers(1, 60), max_size=12), capacity=st.integers(1, 20))
def test_rows_of_split_documents_contain_the_stream_in_order(lengths: list[int], capacity: int) -> None:
    offsets = compute_offsets(lengths)
    tokens = np.arange(offsets[-1], dtype=np.uint32)
    segments = concat_then_split(np.array(lengths, np.int64), capacity)
    rows = pack_rows(tokens, offsets, segments, row_length=capacity, pad_id=PAD, targets=True)
    check(rows, group_documents_by_bin(tokens, offsets, segments), capacity, PAD)
    assert np.array_equal(rows.inputs[rows.inputs_segmentation != 0], tokens)


def test_every_token_is_in_the_rows_once() -> None:
    lengths = np.random.default_rng(1).integers(1, 900, 3_000)
    offsets = compute_offsets(lengths.tolist())
    tokens = np.arange(offsets[-1], dtype=np.uint32)
    bins = pack_items(lengths, 1024, "first_fit_shuffle")
    rows = pack_rows(tokens, offsets, bins, row_length=1024, pad_id=0)
    assert np.array_equal(np.sort(rows.inputs[rows.inputs_segmentation != 0]), tokens)
    assert find_row_defects(rows, row_length=1024, pad_id=0) == []


def test_rows_made_in_small_batches_are_equal() -> None:
    lengths = np.random.default_rng(2).integers(1, 100, 400)
    offsets = compute_offsets(lengths.tolist())
    tokens = np.arange(offsets[-1], dtype=np.uint32)
    for content in (pack_items(lengths, 128, "best_fit"), concat_then_split(lengths, 128)):
        whole = pack_rows(tokens, offsets, content, row_length=128, pad_id=0)
        parts = [
            pack_rows(tokens, offsets, select_bins(content, at, min(at + 7, len(content))), row_length=128, pad_id=0)
            for at in range(0, len(content), 7)
        ]
        for name, column in whole.columns().items():
            assert np.array_equal(np.concatenate([part.columns()[name] for part in parts]), column)


def test_tokens_may_be_a_file(tmp_path: Path) -> None:
    np.arange(10, dtype="<u4").tofile(tmp_path / "tokens.bin")
    tokens = np.memmap(tmp_path / "tokens.bin", dtype="<u4", mode="r")
    rows = pack_rows(tokens, np.array([0, 4, 10]), pack_items(np.array([4, 6]), 6, "first_fit"), row_length=6, pad_id=0)
    assert rows.inputs.tolist() == [[0, 1, 2, 3, 0, 0], [4, 5, 6, 7, 8, 9]]


def test_no_bins_give_no_rows() -> None:
    rows = pack_rows(
        np.array([], np.uint32),
        np.array([0]),
        pack_items(np.array([]), 8, "best_fit"),
        row_length=8,
        pad_id=0,
        targets=True,
    )
    assert {column.shape for column in rows.columns().values()} == {(0, 8)}
    assert find_row_defects(rows, row_length=8, pad_id=0) == []


def bins_of(*content: list[int]) -> Bins:
    return Bins(
        items=np.array(list(chain(*content)), np.int64), offsets=compute_offsets([len(bin_) for bin_ in content])
    )


def segment(item: int, start: int, stop: int) -> Segments:
    one = [np.array([value], np.int64) for value in (item, start, stop)]
    return Segments(items=one[0], starts=one[1], stops=one[2], offsets=np.array([0, 1]))


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"content": bins_of([0], [1, 2])}, (1, 9, 8)),
        ({"content": bins_of([0], [], [1])}, (1,)),
        ({"content": bins_of([0], [3])}, (3,)),
        ({"content": bins_of([-1])}, (-1,)),
        ({"content": segment(1, 2, 2)}, (2, 1, 5)),
        ({"content": segment(1, -1, 2)}, (-1, 2, 1)),
        ({"content": segment(1, 0, 6)}, (0, 6, 1)),
        ({"document_offsets": np.array([0, 3, 3, 12]), "content": bins_of([1])}, (0, 1)),
        ({"document_offsets": np.array([0, 3, 8, 13])}, (13, 12)),
        ({"document_offsets": np.array([0, 8, 3, 12])}, (1,)),
        ({"document_offsets": np.array([1, 3, 8, 12])}, (0, "document")),
        ({"document_offsets": np.array([], np.int64)}, (0, "document")),
        (
            {"document_offsets": np.array([0.0, 12.0])},
            ("offsets", "1-d float64"),
        ),
        ({"tokens": np.zeros((3, 4), np.int32)}, ("tokens", "2-d int32")),
        ({"tokens": np.arange(12) + 777_000_000_000}, (0,)),
        ({"tokens": np.where(np.arange(12) == 5, -777, 1)}, (5, 0)),
    ],
)
def test_invalid_bins_are_refused_without_a_token(change: dict[str, Any], values: tuple[object, ...]) -> None:
    arguments: dict[str, Any] = {
        "tokens": np.arange(12, dtype=np.uint32) + 777,
        "document_offsets": np.array([0, 3, 8, 12]),
        "content": bins_of([0, 1], [2]),
        "row_length": 8,
        "pad_id": 0,
    }
    pack_rows(**arguments)
    with raises(FormatError, *values) as refused:
        pack_rows(**{**arguments, **change})
    assert "777" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "values"),
    [
        ({"row_length": 0}, ("row_length", 0)),
        ({"row_length": 2**31}, ("row_length", 2**31)),
        ({"pad_id": 2**31}, ("pad_id", 2**31)),
    ],
)
def test_settings_that_exceed_int32_are_refused(change: dict[str, int], values: tuple[object, ...]) -> None:
    with raises(ConfigError, *values):
        pack_rows(np.array([1]), np.array([0, 1]), bins_of([0]), **{"row_length": 8, "pad_id": 0, **change})
