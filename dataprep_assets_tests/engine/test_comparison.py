"""The difference between a rebuilt file and the stored one is reported as row and column, line, or byte."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.engine.checks.comparison import compare_files, compare_rows
from dataprep_assets.errors import FormatError

TABLE = pa.table({"words": [1, 2, None, 4], "name": ["a", "b", "c", None]})


def test_only_files_that_differ_are_named(tmp_path: Path) -> None:
    made, stored = tmp_path / "made", tmp_path / "stored"
    files = {
        "same.bin": (b"same", b"same"),
        "bytes.bin": (b"0123", b"0124"),
        "short.bin": (b"0123", b"01"),
        "lines.json": (b"[\n1,\n2]\n", b"[\n1,\n3]\n"),
    }
    for folder in (made, stored):
        folder.mkdir()
    for name, (one, other) in files.items():
        (made / name).write_bytes(one)
        (stored / name).write_bytes(other)
    (made / "missing.bin").write_bytes(b"0")
    (stored / "more.bin").write_bytes(b"0")
    found = dict(compare_files(made, stored, [*files, "more.bin"]))
    assert found == {
        "bytes.bin": "bytes.bin: byte 3 differs from a rebuild",
        "short.bin": "short.bin: byte 2 differs from a rebuild",
        "lines.json": "lines.json: line 3 differs from a rebuild",
        "missing.bin": "missing.bin is missing",
        "more.bin": "more.bin exists, but a rebuild does not write it",
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table, None),
        (lambda table: table.set_column(0, "words", [[1, 2, 3, 4]]), "row 3: column words"),
        (lambda table: table.set_column(1, "name", [["x", "b", "c", None]]), "row 1: column name"),
        (lambda table: table.slice(1), "3 rows"),
        (lambda table: table.rename_columns(["words", "title"]), "columns"),
    ],
)
def test_the_first_row_and_column_that_differ_are_named(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], said: str | None
) -> None:
    pq.write_table(TABLE, tmp_path / "made.parquet")
    pq.write_table(change(TABLE), tmp_path / "stored.parquet")
    found = compare_rows(tmp_path / "made.parquet", tmp_path / "stored.parquet")
    assert found is said is None or said in str(found)


def test_sampled_rows_are_compared_with_their_positions(tmp_path: Path) -> None:
    made, stored, rows = tmp_path / "made.parquet", tmp_path / "stored.parquet", np.array([1, 3])
    pq.write_table(TABLE.take(rows), made)
    pq.write_table(TABLE, stored)
    assert compare_rows(made, stored, rows) is None
    assert compare_rows(made, stored, np.array([1, 2])) == "row 3: column words differs from a rebuild"
    assert compare_rows(made, stored, np.array([1, 4])) == "row 5 is missing"


def test_a_file_that_is_not_parquet_is_unreadable(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "made.parquet")
    (tmp_path / "stored.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError):
        compare_rows(tmp_path / "made.parquet", tmp_path / "stored.parquet")


def test_different_statistics_of_equal_values_are_reported(tmp_path: Path) -> None:
    made, stored = tmp_path / "made", tmp_path / "stored"
    for folder in (made, stored):
        folder.mkdir()
        pq.write_table(TABLE, folder / "table.parquet")
    data = bytearray((stored / "table.parquet").read_bytes())
    # In the footer, the maximum of the column `name` is a byte with the length 1, followed by the value `c`. Change the
    # value.
    footer = len(data) - 8 - pq.read_metadata(stored / "table.parquet").serialized_size
    at = data.index(b"\x01c", footer) + 1
    data[at] ^= 1
    (stored / "table.parquet").write_bytes(bytes(data))
    assert compare_rows(made / "table.parquet", stored / "table.parquet") is None
    assert dict(compare_files(made, stored, ["table.parquet"])) == {
        "table.parquet": f"table.parquet: byte {at} differs from a rebuild"
    }
