"""Arrow arrays of Python's values, and numpy's of Arrow's, by way of their buffers.

`pyarrow.array`, `scalar` and `to_numpy` import pandas where it is installed (pyarrow 26.0), which takes each process
more than half a second; nothing here does. The layout of the buffers is that of Arrow's columnar format, 1.5.

Entry points: `array_of`, `table_of`, `numbers_of`, `booleans_of`.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBERS = {"int64": np.int64, "double": np.float64}
_LONGEST = (1 << 31) - 1
"""Most bytes of all strings of an array: their ends are int32."""


def array_of(values: Sequence[Any] | NDArray[Any], kind: "pa.DataType") -> "pa.Array":
    """The array of some values, of type `string`, `int64`, `double` or `bool`; None is null.

    Raises OverflowError for an integer beyond 64 bits, and strings of more than 2 GiB together.
    """
    import pyarrow as pa

    count = len(values)
    nulls = 0 if isinstance(values, np.ndarray) else values.count(None)
    if nulls == count:
        return pa.nulls(count, kind)
    validity = None
    if nulls:
        validity = pa.py_buffer(_bits([value is not None for value in values]))
        empty = "" if pa.types.is_string(kind) else 0
        values = [empty if value is None else value for value in values]
    if pa.types.is_string(kind):
        data = _joined(values)
    elif pa.types.is_boolean(kind):
        data = [_bits(values)]
    else:
        data = [np.ascontiguousarray(values, _NUMBERS[str(kind)])]
    return pa.Array.from_buffers(kind, count, [validity, *map(pa.py_buffer, data)], nulls)


def table_of(columns: Mapping[str, Any], schema: "pa.Schema") -> "pa.Table":
    """The table of some columns, each Python's values or an array, in the order of the schema."""
    import pyarrow as pa

    ready = pa.Array, pa.ChunkedArray
    found = ((columns[field.name], field.type) for field in schema)
    arrays = [one if isinstance(one, ready) else array_of(one, kind) for one, kind in found]
    return pa.Table.from_arrays(arrays, schema=schema)


def numbers_of(column: "pa.Array | pa.ChunkedArray") -> NDArray[Any]:
    """The values of a column of type `int64` or `double`: shape `(rows,)`; where it has a null any."""
    kind = _NUMBERS[str(column.type)]
    parts = (np.frombuffer(one.buffers()[1], kind)[one.offset :][: len(one)] for one in _chunks(column))
    return np.concatenate([np.empty(0, kind), *parts])


def booleans_of(column: "pa.Array | pa.ChunkedArray") -> NDArray[np.bool_]:
    """The values of a column of type `bool` without nulls: shape `(rows,)`."""
    bits = ((one, np.frombuffer(one.buffers()[1], np.uint8)) for one in _chunks(column))
    parts = (np.unpackbits(some, bitorder="little")[one.offset :][: len(one)] for one, some in bits)
    return np.concatenate([np.empty(0, np.uint8), *parts]).astype(np.bool_)


def _chunks(column: "pa.Array | pa.ChunkedArray") -> list["pa.Array"]:
    """The arrays of a column that are not empty: an empty one may have no buffer."""
    return [one for one in getattr(column, "chunks", [column]) if len(one)]


def _bits(values: Sequence[Any] | NDArray[Any]) -> NDArray[np.uint8]:
    return np.packbits(np.asarray(values, np.bool_), bitorder="little")


def _joined(values: Sequence[str] | NDArray[Any]) -> list[Any]:
    """The ends and the bytes of strings, the first of which begins at 0."""
    text = "".join(values)
    if text.isascii():
        data, sizes = text.encode(), map(len, values)
    else:
        encoded = [one.encode() for one in values]
        data, sizes = b"".join(encoded), map(len, encoded)
    if len(data) > _LONGEST:
        raise OverflowError(f"{len(data):,} bytes of text in one array; {_LONGEST:,} are the most")
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(sizes, np.int32, len(values)), out=ends[1:])
    return [ends, data]
