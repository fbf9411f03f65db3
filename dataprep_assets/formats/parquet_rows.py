"""Rows as Parquet: the functions with which every format opens, writes and reads such files, and JSON columns.

Files have compressed pages with checksums and no statistics, so the same rows give the same bytes with the same version
of pyarrow. A JSON column (`arrow.json`, or `list<arrow.json>` with a JSON value per item) is for values that Arrow
would change, because it gives all objects of a column the same keys.

Entry points: `open_writer`, `open_reader`; `write_rows`, `read_rows`; `parse_schema`, `to_table`, `list_stored_values`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dataprep_assets.errors import FormatError
from dataprep_assets.stores.files import create_durably

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def open_writer(file: Path | IO[bytes], schema: "pa.Schema", *, compression: str = "zstd") -> "pq.ParquetWriter":
    """Return a writer of a new file, which closes at the end of its `with` block."""
    import pyarrow.parquet as pq

    return pq.ParquetWriter(file, schema, compression=compression, write_statistics=False, write_page_checksum=True)


@contextmanager
def open_reader(path: Path) -> Iterator["pq.ParquetFile"]:
    """Open a file for reading with verified pages.

    Raises FileNotFoundError, or FormatError if the file cannot be read, including errors inside the `with` block.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read as Parquet: {error}. Rebuild the artifact") from error


def require_schema(path: Path, actual: "pa.Schema", expected: "pa.Schema") -> None:
    """Raise FormatError if the schema of a file differs from the expected one."""
    if not actual.equals(expected):
        raise FormatError(
            f"{path}: its columns must be {_describe(expected)}, not {_describe(actual)}. Rebuild the artifact"
        )


def _describe(schema: "pa.Schema") -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def write_rows(path: Path, schema: "pa.Schema", rows: Iterable[Mapping[str, Any]], *, group: int) -> None:
    """Write rows to the new file `path` in row groups of `group` rows. The file gets its name when it is complete."""
    remaining_rows = iter(rows)
    with create_durably(path) as file, open_writer(file, schema) as writer:
        while block := list(islice(remaining_rows, group)):
            columns = {name: [row.get(name) for row in block] for name in schema.names}
            writer.write_table(to_table(columns, schema), row_group_size=group)


def read_rows(path: Path, schema: "pa.Schema | None" = None, *, group: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, with parsed JSON, by reading up to `group` rows at a time.

    Raises FormatError if the file is damaged, or does not have the given schema.
    """
    with open_reader(path) as file:
        if schema is not None:
            require_schema(path, file.schema_arrow, schema)
        for batch in file.iter_batches(group, use_threads=False):
            columns = {name: _read_values(batch.column(name)) for name in batch.schema.names}
            for number in range(batch.num_rows):
                yield {name: values[number] for name, values in columns.items()}


def parse_schema(types: Mapping[str, str]) -> "pa.Schema":
    """Return the schema of columns with these types: `arrow.json`, a name of Arrow, or a list of either."""
    import pyarrow as pa

    def find_type(name: str) -> "pa.DataType":
        item = name.removeprefix("list<").removesuffix(">")
        value = pa.json_() if item == "arrow.json" else pa.type_for_alias(item)
        return value if item == name else pa.list_(value)

    return pa.schema([(name, find_type(type_name)) for name, type_name in types.items()])


def to_table(columns: Mapping[str, Sequence[Any]], schema: "pa.Schema") -> "pa.Table":
    """Return the columns as a table. None becomes null, even in a JSON column."""
    import pyarrow as pa

    return pa.Table.from_arrays([_build_array(columns[field.name], field.type) for field in schema], schema=schema)


def _build_array(values: Sequence[Any], kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    from dataprep_assets.formats.json_columns import to_json

    if isinstance(kind, pa.JsonType):
        texts = [None if value is None else to_json(value) for value in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(texts, pa.string()))
    if _is_json_list(kind):
        lists = [None if value is None else [to_json(item) for item in value] for value in values]
        stored = pa.array(lists, pa.list_(pa.string()))
        items = pa.ExtensionArray.from_storage(kind.value_type, stored.values)
        return pa.ListArray.from_arrays(stored.offsets, items, type=kind, mask=stored.is_null())
    return pa.array(values, kind)


def _is_json_list(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return isinstance(kind, pa.ListType) and isinstance(kind.value_type, pa.JsonType)


def list_stored_values(column: "pa.Array") -> list[Any]:
    """Return the values of a column as they are stored: lists of numbers as arrays, JSON as text."""
    import pyarrow as pa

    if isinstance(column, pa.ExtensionArray):
        return list(column.storage.to_pylist())
    if not isinstance(column, pa.ListArray):
        return list(column.to_pylist())
    items = column.values
    values = items.storage.to_pylist() if isinstance(items, pa.ExtensionArray) else items.to_numpy(zero_copy_only=False)
    offsets, is_valid = column.offsets.to_pylist(), column.is_valid().to_pylist()
    return [values[offsets[i] : offsets[i + 1]] if is_valid[i] else None for i in range(len(column))]


def _read_values(column: "pa.Array") -> list[Any]:
    import pyarrow as pa

    if isinstance(column.type, pa.JsonType):
        return [None if text is None else json.loads(text) for text in list_stored_values(column)]
    if _is_json_list(column.type):
        return [None if texts is None else [*map(json.loads, texts)] for texts in list_stored_values(column)]
    return list(column.to_pylist())
