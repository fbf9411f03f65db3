"""Access to the fields of a row by name: `text`, or `data.text` for a field inside an object.

A field with the whole name takes precedence over a field inside an object: in a row with a key `data.text`, that key is
read. All keys that name fields of rows use these functions, so dots always have the same meaning.

Entry points: `value_at`, `values_at`, `find_siblings` and `find_strings` for rows; `select_fields` and `column_at` for
Arrow data.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any


def value_at(row: Any, path: str, default: Any = None) -> Any:
    """Return the value of a field of a row; `default` if the row has no such field."""
    if not isinstance(row, Mapping):
        return default
    if path in row:
        return row[path]
    name, dot, inner_path = path.partition(".")
    return value_at(row.get(name), inner_path, default) if dot else default


def values_at(rows: Iterable[Mapping[str, Any]], path: str) -> list[Any]:
    """Return the value of a field of each row; None for a row without it."""
    # Avoid a function call per row for a plain name, because this runs for every row of a dataset.
    return [value_at(row, path) for row in rows] if "." in path else [row.get(path) for row in rows]


def find_strings(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value, in order, without the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from find_strings(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from find_strings(item)


def find_siblings(rows: Sequence[Any], path: str) -> tuple[str, list[str]]:
    """Return the innermost existing object on a path that no row has, and the object's fields in any row.

    The object is "" for the row itself. For `a.b.c`, rows with an object `a` that has a field `x` give `a` and `x`.
    """
    name, dot, inner_path = path.partition(".")
    inner = [row[name] for row in rows if isinstance(row.get(name), Mapping)] if dot else []
    if not inner:
        return "", list(dict.fromkeys(key for row in rows for key in row))
    object_, names = find_siblings(inner, inner_path)
    return f"{name}.{object_}" if object_ else name, names


def find_inner_path(rows: Iterable[Mapping[str, Any]], name: str) -> str | None:
    """Return the path of a field inside an object of any row, such as `data.text` for `text`; None if there is none."""
    paths = (f"{key}.{name}" for row in rows for key in row if value_at(row[key], name) is not None)
    return next(paths, None)


def find_type(schema: Any, path: str) -> Any:
    """Return the Arrow type of a field of a `pyarrow.Schema` or struct; None if no field has this name."""
    import pyarrow.types as types

    if path in schema.names:
        return schema.field(path).type
    name, dot, inner_path = path.partition(".")
    if not dot or name not in schema.names or not types.is_struct(kind := schema.field(name).type):
        return None
    return find_type(kind, inner_path)


def find_type_siblings(schema: Any, path: str) -> tuple[str, list[str]]:
    """Return the result of `find_siblings` for a `pyarrow.Schema` or struct."""
    import pyarrow.types as types

    name, dot, inner_path = path.partition(".")
    if not dot or name not in schema.names or not types.is_struct(kind := schema.field(name).type):
        return "", list(schema.names)
    object_, names = find_type_siblings(kind, inner_path)
    return f"{name}.{object_}" if object_ else name, names


def find_inner_type_path(schema: Any, name: str) -> str | None:
    """Return the result of `find_inner_path` for a `pyarrow.Schema`."""
    return next((path for key in schema.names if find_type(schema, path := f"{key}.{name}") is not None), None)


def find_top_name(names: Sequence[str], path: str) -> str:
    """Return the name of the column, one of `names`, that contains a field."""
    return path if path in names else path.partition(".")[0]


def column_at(batch: Any, path: str) -> Any:
    """Return the array of an existing field of a `pyarrow.RecordBatch`; null where an enclosing object is null."""
    import pyarrow.compute as pc

    if path in batch.schema.names:
        return batch.column(path)
    name, _, inner_path = path.partition(".")
    array = batch.column(name)
    while inner_path not in array.type.names:
        name, _, inner_path = inner_path.partition(".")
        array = pc.struct_field(array, name)
    return pc.struct_field(array, inner_path)


def select_fields(batch: Any, paths: Sequence[str]) -> Any:
    """Return a `pyarrow.RecordBatch` with only the columns and struct fields that some paths name."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    for name, rests in _group_paths_by_column(batch.schema, paths).items():
        column = batch.column(name)
        columns[name] = (
            column
            if None in rests
            else _select_struct_fields(column, [inner_path for inner_path in rests if inner_path])
        )
    return pa.RecordBatch.from_pydict(columns) if columns else batch.select([])


def _select_struct_fields(array: Any, paths: Sequence[str]) -> Any:
    import pyarrow as pa

    fields: dict[str, Any] = {}
    for name, rests in _group_paths_by_column(array.type, paths).items():
        inner = array.field(name)
        fields[name] = (
            inner if None in rests else _select_struct_fields(inner, [inner_path for inner_path in rests if inner_path])
        )
    if not fields:
        return array
    return pa.StructArray.from_arrays([*fields.values()], names=[*fields], mask=array.is_null())


def _group_paths_by_column(schema: Any, paths: Sequence[str]) -> dict[str, list[str | None]]:
    """Return a mapping from each column to the parts that `paths` select: None for the whole, else paths inside it."""
    import pyarrow.types as types

    paths_by_name: dict[str, list[str | None]] = {}
    for path in paths:
        name = find_top_name(schema.names, path)
        if name in schema.names:
            is_inside = name != path and types.is_struct(schema.field(name).type)
            paths_by_name.setdefault(name, []).append(path.partition(".")[2] if is_inside else None)
    return paths_by_name
