"""Records of source files: JSON lines and Parquet, as blocks of texts and positions of what cannot be one.

What is a valid record is decided here, not by whichever parser is installed: JSON as RFC 8259 has it, in UTF-8.
Lone surrogates, NaN and Infinity, invalid UTF-8, control characters, trailing garbage and nesting beyond 1,024 levels
are bad records; of duplicate keys the last counts, as in Python's `json`. A byte order mark is accepted at the start
of the file and nowhere else; CRLF line ends are accepted; blank lines are counted and are not records.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.sources.blocks import BlockReader
from dataprep_assets.sources.row_files import (
    BadRecord,
    Digested,
    ParquetBlocks,
    ReadThrough,
    RowRange,
    split_lines,
    wanted_lines,
    whole_lines,
    why_not_json,
)
from dataprep_assets.sources.rows import RowReader, read_rows

__all__ = ["REASONS", "BadRecord", "Block", "RecordReader", "read_records"]

REASONS = ("bad_json", "invalid_utf8", "not_an_object", "missing_text", "null_text", "text_not_a_string")
"""Why a record can be refused, as counted in the ledger."""


@dataclass(slots=True)
class Block:
    """Some consecutive records. `rows[i]` is the 1-based row of `texts[i]`; None when no row was refused or blank,
    and then the rows are `first_row, first_row + 1, …`."""

    texts: list[str]
    first_row: int
    rows: list[int] | None = None
    bad: list[BadRecord] = field(default_factory=list)
    blank_lines: int = 0

    def row(self, index: int) -> int:
        """The 1-based row in the file of `texts[index]`."""
        return self.first_row + index if self.rows is None else self.rows[index]


class RecordReader(Digested, Protocol):
    """Iterates over the blocks of one file; `sha256` and `bytes_read` are final once iteration has ended."""

    def __iter__(self) -> Iterator[Block]: ...


def read_records(
    path: Path,
    *,
    format: str,
    compression: str | None,
    text_field: str,
    label: str,
    rows: RowRange | None = None,
) -> RecordReader:
    """The reader of the file `path` for its declared `format`: `parquet`, `json` or JSON lines.

    `compression` is that of the whole file, `text_field` the field or column with the text; `label` names the file in
    errors. With `rows`, only these rows become records; the rest of the file is read and digested all the same. The
    format `json` is JSON lines or one array of objects.
    """
    if format == "parquet":
        return ParquetReader(path, text_field, label, rows)
    if format == "json":
        return ObjectReader(path, compression, text_field, label, rows)
    return JsonLinesReader(path, compression, text_field, label, rows)


class JsonLinesReader(ReadThrough[BlockReader]):
    """JSON lines, one object a line. Rows are physical lines: `sed -n ROWp` shows the record that a message names."""

    def __init__(
        self, path: Path, compression: str | None, text_field: str, label: str, rows: RowRange | None = None
    ) -> None:
        super().__init__(BlockReader(path, compression, label))
        self._field, self._range = text_field, rows

    def __iter__(self) -> Iterator[Block]:
        if self._range is not None:
            for lines, row, byte in wanted_lines(self._under, self._range):
                yield self._parse(lines, row, byte)[0]
            return
        row = 1
        for lines, byte in whole_lines(self._under):
            block, count = self._parse(lines, row, byte)  # it has to split the lines: no other pass counts them
            yield block
            row += count

    def _parse(self, data: bytes, row: int, byte: int) -> tuple[Block, int]:
        lines = split_lines(data)
        name = self._field
        loads = orjson.loads
        try:
            texts = [loads(line)[name] for line in lines]
        except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
            return self._parse_each(lines, row, byte), len(lines)
        if set(map(type, texts)) <= {str}:
            return Block(texts, row), len(lines)
        return self._parse_each(lines, row, byte), len(lines)

    def _parse_each(self, lines: list[bytes], row: int, byte: int) -> Block:
        block = Block([], row, rows=[])
        assert block.rows is not None
        for offset, line in enumerate(lines):
            if not line.strip():
                block.blank_lines += 1
            else:
                text, reason = _text_of(line, self._field)
                if reason is None:
                    block.texts.append(text)
                    block.rows.append(row + offset)
                else:
                    block.bad.append(BadRecord(row + offset, byte, reason))
            byte += len(line) + 1
        return block


def _text_of(line: bytes, field_name: str) -> tuple[str, str | None]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return "", why_not_json(line)
    if not isinstance(record, dict):
        return "", "not_an_object"
    return _checked(record.get(field_name, _ABSENT))


_ABSENT: Any = object()


def _checked(value: Any) -> tuple[str, str | None]:
    if isinstance(value, str):
        return value, None
    return "", "missing_text" if value is _ABSENT else "null_text" if value is None else "text_not_a_string"


class ParquetReader(ParquetBlocks[Block]):
    """One text column of a Parquet file."""

    batch_rows = 2048

    def __init__(self, path: Path, text_field: str, label: str, rows: RowRange | None = None) -> None:
        super().__init__(path, label, rows)
        self._field = text_field

    def _columns(self, schema: Any) -> list[str]:
        import pyarrow as pa

        column = schema.field(self._field) if self._field in schema.names else None
        if column is None or not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            held = {f.name: str(f.type) for f in schema}
            raise CorruptSourceError(
                f"{self._label}: no string column {self._field!r}; columns are {held}. Set `text_field`"
            )
        return [self._field]

    def _block(self, batch: Any, row: int) -> Block:
        column = batch.column(0)
        values: list[Any] = column.to_pylist()
        if not column.null_count:
            return Block(values, row)
        block = Block([], row, rows=[])
        assert block.rows is not None
        for offset, value in enumerate(values):
            if value is None:
                block.bad.append(BadRecord(row + offset, -1, "null_text"))
            else:
                block.texts.append(value)
                block.rows.append(row + offset)
        return block


class ObjectReader(ReadThrough[RowReader]):
    """JSON lines or one JSON array, through whole objects: for files named `.json`, which may be either."""

    def __init__(
        self, path: Path, compression: str | None, text_field: str, label: str, rows: RowRange | None = None
    ) -> None:
        super().__init__(read_rows(path, format="json", compression=compression, label=label, rows=rows))
        self._field = text_field

    def __iter__(self) -> Iterator[Block]:
        for found in self._under:
            block = Block([], found.numbers[0] if found.numbers else 1, rows=[])
            assert block.rows is not None
            block.bad, block.blank_lines = list(found.bad), found.blank_lines
            for value, number, byte in zip(found.rows, found.numbers, found.offsets, strict=True):
                text, reason = _checked(value.get(self._field, _ABSENT))
                if reason is None:
                    block.texts.append(text)
                    block.rows.append(number)
                else:
                    block.bad.append(BadRecord(number, byte, reason))
            block.bad.sort(key=lambda bad: bad.row)
            yield block
