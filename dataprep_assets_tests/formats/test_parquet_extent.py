"""Bytes of a Parquet file that belong to no row are reported, although every reader returns the same rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import hf_parquet
from dataprep_assets.formats.packed_rows import PackedRowBlock, open_packed_file, write_rows
from dataprep_assets_tests.messages import raises


def write_packed_file(folder: Path) -> Path:
    """Write a packed file of three row groups."""
    path = folder / "packed.parquet"
    mask = np.tile(np.array([1] * 9 + [0], np.uint8), 2)
    block = PackedRowBlock.from_segments(np.arange(20, dtype=np.int32), np.array([10, 10]), np.arange(3), mask=mask)
    write_rows(path, [block] * 3)
    return path


def write_documents_file(folder: Path) -> Path:
    """Write a file of a split of ten documents."""
    ends = np.arange(10, 110, 10, dtype=np.uint64)
    (name,) = hf_parquet.write_split(folder, "train", np.arange(100, dtype=np.uint16), ends).digests
    return folder / name


KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "packed": (write_packed_file, open_packed_file),
    "documents": (write_documents_file, lambda path: hf_parquet.read_counts(path.parents[1])),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bytes_twice", [1, 17])
def test_bytes_between_rows_and_footer_are_reported(tmp_path: Path, kind: str, bytes_twice: int) -> None:
    make, look = KINDS[kind]
    path = make(tmp_path)
    look(path)
    rows, footer = pq.read_table(path), pq.read_metadata(path).serialized_size + 8
    data = path.read_bytes()
    path.write_bytes(data[:-footer] + data[-footer - bytes_twice : -footer] + data[-footer:])
    assert pq.read_table(path).equals(rows), "no reader sees it"
    with raises(FormatError, path, "byte"):
        look(path)


def test_a_file_without_rows_has_no_gap(tmp_path: Path) -> None:
    hf_parquet.write_split(tmp_path, "val", np.zeros(0, np.uint16), np.zeros(0, np.uint64))
    assert hf_parquet.read_counts(tmp_path) == {"val": 0}
