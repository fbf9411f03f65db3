"""Records of source files: blocks of texts and positions of bad records, with fast JSON Lines and Parquet readers.

This module defines valid records, independent of the parser: JSON as in RFC 8259, in UTF-8. Lone surrogates, NaN and
Infinity, invalid UTF-8, control characters, trailing garbage and nesting beyond 1,024 levels are bad records. The last
of duplicate keys counts, as in Python's `json`. Numbers may have any size. A byte order mark is accepted before an
object, because files that begin with one may be concatenated. CRLF line endings are accepted. Blank lines are counted,
but are not records.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, Unpack

import orjson

from dataprep_assets.bounds import must_read_single_rows, report_position
from dataprep_assets.errors import Position, SourceError
from dataprep_assets.fields import column_at, find_inner_type_path, find_type, find_type_siblings, value_at, values_at
from dataprep_assets.sources.readers.contents import BOM, is_array
from dataprep_assets.sources.readers.input_format import InputFile, RowBlock, RowReader
from dataprep_assets.sources.readers.json_values import parse_value
from dataprep_assets.sources.readers.read_options import (
    ALL_ROWS,
    AS_NAMED,
    MAX_RECORD_BYTES,
    TOO_LARGE,
    DrawnRows,
    ReadOptions,
    RowRange,
)
from dataprep_assets.sources.readers.row_files import (
    BadRecord,
    BlankLines,
    DigestingReader,
    ParquetBlocks,
    WrappingReader,
    build_invalid_record,
    is_too_large,
    may_be_too_large,
    read_wanted_lines,
    read_whole_lines,
)
from dataprep_assets.sources.readers.rows import JsonRows, check_names, own_values, read_rows

__all__ = ["BadRecord", "Block", "RecordFields", "RecordReader", "read_records"]


MISSING_TEXT = "missing_text"
"""Reason of a refused record without the field with the text."""


@dataclass(slots=True)
class Block:
    """Some consecutive records.

    `rows[i]` is the 1-based row of `texts[i]`. It is None if no row was refused or blank; the rows are then `first_row,
    first_row + 1, …`. `ids[i]` is its declared id; None if no field contains ids. `texts_before` has the texts before
    each rewriter, in order; it is empty if texts are not rewritten. `carried` has the values of each carried field.
    """

    texts: list[str]
    first_row: int
    rows: list[int] | None = None
    ids: list[str] | None = None
    bad: list[BadRecord] = field(default_factory=list)
    blank_lines: int = 0
    texts_before: dict[str, list[str]] = field(default_factory=dict)
    carried: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def source_texts(self) -> list[str]:
        """The texts as in the source."""
        return next(iter(self.texts_before.values()), self.texts)

    def list_rewritten_texts(self) -> list[tuple[str, list[str], list[str]]]:
        """Return the name of each rewriter, in order, with the texts before it and after it."""
        befores = list(self.texts_before.values())
        return list(zip(self.texts_before, befores, [*befores[1:], self.texts], strict=False))

    def row(self, index: int) -> int:
        """Return the 1-based row in the file of `texts[index]`."""
        return self.first_row + index if self.rows is None else self.rows[index]

    def draw(self, drawn_rows: DrawnRows) -> "Block":
        """Return only the drawn rows."""
        numbers = [self.row(index) for index in range(len(self.texts))]
        order = sorted([*numbers, *(bad.row for bad in self.bad)])
        drawn_numbers = {order[position] for position in drawn_rows.pass_rows(len(order))}
        indices = [index for index, number in enumerate(numbers) if number in drawn_numbers]
        return replace(
            self,
            texts=[self.texts[index] for index in indices],
            rows=[numbers[index] for index in indices],
            ids=None if self.ids is None else [self.ids[index] for index in indices],
            bad=[bad for bad in self.bad if bad.row in drawn_numbers],
            carried={name: [values[index] for index in indices] for name, values in self.carried.items()},
        )


class RecordReader(DigestingReader, Protocol):
    """Iterator over the blocks of one file; `sha256` and `bytes_read` are final after iteration."""

    def __iter__(self) -> Iterator[Block]: ...


def read_records(
    path: Path,
    *,
    format: str,
    compression: str | None,
    label: str,
    fields: "RecordFields",
    rows: RowRange | None = None,
    reading: ReadOptions = AS_NAMED,
    drawn_rows: DrawnRows | None = None,
) -> RecordReader:
    """Return the reader of the file `path` for its `format` (`planning.inputs`), with the declared options (`reading`).

    `compression` is the compression of the whole file, and `label` its name in errors. With `rows`, only these rows
    become records, and with `drawn_rows`, only these; the rest of the file is still read and digested. A `json`
    file has one object per line, or is one array of objects. A record without a declared id is refused. A record of
    more than `fields.max_record_bytes` in UTF-8 is also refused; the limit applies to the line in JSON Lines, and to
    the text in other formats.
    """
    if format == "jsonl":
        file = InputFile(
            path=path,
            label=label,
            format=format,
            compression=compression,
            rows=rows or ALL_ROWS,
            max_record_bytes=fields.max_record_bytes,
        )
        return JsonLinesReader(file, fields, rows, drawn_rows)
    reader: RecordReader
    if format == "parquet" and not fields.carried:
        reader = ParquetReader(path, fields, label, rows)
    else:
        row_reader = read_rows(
            path,
            format=format,
            compression=compression,
            label=label,
            rows=rows,
            columns=fields.names,
            max_record_bytes=fields.max_record_bytes,
            reading=reading,
        )
        reader = ObjectReader(row_reader, fields)
    return reader if drawn_rows is None else ConvertingReader(reader, partial(Block.draw, drawn_rows=drawn_rows))


@dataclass(frozen=True, slots=True)
class RecordFields:
    """Fields of a record.

    Attributes:
        text: The field with the text.
        id: The field with the id; None if no field contains ids.
        max_record_bytes: Size in UTF-8 above which a record is refused.
        carried: Further fields, whose values are returned unchanged.
    """

    text: str
    id: str | None = None
    max_record_bytes: int = MAX_RECORD_BYTES
    carried: tuple[str, ...] = ()

    def format_key_hint(self, reason: str) -> str:
        """Return the key that names a missing field, in parentheses; `""` for other reasons of a refused record."""
        if reason == MISSING_TEXT:
            return f" (`text_field: {self.text}`)"
        return f" (`document.id_field: {self.id}`)" if reason == "missing_id" else ""

    def block(self, first_row: int) -> Block:
        """Return an empty block for adding records one by one with `add`."""
        return Block(
            [], first_row, rows=[], ids=None if self.id is None else [], carried={name: [] for name in self.carried}
        )

    @property
    def names(self) -> list[str]:
        """Names of the fields to read."""
        return list(dict.fromkeys([self.text, *([] if self.id is None else [self.id]), *self.carried]))

    @property
    def is_flat(self) -> bool:
        """Whether all fields are at the top level of a record, because no name contains a dot."""
        return not any("." in name for name in self.names)

    def build_block_of_rows(self, row_block: RowBlock) -> Block:
        """Return the records of whole rows, including bad ones."""
        texts: list[Any] = values_at(row_block.rows, self.text) if self.id is None else []
        # Take the fast path if all values are texts that fit within the limit even at four bytes per character, the
        # maximum in UTF-8.
        if {*map(type, texts)} == {str} and max(map(len, texts)) * 4 <= self.max_record_bytes:
            block = Block(texts, row_block.numbers[0], rows=row_block.numbers, carried=self.carry(row_block.rows))
        else:
            block = self.block(row_block.numbers[0] if row_block.numbers else 1)
            for value, number, byte in zip(row_block.rows, row_block.numbers, row_block.offsets, strict=True):
                self.add(block, value, number, byte)
        # Sort by row, because bad rows of the format and of the fields were collected separately.
        block.bad = sorted([*row_block.bad, *block.bad], key=lambda bad_row: bad_row.row)
        block.blank_lines = row_block.blank_lines
        return block

    def carry(self, records: list[dict[str, Any]]) -> dict[str, list[Any]]:
        """Return carried field → its values in these records; None for a record without it."""
        return {name: values_at(records, name) for name in self.carried}

    def add(self, block: Block, record: Any, row: int, byte: int) -> None:
        """Add the parsed record at a row and byte to a block, either as a text or as a refused record."""
        assert block.rows is not None
        if not isinstance(record, dict):
            block.bad.append(BadRecord(row, byte, "not_an_object"))
            return
        text = value_at(record, self.text, _ABSENT)
        reason = _find_text_refusal(text)
        if reason is None and is_longer(text, self.max_record_bytes):
            reason = TOO_LARGE
        if reason is None and self.id is not None:
            reason = _find_id_refusal(value_at(record, self.id))
        if reason is not None:
            block.bad.append(BadRecord(row, byte, reason))
            return
        block.texts.append(text)
        block.rows.append(row)
        if block.ids is not None:
            block.ids.append(str(value_at(record, self.id or "")))
        for name, values in block.carried.items():
            values.append(value_at(record, name))


class JsonLinesReader(WrappingReader[JsonRows]):
    """Reader of JSON Lines. Rows are physical lines: `sed -n ROWp` shows the record that a message names.

    A file that is one array is read element by element.
    """

    def __init__(
        self, file: InputFile, fields: RecordFields, rows: RowRange | None = None, drawn_rows: DrawnRows | None = None
    ) -> None:
        super().__init__(JsonRows(file))
        self._label, self._fields, self._range, self._drawn_rows = file.label, fields, rows, drawn_rows

    def __iter__(self) -> Iterator[Block]:
        pieces = self._under.pieces()
        first_block = next(pieces, b"")
        if is_array(first_block):
            blocks = map(self._fields.build_block_of_rows, self._under.read_array(first_block, pieces))
            return blocks if self._drawn_rows is None else (block.draw(self._drawn_rows) for block in blocks)
        return self._read_lines(chain([first_block], pieces))

    def _read_lines(self, pieces: Iterator[bytes]) -> Iterator[Block]:
        # Some rows, or single rows, need a pass that counts and splits the lines before parsing. Skip this pass
        # otherwise.
        if self._range is not None or self._drawn_rows is not None or must_read_single_rows():
            rows = self._range or RowRange()
            for lines, row, byte in read_wanted_lines(pieces, rows, self._fields.max_record_bytes):
                if isinstance(lines, BlankLines):
                    yield self._build_blank_block(row, lines)
                elif self._drawn_rows is None:
                    yield self._parse(lines, row, byte)[0]
                else:
                    yield self._parse_drawn(lines, row, byte, self._drawn_rows)
            return
        row = 1
        for line_group, byte in read_whole_lines(pieces, self._fields.max_record_bytes):
            if line_group is not None and line_group.is_blank:
                block = self._build_blank_block(row, count := len(line_group))
            else:
                # Let `_parse` count the lines, because it needs them split anyway.
                block, count = self._parse(None if line_group is None else line_group.split(), row, byte)
            yield block
            row += count

    def _build_blank_block(self, row: int, count: int) -> Block:
        """Return the block of blank lines, for which no progress is reported."""
        return replace(self._fields.block(row), blank_lines=count)

    def _parse(self, lines: list[bytes] | None, row: int, byte: int) -> tuple[Block, int]:
        report_position(self._label, row, byte)
        if lines is None:
            return replace(self._fields.block(row), bad=[BadRecord(row, byte, TOO_LARGE)]), 1
        limit = self._fields.max_record_bytes
        if may_be_too_large(lines, limit) and any(is_too_large(line, limit) for line in lines):
            return self._parse_each(lines, row, byte), len(lines)
        block = self._parse_all(lines, row)
        return block if block is not None else self._parse_each(lines, row, byte), len(lines)

    def _parse_drawn(self, lines: list[bytes] | None, row: int, byte: int, drawn_rows: DrawnRows) -> Block:
        """Return the block of only the drawn lines."""
        if lines is None:
            return self._parse(None, row, byte)[0] if drawn_rows.pass_rows(1) else self._fields.block(row)
        offsets = [offset for offset, line in enumerate(lines) if line and not line.isspace()]
        drawn_offsets = {offsets[position] for position in drawn_rows.pass_rows(len(offsets))}
        return self._parse_each(lines, row, byte, drawn_offsets)

    def _parse_all(self, lines: list[bytes], row: int) -> Block | None:
        """Return the block of lines that are all valid records; None if a line is not."""
        name, id_name = self._fields.text, self._fields.id
        loads = orjson.loads
        ids: list[Any] | None = None
        carried: dict[str, list[Any]] = {}
        try:
            if self._fields.carried or not self._fields.is_flat:
                records = list(map(loads, lines))
                texts = values_at(records, name)
                ids = None if id_name is None else values_at(records, id_name)
                carried = self._fields.carry(records)
            elif id_name is None:
                texts = [loads(line)[name] for line in lines]
            else:
                pairs = [(record[name], record[id_name]) for record in map(loads, lines)]
                texts, ids = [text for text, _ in pairs], [record_id for _, record_id in pairs]
        # Return None, because the caller then uses `_parse_each`, which finds the bad line and its defect.
        except (orjson.JSONDecodeError, KeyError, TypeError, IndexError, AttributeError):
            return None
        if not set(map(type, texts)) <= {str}:
            return None
        # Leave integers beyond 64 bits to `_parse_each`, which keeps their digits, because the fast parser returns a
        # float.
        if carried and any(
            type(value) is float and abs(value) >= 1 << 63 for values in carried.values() for value in values
        ):
            return None
        if ids is not None:
            if not (kinds := set(map(type, ids))) <= {str, int}:
                return None
            ids = list(map(str, ids)) if int in kinds else ids
        return Block(texts, row, ids=ids, carried=carried)

    def _parse_each(self, lines: list[bytes], row: int, byte: int, offsets: Collection[int] | None = None) -> Block:
        """Return the block of lines, or of those with these offsets, parsed one by one."""
        block = self._fields.block(row)
        for offset, line in enumerate(lines):
            if not line or line.isspace():
                block.blank_lines += 1
            elif offsets is not None and offset not in offsets:
                pass
            elif is_too_large(line, self._fields.max_record_bytes):
                block.bad.append(BadRecord(row + offset, byte, TOO_LARGE))
            else:
                try:
                    self._fields.add(block, parse_value(line.removeprefix(BOM)), row + offset, byte)
                except orjson.JSONDecodeError as error:
                    block.bad.append(build_invalid_record(row + offset, byte, line, error))
            byte += len(line) + 1
        return block


_ABSENT: Any = object()
_SHOWN = 8
"""Maximum number of columns in a message."""


def is_longer(text: str, limit: int) -> bool:
    """Return whether a text has more bytes in UTF-8 than the limit, encoding it only if its length does not decide."""
    # For most texts the number of characters decides, because a character has one to four bytes.
    return len(text) * 4 > limit and (len(text) > limit or len(text.encode()) > limit)


def _find_text_refusal(value: Any) -> str | None:
    if isinstance(value, str):
        return None
    return MISSING_TEXT if value is _ABSENT else "null_text" if value is None else "text_not_a_string"


def _find_id_refusal(value: Any) -> str | None:
    if type(value) in (str, int):  # compare the exact type, because True is also an int, but not an id
        return None
    return "missing_id" if value is None else "id_not_a_string"


def _name_outer_type(kind: Any) -> str:
    type_name = str(kind)
    return type_name if ":" not in type_name else f"{type_name.partition('<')[0]}<…>"


class AbsentColumnError(SourceError):
    """Error for a Parquet file without a declared column.

    `hidden` is the message without the names of other columns, which may be sensitive.
    """

    # All arguments have defaults, because an error from a worker process is rebuilt from its message and attributes.
    def __init__(self, message: str = "", *, hidden: str = "", **at: Unpack[Position]) -> None:
        super().__init__(message, **at)
        self.hidden = hidden


def _build_absent_column_error(label: str, kind: str, name: str, setting: str, schema: Any) -> AbsentColumnError:
    subfields, names = find_type_siblings(schema, name)
    examples = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    has = f"column {subfields!r} has" if subfields else "the file has"
    prefix = f"{label}: no {kind} column {name!r}: "
    hidden = f"{prefix}no such column. Set `{setting}`"
    inner_path = None if subfields else find_inner_type_path(schema, name)
    advice = f"Set `{setting}`" if inner_path is None else f"Set `{setting}: {inner_path}`"
    return AbsentColumnError(f"{prefix}{has} {examples or 'none'}. {advice}", hidden=hidden, file=label)


class ParquetReader(ParquetBlocks[Block]):
    """Reader of the text column of a Parquet file and, if declared, of its id column."""

    # Maximum number of rows per batch. Batches of large rows are smaller (`parquet_pages`).
    batch_rows = 2048

    def __init__(self, path: Path, fields: RecordFields, label: str, rows: RowRange | None = None) -> None:
        super().__init__(path, label, rows)
        self._fields = fields

    def _select_columns(self, schema: Any) -> list[str]:
        import pyarrow.types as types

        def require(name: str, kind: str, setting: str, *allowed: Any) -> str:
            its_type = find_type(schema, name)
            if its_type is None:
                raise _build_absent_column_error(self._label, kind, name, setting, schema)
            if not any(allows(its_type) for allows in allowed):
                type_text = f"its type is {_name_outer_type(its_type)}"
                if types.is_null(its_type):
                    type_text = "its type is null, so no row has a value"
                raise SourceError(f"{self._label}: no {kind} column {name!r}: {type_text}. Set `{setting}`")
            return name

        def is_text(kind: Any) -> bool:
            values = kind.value_type if types.is_dictionary(kind) else kind
            return any(is_one(values) for is_one in (types.is_string, types.is_large_string, types.is_string_view))

        check_names(schema.names, self._fields.names, self._label)
        columns = [require(self._fields.text, "string", "text_field", is_text)]
        if self._fields.id is not None:
            setting = "document.id_field"
            columns.append(require(self._fields.id, "string or integer", setting, is_text, types.is_integer))
        return columns

    def _build_block(self, batch: Any, row: int) -> Block:
        import pyarrow.compute as pc

        column = column_at(batch, self._fields.text)
        ids = None if self._fields.id is None else column_at(batch, self._fields.id)
        lengths, limit = pc.binary_length(own_values(column)), self._fields.max_record_bytes
        fits = (pc.max(lengths).as_py() or 0) <= limit
        if fits and not column.null_count and (ids is None or not ids.null_count):
            with suppress(UnicodeDecodeError):  # the loop below finds the row with invalid UTF-8
                return Block(column.to_pylist(), row, ids=None if ids is None else list(map(str, ids.to_pylist())))
        # Add records row by row, to refuse only the bad ones. For the whole batch, one invalid UTF-8 text makes
        # `to_pylist` fail.
        block = self._fields.block(row)
        for offset in range(batch.num_rows):
            if not fits and (lengths[offset].as_py() or 0) > limit:
                block.bad.append(BadRecord(row + offset, -1, TOO_LARGE))
                continue
            try:
                self._fields.add(block, batch.slice(offset, 1).to_pylist()[0], row + offset, -1)
            except UnicodeDecodeError:
                block.bad.append(BadRecord(row + offset, -1, "invalid_utf8"))
        return block


class ObjectReader(WrappingReader[RowReader]):
    """Reader that takes records from whole rows, for every format without a faster reader."""

    def __init__(self, row_reader: RowReader, fields: RecordFields) -> None:
        super().__init__(row_reader)
        self._fields = fields

    def __iter__(self) -> Iterator[Block]:
        yield from map(self._fields.build_block_of_rows, self._under)


class ConvertingReader(WrappingReader[RecordReader]):
    """Reader that passes all blocks of a file through a function."""

    def __init__(self, reader: RecordReader, convert: Callable[[Block], Block]) -> None:
        super().__init__(reader)
        self._convert = convert

    def __iter__(self) -> Iterator[Block]:
        return map(self._convert, self._under)
