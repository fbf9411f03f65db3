"""Fields that the document table carries from files in which every value is text."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dataprep_assets.curation.table import CarriedFields, CarriedValueError, ColumnType, ParquetRowWriter
from dataprep_assets.pipelines.corpus.curation.tagged_shard import read_part_batches
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets_tests.messages import raises


def read_carried(path: Path, kind: ColumnType, values: list[str], column: str = "it") -> list[Any]:
    path.write_text("text,it\n" + "".join(f"a text,{value}\n" for value in values))
    return read_carried_column(path, kind, column)


def read_carried_column(path: Path, kind: ColumnType, column: str = "it") -> list[Any]:
    digest, format = sha256(path.read_bytes()).hexdigest(), path.suffix[1:]
    part = SourcePart(label=path.name, path=path, format=format, compression=None, sha256=digest, ordinal=0)
    fields = CarriedFields(text="text", ids=None, source="it", keep=(("it", kind),))
    return [value for batch in read_part_batches(part, fields) for value in batch.rows[column]]


@pytest.mark.parametrize(
    ("kind", "values", "found"),
    [
        ("integer", ["0", " -17 ", "+3", "", f"{2**63 - 1}"], [0, -17, 3, None, 2**63 - 1]),
        ("number", ["0.5", "-1e-3", "7", ".5", "3.", "", "1e-300"], [0.5, -0.001, 7.0, 0.5, 3.0, None, 1e-300]),
        ("boolean", ["true", "False", "TRUE", ""], [True, False, True, None]),
        ("string", ["0", " a ", ""], ["0", " a ", ""]),
    ],
)
def test_values_of_csv_are_read_as_their_type(
    tmp_path: Path, kind: ColumnType, values: list[str], found: list[Any]
) -> None:
    assert read_carried(tmp_path / "a.csv", kind, values) == found


@pytest.mark.parametrize(
    ("kind", "value"),
    [("integer", "1.5"), ("integer", "seven"), ("number", "nan"), ("number", "1e999"), ("boolean", "yes")],
)
def test_a_value_that_is_not_of_the_type_is_named_with_its_row(tmp_path: Path, kind: ColumnType, value: str) -> None:
    with raises(CarriedValueError, "a.csv", 2, f"'{value}'", "`document.keep_fields`", kind):
        read_carried(tmp_path / "a.csv", kind, ["", value])


def test_a_whole_number_too_large_for_the_column_is_named_not_dropped(tmp_path: Path) -> None:
    with raises(CarriedValueError, 2, 2**63, "`document.keep_fields`", "integer"):
        read_carried(tmp_path / "a.csv", "integer", ["1", f"{2**63}"])
    (tmp_path / "a.jsonl").write_text('{"text": "a", "it": 18446744073709551615}\n')
    assert read_carried_column(tmp_path / "a.jsonl", "number") == [float(2**64)]


def test_a_source_value_carried_as_a_number_is_named_as_written(tmp_path: Path) -> None:
    assert read_carried(tmp_path / "a.csv", "integer", ["2019", "2020"], "source") == ["2019", "2020"]


def test_whole_numbers_without_an_exact_float_become_the_nearest_one(tmp_path: Path) -> None:
    with ParquetRowWriter(tmp_path / "a.parquet", {"n": "number"}) as rows:
        rows.add({"n": [2**53 + 1, None, 7]})
    assert pq.read_table(tmp_path / "a.parquet")["n"].to_pylist() == [float(2**53), None, 7.0]
