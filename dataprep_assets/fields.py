"""The fields of a row that a declaration names: `text`, or `data.text` inside an object.

A field whose whole name is there comes before the object that a dot leads into: a row with a key `data.text` is read by
that key. Every key that names a field of rows is read by these functions, so that dots mean the same in all of them.

Entry points: `value_at`, `values_at`, `names_beside`; of Arrow `narrowed`, `column_at`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def value_at(row: Any, path: str, absent: Any = None) -> Any:
    """Return the value of a field of a row; `absent` if the row has no such field."""
    if not isinstance(row, Mapping):
        return absent
    if path in row:
        return row[path]
    name, dot, rest = path.partition(".")
    return value_at(row.get(name), rest, absent) if dot else absent


def values_at(rows: Iterable[Mapping[str, Any]], path: str) -> list[Any]:
    """Return the value of a field of each row; None for a row without it."""
    # the loop of every row: a plain name costs no call
    return [value_at(row, path) for row in rows] if "." in path else [row.get(path) for row in rows]


def names_beside(rows: Sequence[Any], path: str) -> tuple[str, list[str]]:
    """Return what is there where a path ends that no row has: the object that it led into, and its fields in any row.

    The object is empty for the row itself. `a.b.c` of rows with an object `a` that has `x` gives `a` and `x`.
    """
    name, dot, rest = path.partition(".")
    inner = [row[name] for row in rows if isinstance(row.get(name), Mapping)] if dot else []
    if not inner:
        return "", list(dict.fromkeys(key for row in rows for key in row))
    object_, names = names_beside(inner, rest)
    return f"{name}.{object_}" if object_ else name, names


def inner_type(schema: Any, path: str) -> Any:
    """Return the Arrow type of a field of a `pyarrow.Schema` or struct; None if there is none of that name."""
    import pyarrow.types as types

    if path in schema.names:
        return schema.field(path).type
    name, dot, rest = path.partition(".")
    if not dot or name not in schema.names or not types.is_struct(kind := schema.field(name).type):
        return None
    return inner_type(kind, rest)


def names_of_type(schema: Any, path: str) -> tuple[str, list[str]]:
    """Return the same as `names_beside`, of a `pyarrow.Schema` or struct."""
    import pyarrow.types as types

    name, dot, rest = path.partition(".")
    if not dot or name not in schema.names or not types.is_struct(kind := schema.field(name).type):
        return "", list(schema.names)
    object_, names = names_of_type(kind, rest)
    return f"{name}.{object_}" if object_ else name, names


def top_name(names: Sequence[str], path: str) -> str:
    """Return the column, of these, that holds a field."""
    return path if path in names else path.partition(".")[0]


def column_at(batch: Any, path: str) -> Any:
    """Return the array of a field of a `pyarrow.RecordBatch` that has it; null where an object around it is null."""
    import pyarrow.compute as pc

    if path in batch.schema.names:
        return batch.column(path)
    name, _, rest = path.partition(".")
    array = batch.column(name)
    while rest not in array.type.names:
        name, _, rest = rest.partition(".")
        array = pc.struct_field(array, name)
    return pc.struct_field(array, rest)


def narrowed(batch: Any, paths: Sequence[str]) -> Any:
    """Return a `pyarrow.RecordBatch` of only the columns, and fields of structs, that some paths name."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name, rests in _by_name(batch.schema, paths).items():
        column = batch.column(name)
        columns[name] = column if None in rests else _narrowed_struct(column, [rest for rest in rests if rest])
    return pa.RecordBatch.from_pydict(columns) if columns else batch.select([])


def _narrowed_struct(array: Any, paths: Sequence[str]) -> Any:
    import pyarrow as pa

    found: dict[str, Any] = {}
    for name, rests in _by_name(array.type, paths).items():
        inner = array.field(name)
        found[name] = inner if None in rests else _narrowed_struct(inner, [rest for rest in rests if rest])
    if not found:
        return array
    return pa.StructArray.from_arrays([*found.values()], names=[*found], mask=array.is_null())


def _by_name(schema: Any, paths: Sequence[str]) -> dict[str, list[str | None]]:
    """Return column → what of it some paths name: None for all of it, else paths inside of it."""
    import pyarrow.types as types

    found: dict[str, list[str | None]] = {}
    for path in paths:
        name = top_name(schema.names, path)
        if name in schema.names:
            is_inside = name != path and types.is_struct(schema.field(name).type)
            found.setdefault(name, []).append(path.partition(".")[2] if is_inside else None)
    return found
