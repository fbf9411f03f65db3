"""Arrays by their buffers are those of `pyarrow.array`, and nothing imports pandas for them."""

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataprep_assets.formats.arrow_arrays import array_of, booleans_of, numbers_of, table_of

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["a", None, "é", "", None, "\U0001f600"]),
    (pa.string(), ["plain"] * 9),
    (pa.int64(), [1, None, -5, 2**63 - 1, -(2**63)]),
    (pa.float64(), [1.5, None, 2, float("inf")]),
    (pa.bool_(), [True, None, False, True, True, True, False, True, True]),
]
ALONE = """
import sys
import pyarrow as pa
from dataprep_assets.formats.arrow_arrays import array_of, booleans_of, numbers_of, table_of
table = table_of({"n": [1, 2], "s": ["a", None]}, pa.schema([("n", pa.int64()), ("s", pa.string())]))
numbers_of(table["n"]), booleans_of(table["s"].is_null())
assert "pandas" not in sys.modules
pa.array([1])
assert "pandas" in sys.modules, "pyarrow imports it no more: this module can go"
"""


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=str)
def test_arrays_are_those_of_arrow(kind: pa.DataType, values: list[Any]) -> None:
    for some in (values, values[:1], [None] * 3, []):
        found = array_of(some, kind)
        found.validate(full=True)
        assert found.equals(pa.array(some, kind))


def test_columns_of_slices_and_chunks_come_back_as_numbers() -> None:
    for kind in (pa.int64(), pa.float64()):
        chunks = pa.chunked_array([pa.array([1, 2, 3], kind).slice(1), pa.array([], kind), pa.array([4], kind)])
        assert numbers_of(chunks).tolist() == [2, 3, 4]
        assert numbers_of(chunks.chunk(0)).tolist() == [2, 3]
    bits = np.random.default_rng(1).random(100) < 0.5
    array = pa.array(bits.tolist(), pa.bool_())
    assert booleans_of(array.slice(3, 50)).tolist() == bits[3:53].tolist()
    assert booleans_of(pa.chunked_array([array.slice(5), array.slice(0, 2)])).tolist() == [*bits[5:], *bits[:2]]
    assert numbers_of(array_of(np.arange(3), pa.int64())).tolist() == [0, 1, 2]


def test_a_table_has_the_columns_of_its_schema_in_their_order() -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    table = table_of({"s": pa.array(["a", "b"]), "n": [1, None]}, schema)
    assert table.schema == schema
    assert table.to_pydict() == {"n": [1, None], "s": ["a", "b"]}


def test_too_large_an_integer_is_refused() -> None:
    with pytest.raises(OverflowError):
        array_of([2**63], pa.int64())


def test_nothing_imports_pandas() -> None:
    pytest.importorskip("pandas")
    subprocess.run([sys.executable, "-c", ALONE], check=True)
