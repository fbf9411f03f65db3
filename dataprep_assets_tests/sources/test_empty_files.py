"""An empty file of a format with a frame or footer is reported as empty, and a column of type null as such."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.errors import CorruptSourceError, SourceError
from dataprep_assets.planning.manifest import file_format
from dataprep_assets.sources.readers.contents import EMPTY
from dataprep_assets.sources.readers.records import RecordFields, read_records
from dataprep_assets.sources.readers.rows import read_rows
from dataprep_assets_tests.messages import raises


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl.gz", "a.jsonl.zst", "a.csv.xz", "a.txt.bz2"])
def test_a_file_of_0_bytes_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    format, compression = file_format(name)
    for reader in (
        lambda: read_rows(tmp_path / name, format=format, compression=compression, label=name),
        lambda: read_records(
            tmp_path / name, fields=RecordFields("text"), format=format, compression=compression, label=name
        ),
    ):
        with pytest.raises(CorruptSourceError) as raised:
            list(reader())
        assert str(raised.value) == f"{name}: {EMPTY}"


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_file_without_rows_is_not_an_empty_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert list(read_rows(tmp_path / name, format=name[2:], compression=None, label=name)) == []


def test_a_column_of_type_null_is_reported(tmp_path: Path) -> None:
    made = io.BytesIO()
    pq.write_table(pa.table({"id": [1, 2], "text": pa.nulls(2)}), made)
    (tmp_path / "a.parquet").write_bytes(made.getvalue())
    with raises(SourceError, "'text'", "null"):
        list(
            read_records(
                tmp_path / "a.parquet", fields=RecordFields("text"), format="parquet", compression=None, label="a"
            )
        )
