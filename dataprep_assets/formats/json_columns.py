"""JSON values as an Arrow column from which `datasets` and pyarrow return equal values.

Values of one JSON type become a native column: strings, integers, decimal numbers, booleans, lists of one type, or
objects whose keys and types are the same in every row. All other columns contain strings: a string is stored unchanged,
and any other value as JSON text. `encode` also returns the format of each value, which `decode` needs.

The feature `Json` of `datasets` is not used, because its parser changes the last digits of decimal numbers
(`datasets` 5.2.0).

Entry points: `Shape`, `merge_value`, `build_column_type`, `encode`, `decode`, `is_equal`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Union

if TYPE_CHECKING:
    import pyarrow as pa

ValueFormat = Literal["none", "text", "json", "native"]
"""Form of a row's value: absent, a text as it is, JSON text, or a value of the column's native type."""
_INT64 = range(-(1 << 63), 1 << 63)


class _AbsentValue:
    """The value of a record without the field, which is not `null`."""

    def __repr__(self) -> str:
        return "ABSENT_VALUE"


ABSENT_VALUE = _AbsentValue()


@dataclass(frozen=True)
class Scalar:
    """A string, an integer, a decimal number or a boolean."""

    name: Literal["string", "int64", "float64", "bool"]


@dataclass(frozen=True)
class ListOf:
    """A list; `item` is None if all lists so far are empty."""

    item: Union["Shape", None]


@dataclass(frozen=True)
class ObjectOf:
    """An object with these keys in every row."""

    fields: tuple[tuple[str, "Shape"], ...]


@dataclass(frozen=True)
class Mixed:
    """Values that no Arrow type represents exactly."""


Shape = Scalar | ListOf | ObjectOf | Mixed
_MIXED = Mixed()


def merge_value(shape: Shape | None, value: Any) -> Shape:
    """Return the shape of a column after one more value; `shape` is None before the first value."""
    return _merge(shape, _find_shape(value))


def _find_shape(value: Any) -> Shape:
    match value:
        case bool():  # match bool before int, because a bool is an int in Python
            return Scalar("bool")
        case int():
            return Scalar("int64") if value in _INT64 else _MIXED
        case float():
            return Scalar("float64")
        case str():
            return Scalar("string")
        case list():
            return _find_list_shape(value)
        case dict() if value:
            fields = tuple((key, _find_shape(value[key])) for key in sorted(value))
            return _MIXED if any(isinstance(shape, Mixed) for _, shape in fields) else ObjectOf(fields)
        case _:  # null and empty objects, which a column of objects cannot distinguish
            return _MIXED


def _find_list_shape(values: Iterable[Any]) -> Shape:
    item: Shape | None = None
    for value in values:
        item = merge_value(item, value)
        if isinstance(item, Mixed):
            return _MIXED
    return ListOf(item)


def _merge(old: Shape | None, new: Shape) -> Shape:
    if old is None or old == new:
        return new
    match old, new:
        case ListOf(item=None), ListOf():
            return new
        case ListOf(), ListOf(item=None):
            return old
        case ListOf(item=Scalar() | ListOf() | ObjectOf() as one_value), ListOf(
            item=Scalar() | ListOf() | ObjectOf() as other
        ):
            item = _merge(one_value, other)
            return _MIXED if isinstance(item, Mixed) else ListOf(item)
        case ObjectOf(), ObjectOf() if [key for key, _ in old.fields] == [key for key, _ in new.fields]:
            fields = tuple((key, _merge(a, b)) for (key, a), (_, b) in zip(old.fields, new.fields, strict=True))
            return _MIXED if any(isinstance(shape, Mixed) for _, shape in fields) else ObjectOf(fields)
    return _MIXED


def build_column_type(shape: Shape | None) -> "pa.DataType":
    """Return the Arrow type of a column with this shape."""
    import pyarrow as pa

    match shape:
        case Scalar(name=name):
            return {"string": pa.string(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_()}[name]
        case ListOf(item=item) if item is not None and is_native(shape):
            return pa.list_(build_column_type(item))
        case ObjectOf(fields=fields) if is_native(shape):
            return pa.struct([pa.field(key, build_column_type(field)) for key, field in fields])
        case _:
            return pa.string()


def is_native(shape: Shape | None) -> bool:
    """Return whether values are stored in their own type, not as JSON text.

    A column that contains only empty lists has no type, so its values are JSON text. A column of strings is not native,
    because a string is stored unchanged in either case.
    """
    match shape:
        case Scalar(name=name):
            return name != "string"
        case ListOf() | ObjectOf():
            return _is_typed(shape)
        case _:
            return False


def _is_typed(shape: Shape | None) -> bool:
    match shape:
        case ListOf(item=item):
            return item is not None and _is_typed(item)
        case ObjectOf(fields=fields):
            return all(_is_typed(field) for _, field in fields)
        case _:
            return isinstance(shape, Scalar)


def encode(value: Any, shape: Shape | None) -> tuple[Any, ValueFormat]:
    """Return the stored form of a value of a column with this shape, and its format; ABSENT_VALUE becomes null."""
    if value is ABSENT_VALUE:
        return None, "none"
    if is_native(shape):
        return value, "native"
    return (value, "text") if isinstance(value, str) else (to_json(value), "json")


def decode(stored_value: Any, format: ValueFormat) -> Any:
    """Return the value of a stored form; raise ValueError if the form does not match its format."""
    match format:
        case "none" if stored_value is None:
            return ABSENT_VALUE
        case "json" if isinstance(stored_value, str):
            return json.loads(stored_value)
        case "text" if isinstance(stored_value, str):
            return stored_value
        case "native" if stored_value is not None:
            return stored_value
    raise ValueError(f"the format {format} does not support values of type {type(stored_value).__name__}")


def to_json(value: Any) -> str:
    """Return the compact JSON text of a value. Equal values with the same order of keys have equal texts."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def is_equal(one_value: Any, other_value: Any) -> bool:
    """Return whether two JSON values have the same type and value: `true`, `1` and `1.0` differ."""
    if type(one_value) is not type(other_value):
        return False
    match one_value:
        case dict():
            return one_value.keys() == other_value.keys() and all(
                is_equal(one_value[key], other_value[key]) for key in one_value
            )
        case list():
            return len(one_value) == len(other_value) and all(map(is_equal, one_value, other_value))
    return bool(one_value == other_value)
