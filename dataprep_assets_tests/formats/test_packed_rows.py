"""Files of packed rows have the trainer's schema and deterministic bytes, and every possible defect of a row is
found.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats.flat_bins import read_ranges
from dataprep_assets.formats.packed_rows import (
    PackedRowBlock,
    build_schema,
    find_padding_defects,
    find_row_defects,
    open_packed_file,
    pad_segments,
    view_ids_as_int32,
    write_rows,
)
from dataprep_assets.packing.algorithms import pack_items
from dataprep_assets.packing.row_layout import lay_out_whole
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.packing.excerpt import to_lists

CAPACITY = 16


def _sequences(count: int) -> tuple[list[list[int]], list[list[int]]]:
    ids = [[100 * i + k for k in range(2 + i % 7)] for i in range(count)]
    masks = [[1] * (len(s) - 1) + [0] for s in ids]
    return ids, masks


def _write(
    path: Path, count: int, group_rows: int = 1000, *, masked: bool = True
) -> tuple[list[list[int]], list[list[int]], Any]:
    ids, masks = _sequences(count)
    lengths = np.array([len(s) for s in ids], np.int64)
    bins = pack_items(lengths, CAPACITY, "first_fit_shuffle", seed=1)
    spools = {"<i4": [t for s in ids for t in s], "u1": [m for s in masks for m in s]}
    reads = []
    for dtype, values in spools.items():
        spool = path.with_name(f"{path.name}.{dtype}")
        np.array(values, dtype).tofile(spool)
        reads.append(partial(read_ranges, spool, dtype))
    write_rows(path, lay_out_whole(bins, lengths).blocks(group_rows, *reads[: 1 + masked]), masked=masked)
    return ids, masks, bins


def test_rows_equal_the_bins_sequence_by_sequence(tmp_path: Path) -> None:
    ids, masks, bins = _write(tmp_path / "x.parquet", 100, group_rows=7)
    rows = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert len(rows) == len(bins)
    for items, row in zip(to_lists(bins), rows, strict=True):
        starts = np.cumsum([0, *(len(ids[i]) for i in items)])[:-1].tolist()
        assert row == {
            "input_ids": [t for i in items for t in ids[i]],
            "loss_mask": [m for i in items for m in masks[i]],
            "seq_start_id": starts,
            "assistant_masks": [m for i in items for m in [0, *masks[i][:-1]]],
            "seq_lengths": [len(ids[i]) for i in items],
        }


def test_schema_and_row_groups_equal_the_upstream_files(tmp_path: Path) -> None:
    _write(tmp_path / "x.parquet", 100, group_rows=7)
    with pq.ParquetFile(tmp_path / "x.parquet") as file:
        assert [str(f.type) for f in file.schema_arrow] == [
            "list<element: int32>",
            "list<element: uint8>",
            "list<element: int32>",
            "list<element: uint8>",
            "list<element: int32>",
        ]
        # Nemotron's columns come first, then the columns with which TRL trains the same tokens.
        assert file.schema_arrow.names == [
            *("input_ids", "loss_mask", "seq_start_id"),
            *("assistant_masks", "seq_lengths"),
        ]
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        assert set(sizes[:-1]) == {7}
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert open_packed_file(tmp_path / "x.parquet").group_sizes == tuple(sizes)


def test_equal_bins_give_equal_bytes(tmp_path: Path) -> None:
    _write(tmp_path / "a.parquet", 500)
    _write(tmp_path / "b.parquet", 500)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_a_written_file_has_no_defects(tmp_path: Path) -> None:
    _write(tmp_path / "x.parquet", 300, group_rows=11)
    groups = list(open_packed_file(tmp_path / "x.parquet"))
    assert [d for rows in groups for d in find_row_defects(rows, CAPACITY)] == []
    assert [rows.first for rows in groups] == list(range(0, 11 * len(groups), 11))
    begins, ends = groups[0].bounds()
    assert (ends > begins).all()
    assert ends[-1] == len(groups[0].tokens)


def test_an_id_beyond_the_dtype_is_refused_not_wrapped() -> None:
    assert view_ids_as_int32(np.array([0, 2**31 - 1], np.uint32), "x").tolist() == [0, 2**31 - 1]
    with raises(FormatError, "x", 2147483648, 1, "int32"):
        view_ids_as_int32(np.array([7, 2**31], np.uint32), "x")


def _add_row(row: list[int], mask: list[int], starts: list[int], before: int = 3) -> PackedRowBlock:
    """Return a valid row followed by the given one."""
    sound = [1, 2, 3][:before]
    return PackedRowBlock(
        tokens=np.array(sound + row, np.int32),
        mask=np.array([1, 1, 0][:before] + mask, np.uint8),
        starts=np.array([0, *starts], np.int32),
        rows=np.array([0, before, before + len(row)], np.int64),
        heads=np.array([0, 1, 1 + len(starts)], np.int64),
        first=40,
    )


DEFECTS = {
    "longer than the pack size": ([5] * 20, [1] * 19 + [0], [0]),
    "empty": ([], [], []),
    "no sequence starts in the row": ([5, 6], [1, 0], []),
    "does not start at 0": ([5, 6, 7], [1, 1, 0], [1]),
    "the starts of sequences are not strictly increasing": ([5, 6, 7, 8], [1, 0, 1, 0], [0, 2, 2]),
    "a sequence starts after the end of the row": ([5, 6], [1, 0], [0, 2]),
    "other than 0 or 1": ([5, 6, 7], [2, 1, 0], [0]),
    "the last position of a sequence is in the loss: its label would be the first token of the next sequence": (
        [5, 6, 7, 8],
        [1, 1, 1, 0],
        [0, 2],
    ),
    "a sequence has no trained token": ([5, 6, 7, 8], [0, 0, 1, 0], [0, 2]),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_reported_with_its_row(defect: str) -> None:
    assert find_row_defects(_add_row([5, 6, 7], [0, 1, 0], [0]), CAPACITY) == []
    found = find_row_defects(_add_row(*DEFECTS[defect]), CAPACITY)
    assert any(defect in sentence and sentence.startswith("row 41: ") for sentence in found)


def _table(**columns: Any) -> pa.Table:
    arrays = {k: pa.array(v, kind) for k, v, kind in zip(columns, columns.values(), build_schema().types, strict=False)}
    return pa.table(arrays)


SOUND: dict[str, Any] = {"input_ids": [[1, 2]], "loss_mask": [[1, 0]], "seq_start_id": [[0]]}
SOUND |= {"assistant_masks": [[0, 1]], "seq_lengths": [[2]]}


def test_other_columns_or_types_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    good = _table(**SOUND)
    wide = good.set_column(0, "input_ids", pa.array([[1, 2]], pa.list_(pa.int64())))
    for table in (good.drop_columns("loss_mask"), wide, good.append_column("bin", [[1]])):
        pq.write_table(table, path)
        with raises(FormatError, path, "input_ids"):
            open_packed_file(path)
    pq.write_table(good, path)
    assert open_packed_file(path).rows == 1


def test_nulls_and_mask_and_ids_of_different_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    short = {"seq_start_id": [[0], [0]], "assistant_masks": [[0], [0, 1]], "seq_lengths": [[1], [2]]}
    pq.write_table(_table(input_ids=[[1], [1, 2]], loss_mask=[[0], [1]], **short), path)
    with raises(FormatError, 1, "input_ids", "loss_mask"):
        list(open_packed_file(path))
    pq.write_table(_table(**SOUND | {"input_ids": [[1, None]]}), path)
    with raises(FormatError, "input_ids", 0):
        list(open_packed_file(path))


@pytest.mark.parametrize(
    ("column", "values"),
    [("assistant_masks", [[1, 0]]), ("assistant_masks", [[0]]), ("seq_lengths", [[1]]), ("seq_lengths", [[1, 1]])],
)
def test_a_column_that_contradicts_the_others_is_a_defect(column: str, values: list[list[int]], tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(_table(**SOUND), path)
    assert [d for rows in open_packed_file(path) for d in find_row_defects(rows, CAPACITY)] == []
    pq.write_table(_table(**SOUND | {column: values}), path)
    (defect,) = (d for rows in open_packed_file(path) for d in find_row_defects(rows, CAPACITY))
    assert_names(defect, column, 0)


def test_padded_segments_have_a_multiple_of_labels_and_give_the_same_rows_back(tmp_path: Path) -> None:
    ids, _, bins = _write(tmp_path / "x.parquet", 100, group_rows=7)
    plain = list(open_packed_file(tmp_path / "x.parquet"))
    padded = [pad_segments(block, 4, 9) for block in plain]
    write_rows(tmp_path / "y.parquet", padded, padded=True)
    file = open_packed_file(tmp_path / "y.parquet")
    assert file.is_padded
    for block, before in zip(file, plain, strict=True):
        assert find_row_defects(block, 4 * CAPACITY) == find_padding_defects(block, 4, 9) == []
        assert set((block.lengths % 4).tolist()) == {1}
        assert block.without_padding().equals(before)
        assert find_padding_defects(block, 8, 9)
        assert find_padding_defects(block, 4, 8)
        assert find_padding_defects(block, 1, None)
        assert find_padding_defects(before, 4, 9)
        longer = replace(block, unpadded=block.unpadded + 9)
        assert find_row_defects(longer, 4 * CAPACITY)
        shorter = replace(block, unpadded=np.ones_like(block.unpadded))
        assert any("padding" in defect for defect in find_row_defects(shorter, 4 * CAPACITY))
    stripped = [
        block.tokens[a:b].tolist() for block in file.without_padding() for a, b in zip(*block.bounds(), strict=True)
    ]
    assert stripped == [ids[i] for items in to_lists(bins) for i in items]


def test_rows_without_a_mask_are_read_in_blocks_of_any_size(tmp_path: Path) -> None:
    ids, _, bins = _write(tmp_path / "x.parquet", 100, group_rows=7, masked=False)
    file = open_packed_file(tmp_path / "x.parquet", masked=False)
    wanted = [ids[i] for items in to_lists(bins) for i in items]
    for blocks in (list(file), list(file.blocks(5)), [file.block(0, 1000)], list(file.blocks(16))):
        assert [d for block in blocks for d in find_row_defects(block, CAPACITY)] == []
        found = [block.tokens[a:b].tolist() for block in blocks for a, b in zip(*block.bounds(), strict=True)]
        assert found == wanted
        assert [block.first for block in blocks] == np.cumsum([0, *map(len, blocks)])[:-1].tolist()
    assert len(file.block(len(bins), len(bins) + 3)) == 0
    with raises(FormatError, tmp_path / "x.parquet", "input_ids"):
        open_packed_file(tmp_path / "x.parquet")


def test_a_truncated_spool_is_refused(tmp_path: Path) -> None:
    np.arange(9, dtype="<i4").tofile(tmp_path / "spool")
    read = partial(read_ranges, tmp_path / "spool", "<i4")
    none = np.zeros(0, np.int64)
    assert read(none, none).tolist() == []
    assert read(np.array([7, 0, 2, 5, 4]), np.array([2, 2, 0, 1, 2])).tolist() == [7, 8, 0, 1, 5, 4, 5]
    assert read(np.array([0, 3, 6]), np.array([3, 3, 3])).tolist() == list(range(9))
    with raises(FormatError, tmp_path):
        read(np.array([8]), np.array([2]))


@pytest.mark.parametrize("cut", [3, 1000, -1])
def test_a_truncated_file_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    _write(path, 500)
    path.write_bytes(path.read_bytes()[:cut])
    with raises(FormatError, path):
        open_packed_file(path)


def test_a_flipped_byte_in_the_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    _write(path, 500)
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(bytes(data))
    with raises(FormatError, path, 0):
        list(open_packed_file(path))
