"""The rows of the document table: the fields carried from a source row, and the Parquet files with the rows.

A row of the table is a row of the source, in source order, including rows that do not become documents. A refused
record only has its reason in `bad`. Every file of the table has the same rows in the same order.

Entry points: `CarriedFields`, `DocumentBatch`, `build_batch`; `ParquetRowWriter`, `read_joined_tables`,
`split_by_file`.
"""

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from dataprep_assets.curation.documents import find_source
from dataprep_assets.curation.rewriters.changes import count_changed_characters
from dataprep_assets.errors import FormatError, SourceError
from dataprep_assets.sources.readers.read_options import MAX_RECORD_BYTES
from dataprep_assets.stores.files import create_durably
from dataprep_assets.tokenization.document_ids import DocumentIds

# Import the readers only in the functions that read, because every command imports this module for names of columns.
if TYPE_CHECKING:
    import pyarrow as pa

    from dataprep_assets.sources.readers.records import Block, RecordFields

ColumnType = Literal["string", "integer", "number", "boolean"]
Columns = Mapping[str, ColumnType]
"""Name → type of columns."""

DECIDED: Columns = {"kept": "boolean", "reason": "string", "representative": "string", "tokens": "integer"}
"""Columns that are known after rules and tokenization.

They are whether the row is kept, the reason if it is not, the kept document that represents a duplicate, and the number
of tokens. Tokens include those added around a document.
"""
COLUMN_DESCRIPTIONS = {
    "file": "Path of the source file.",
    "row": "Number of the row in its file, from 1.",
    "id": "Hash of the document's id, as 16 hexadecimal digits.",
    "source": "Source of the row: a declared field, or the folder of its file.",
    "host": "Host of the document's URL.",
    "license": "License of the document; null if it is not known.",
    "bytes": "Length of the text in UTF-8, in bytes.",
    "characters": "Length of the text, in characters.",
    "bad": "Reason why the record is not a document; null for a document.",
    "kept": "Whether the row is kept.",
    "reason": "Reason why the row is dropped, such as the name of a rule; null if it is kept.",
    "representative": "Kept document that the dropped duplicate is similar to, as `file:row`.",
    "similarity": "Similarity of the dropped duplicate to its representative, from 0 to 1.",
    "tokens": "Number of tokens, including those added around the text; null for a dropped row.",
}
"""Column of a document table → a sentence about it."""
LICENSE = "license"
"""The column with the license of a document."""
_UNKNOWN_LICENSES = frozenset(
    (
        *("", "-", "?", "n/a", "na", "nan", "no license", "noassertion", "none", "not specified", "null", "undefined"),
        *("unknown", "unspecified"),
    )
)
"""Values of a license field that mean that the license is not known, in lower case; `noassertion` is from SPDX."""
OTHERS = ("file", "row", "id", "bad")
"""Further columns that tables may have. Rules of a blend cannot name them, but its table has them."""
ROW_GROUP = 1 << 16
"""Rows per row group, which a reader loads at once."""
_ARROW_TYPES: Mapping[ColumnType, str] = {"string": "string", "integer": "int64", "number": "double", "boolean": "bool"}
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_PYTHON_TYPES: Mapping[ColumnType, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_LIMITS: Mapping[ColumnType, tuple[float, float]] = {
    "integer": (-(1 << 63), (1 << 63) - 1),
    "number": (-sys.float_info.max, sys.float_info.max),
}


def build_schema(columns: Columns) -> "pa.Schema":
    """Return the Arrow schema of columns."""
    import pyarrow as pa

    return pa.schema([pa.field(name, pa.type_for_alias(_ARROW_TYPES[kind])) for name, kind in columns.items()])


def build_table(values: Mapping[str, Any], columns: Columns) -> "pa.Table":
    """Return a table of columns, from column → its values: a list or an Arrow array."""
    import pyarrow as pa

    # Convert integers here, because Arrow raises an error for integers that a float cannot represent exactly.
    ready = {
        name: [None if number is None else float(number) for number in column]
        if kind == "number" and isinstance(column := values[name], list)
        else values[name]
        for name, kind in columns.items()
    }
    return pa.Table.from_pydict(ready, schema=build_schema(columns))


def has_type(value: Any, kind: ColumnType) -> bool:
    """Return whether a JSON value has a column's type and is within its range."""
    if not isinstance(value, _PYTHON_TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    # The limits may be floats, because Python compares an integer with a float exactly.
    minimum, maximum = _LIMITS.get(kind, (0, 0))
    return type(value) is not int or minimum <= value <= maximum


class CarriedValueError(SourceError):
    """Error for a carried value that does not have its declared type. `keys` is the path of the field's YAML key."""

    # All arguments have defaults, because an error from a worker process is rebuilt from its message and attributes.
    def __init__(self, message: str = "", *, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys


@dataclass(frozen=True, kw_only=True)
class CarriedFields:
    """The fields of a row in the table that do not require analyzing its text. Picklable.

    Attributes:
        text: The field with the text.
        ids: The id scheme; None if documents have no ids.
        source: The field that names a document's source; None to use the folder of its file.
        url: The field with its URL, whose host is stored; None for no column `host`.
        license: The field with its license (`_normalize_license`); None for no column `license`.
        keep: The carried fields, each with its type; the dot in `meta.lang` selects a key of an object.
        max_record_bytes: Size above which a record is bad.
        sensitive: Whether messages must not show values.
        rewriters: The rewriters of the texts, each with a column for the number of characters that it changed.
    """

    text: str
    ids: DocumentIds | None
    source: str | None = None
    url: str | None = None
    license: str | None = None
    keep: tuple[tuple[str, ColumnType], ...] = ()
    max_record_bytes: int = MAX_RECORD_BYTES
    sensitive: bool = False
    rewriters: tuple[str, ...] = ()

    @property
    def columns(self) -> dict[str, ColumnType]:
        """Name → type of each column of the carried fields, in order."""
        return {
            "file": "string",
            "row": "integer",
            **({} if self.ids is None else {"id": "string"}),
            "source": "string",
            **({} if self.url is None else {"host": "string"}),
            **({} if self.license is None else {LICENSE: "string"}),
            **{name_column(path): kind for path, kind in self.keep},
            "bytes": "integer",
            "characters": "integer",
            **{name_rewritten_column(rewriter): "integer" for rewriter in self.rewriters},
            "bad": "string",
        }

    @property
    def column_descriptions(self) -> dict[str, str]:
        """Name → a sentence about each column of a table with these fields."""
        return {**COLUMN_DESCRIPTIONS, **describe_carried_columns((path for path, _ in self.keep), self.rewriters)}

    @property
    def records(self) -> "RecordFields":
        """The fields to read."""
        from dataprep_assets.sources.readers.records import RecordFields

        paths = [self.source, self.url, self.license, *(path for path, _ in self.keep)]
        return RecordFields(
            self.text,
            None if self.ids is None else self.ids.id_field,
            self.max_record_bytes,
            tuple(dict.fromkeys(filter(None, paths))),
        )

    @property
    def key_parts(self) -> list[Any]:
        """The values that are part of an artifact key."""
        ids = None if self.ids is None else self.ids.key_parts()
        # Add the version of the hosts, the license and the rewriters only if they are declared, so that the keys of
        # other datasets stay the same.
        host_parts = [] if self.url is None else ["host", 2]
        license_parts = [] if self.license is None else [LICENSE, self.license]
        rewriter_parts = [list(self.rewriters)] if self.rewriters else []
        kept_parts = [list(pair) for pair in self.keep]
        parts = [self.text, ids, self.source, self.url, kept_parts, self.max_record_bytes]
        return [*parts, *host_parts, *license_parts, *rewriter_parts]


def name_rewritten_column(rewriter: str) -> str:
    """Return the column with the number of characters that a rewriter changed."""
    return f"rewritten_{rewriter}"


def describe_carried_columns(fields: Iterable[str], rewriters: Iterable[str]) -> dict[str, str]:
    """Return a sentence about each column with a field of the source rows, or with the changes of a rewriter."""
    return {
        **{name_column(path): f"Field `{path}` of the source row." for path in fields},
        **{
            name_rewritten_column(rewriter): f"Number of characters that the rewriter `{rewriter}` changed."
            for rewriter in rewriters
        },
    }


def name_column(path: str) -> str:
    """Return the column of a field: dots become `_`, for SQL."""
    return path.replace(".", "_")


@dataclass(frozen=True)
class DocumentBatch:
    """Some rows of a source file.

    Attributes:
        rows: Column → values of the carried fields of every row, in source order.
        good: Positions of the rows that have a text.
        texts: The texts of these rows.
        label: The file.
        types: Column → type of the carried fields.
    """

    rows: Mapping[str, list[Any]]
    good: list[int]
    texts: list[str] = field(repr=False)
    label: str
    types: Columns = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows["row"])

    def slice_texts(self, range_: slice) -> Self:
        """Return the rows with a text in a slice of these rows."""
        good = self.good[range_]
        rows = {name: [values[index] for index in good] for name, values in self.rows.items()}
        return replace(self, rows=rows, good=list(range(len(good))), texts=self.texts[range_])

    def find_row(self, text: int) -> int:
        """Return the row number in the source file, from 1, of the text with this index."""
        number: int = self.rows["row"][self.good[text]]
        return number

    def expand_to_rows(self, values: list[Any]) -> list[Any]:
        """Expand the values of the texts to all rows; rows without a text get None."""
        if len(values) == len(self):
            return values
        row_values: list[Any] = [None] * len(self)
        for position, value in zip(self.good, values, strict=True):
            row_values[position] = value
        return row_values

    @cached_property
    def good_rows(self) -> Mapping[str, list[Any]]:
        """The carried fields of the rows that have a text."""
        if len(self.good) == len(self):
            return self.rows
        return {name: [values[index] for index in self.good] for name, values in self.rows.items()}


def build_batch(records: "Block", label: str, fields: CarriedFields, *, all_texts: bool = False) -> DocumentBatch:
    """Return the rows of a block, in order, with their carried fields.

    Args:
        records: The block with `fields.records`.
        label: The file.
        fields: The carried fields.
        all_texts: Whether every value of a row is a text, as in CSV. Carried values are then converted to their type.

    Raises CarriedValueError, naming the row, for a carried value that does not have its declared type.
    """
    texts, refusals = records.texts, {bad.row: bad.reason for bad in records.bad}
    numbers = records.rows
    if numbers is None:
        numbers = list(range(records.first_row, records.first_row + len(texts)))
    encoded = list(map(str.encode, texts))
    filled_columns: dict[str, list[Any]] = {
        "bytes": list(map(len, encoded)),
        "characters": list(map(len, texts)),
        "source": _read_sources(records, numbers, label, fields),
    }
    if fields.ids is not None:
        sources = list(map(str.encode, records.source_texts)) if records.texts_before else encoded
        filled_columns["id"] = [f"{cell:016x}" for cell in fields.ids.hash_encoded(sources, records.ids).tolist()]
    for rewriter, before, after in records.list_rewritten_texts():
        filled_columns[name_rewritten_column(rewriter)] = list(map(count_changed_characters, before, after))
    if fields.url is not None:
        # Import the module here, because most datasets have no URLs.
        from dataprep_assets.curation.web.addresses import parse_url

        addresses = list(map(parse_url, records.carried[fields.url]))
        filled_columns["host"] = [None if address is None else address.host for address in addresses]
    if fields.license is not None:
        filled_columns[LICENSE] = [
            _normalize_license(value, f"{label}: row {number}", fields)
            for number, value in zip(numbers, records.carried[fields.license], strict=True)
        ]
    for path, kind in fields.keep:
        filled_columns[name_column(path)] = convert_carried_values(
            records.carried[path],
            kind,
            [f"{label}: row {number}: {path}" for number in numbers],
            keys=("document", "keep_fields", path),
            all_texts=all_texts,
            sensitive=fields.sensitive,
        )
    # If no record is refused, as in most blocks, skip the slow insertion below.
    if not refusals:
        always: dict[str, list[Any]] = {"file": [label] * len(numbers), "row": numbers, "bad": [None] * len(numbers)}
        rows = {name: always[name] if name in always else filled_columns[name] for name in fields.columns}
        return DocumentBatch(rows, list(range(len(numbers))), texts, label, fields.columns)
    # Insert refused rows at their positions, because all tables of a shard have the same rows in the same order.
    order = sorted({*numbers, *refusals})
    indices = {number: index for index, number in enumerate(order)}
    good = [indices[number] for number in numbers]
    columns: dict[str, list[Any]] = {name: [None] * len(order) for name in fields.columns}
    columns |= {"file": [label] * len(order), "row": order, "bad": [refusals.get(number) for number in order]}
    for name, column_values in filled_columns.items():
        column = columns[name]
        for index, value in zip(good, column_values, strict=True):
            column[index] = value
    return DocumentBatch(columns, good, texts, label, fields.columns)


def _read_sources(records: "Block", numbers: Sequence[int], label: str, fields: CarriedFields) -> list[str]:
    if fields.source is None:
        return [find_source(label)] * len(numbers)
    return [source if isinstance(source, str) else "unknown" for source in records.carried[fields.source]]


def convert_carried_values(
    values: Sequence[Any],
    kind: ColumnType,
    locations: Sequence[str],
    *,
    keys: tuple[str, ...],
    all_texts: bool,
    sensitive: bool,
) -> list[Any]:
    """Return the values of a carried field as its type. Raises CarriedValueError for a value of a different type.

    Args:
        values: The values.
        kind: The declared type.
        locations: The location of each value, for messages.
        keys: The path of the field's YAML key.
        all_texts: Whether every value of a row is a text, as in CSV. The values are then converted.
        sensitive: Whether messages must not show values.
    """
    cells = [_read_as(value, kind) for value in values] if all_texts else values
    pairs = zip(cells, locations, strict=True)
    return [_require_type(cell, kind, location, keys, sensitive=sensitive) for cell, location in pairs]


def _require_type(value: Any, kind: ColumnType, location: str, keys: tuple[str, ...], *, sensitive: bool) -> Any:
    if value is None or has_type(value, kind):
        return float(value) if kind == "number" and value is not None else value
    description = "a value" if sensitive else repr(value)[:40]
    # An integer of the wrong type for an integer column is too large, except true and false, which are also integers.
    limit = " of at most 64 bits" if kind == "integer" and type(value) is int else ""
    raise CarriedValueError(
        f"{location} is {description}, but `{'.'.join(keys[:-1])}` declares {kind}{limit}. Declare a different type, "
        "or remove the field",
        keys=keys,
    )


def _normalize_license(value: Any, location: str, fields: CarriedFields) -> str | None:
    """Return a license in lower case, because its case has no meaning; None if it is missing or unknown."""
    if value is not None and not isinstance(value, str):
        raise CarriedValueError(
            f"{location}: {fields.license} is {repr(value)[:40]}, but a license must be a string. Set "
            "`document.license_field` to a field with strings",
            keys=("document", "license_field"),
        )
    license_name = " ".join((value or "").lower().split())
    return None if license_name in _UNKNOWN_LICENSES else license_name


def _read_as(value: Any, kind: ColumnType) -> Any:
    """Convert a text to a type.

    An empty text becomes null, and a text that cannot be converted is returned unchanged.
    """
    if kind == "string" or not isinstance(value, str):
        return value
    text = value.strip()
    if kind == "boolean":
        return {"true": True, "false": False, "": None}.get(text.lower(), value)
    if kind == "integer":
        return int(text) if _INTEGER.fullmatch(text) else value if text else None
    number = float(text) if _NUMBER.fullmatch(text) else None
    return number if number is not None and math.isfinite(number) else value if text else None


class ParquetRowWriter:
    """Writer of a new Parquet file in row groups of `ROW_GROUP` rows, independent of input sizes; a context manager."""

    def __init__(self, path: Path, columns: Columns) -> None:
        """Start without rows.

        Args:
            path: The file, which must not exist.
            columns: Its columns.
        """
        self.rows = 0
        self._path, self._columns = path, columns
        self._waiting: list[Any] = []
        self._held = 0

    def __enter__(self) -> Self:
        import pyarrow.parquet as pq

        self.schema = build_schema(self._columns)
        self._file = create_durably(self._path)
        options = {"compression": "zstd", "write_page_checksum": True}
        self._writer = pq.ParquetWriter(self._file.__enter__(), self.schema, **options)
        return self

    def add(self, values: Mapping[str, Any]) -> None:
        """Add rows: column → their values, lists or Arrow arrays."""
        self.add_table(build_table(values, self._columns))

    def add_table(self, table: "pa.Table") -> None:
        """Add the rows of a table with the columns of the file."""
        import pyarrow as pa

        self._waiting.append(table)
        self._held += table.num_rows
        self.rows += table.num_rows
        if self._held < ROW_GROUP:
            return
        all_rows, start = pa.concat_tables(self._waiting), 0
        while all_rows.num_rows - start >= ROW_GROUP:
            self._writer.write_table(all_rows.slice(start, ROW_GROUP), row_group_size=ROW_GROUP)
            start += ROW_GROUP
        remaining_rows = all_rows.slice(start)
        self._waiting, self._held = [remaining_rows] if remaining_rows.num_rows else [], remaining_rows.num_rows

    def __exit__(self, *error: Any) -> None:
        import pyarrow as pa

        if error[0] is None and self._held:
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=ROW_GROUP)
        self._writer.close()
        self._file.__exit__(*error)


def read_joined_tables(paths: Sequence[Path], columns: Sequence[str] | None = None) -> Iterator["pa.Table"]:
    """Yield the rows of a table whose columns are divided among several files, in pieces of at most one row group.

    Args:
        paths: The files.
        columns: The requested columns, in any order; None for all.

    Raises FormatError if a file cannot be read or the files differ in their number of rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        files = [pq.ParquetFile(path, page_checksum_verification=True) for path in paths]
        if len({file.metadata.num_rows for file in files}) > 1:
            counts = ", ".join(
                f"{path.name} {file.metadata.num_rows:,}" for path, file in zip(paths, files, strict=True)
            )
            raise FormatError(
                f"{paths[0].parent}: the files must have the same number of rows ({counts}). Rebuild the artifact"
            )
        column_names = [
            [name for name in file.schema_arrow.names if columns is None or name in columns] for file in files
        ]
        readers = [
            file.iter_batches(ROW_GROUP, columns=names)
            for file, names in zip(files, column_names, strict=True)
            if names
        ]
        for batches in zip(*readers, strict=True):
            arrays = {name: batch.column(name) for batch in batches for name in batch.schema.names}
            yield pa.table(arrays)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{paths[0].parent}: cannot be read as Parquet: {error}. Rebuild the artifact") from error


def split_by_file(piece: "pa.Table") -> Iterator[tuple[str, "pa.Table"]]:
    """Yield the consecutive rows of a piece that belong to the same file, with the file."""
    import pyarrow.compute as pc

    runs, start = pc.run_end_encode(piece["file"].combine_chunks(), run_end_type="int64"), 0
    for file, stop in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield file, piece.slice(start, stop - start)
        start = stop
