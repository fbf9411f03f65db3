"""Records of source files: JSON lines and Parquet, as blocks of texts and positions of what cannot be one.

What is a valid record is decided here, not by whichever parser is installed: JSON as RFC 8259 has it, in UTF-8.
Lone surrogates, NaN and Infinity, invalid UTF-8, control characters, trailing garbage and nesting beyond 1,024 levels
are bad records; of duplicate keys the last counts, as in Python's `json`. A byte order mark is accepted at the start
of the file and nowhere else; CRLF line ends are accepted; blank lines are counted and are not records.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.sources.blocks import BlockReader

if TYPE_CHECKING:
    from dataprep_assets.sources.rows import RowRange

REASONS = ("bad_json", "invalid_utf8", "not_an_object", "missing_text", "null_text", "text_not_a_string")
"""Why a record can be refused, as counted in the ledger."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A refused record: 1-based row, byte offset of its line in the decompressed file (-1 for Parquet), reason."""

    row: int
    byte: int
    reason: str


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


class RecordReader(Protocol):
    """Iterates over the blocks of one file; `sha256` and `bytes_read` are final once iteration has ended."""

    def __iter__(self) -> Iterator[Block]: ...
    @property
    def sha256(self) -> str: ...
    @property
    def bytes_read(self) -> int: ...


def read_records(
    path: Path,
    *,
    format: str,
    compression: str | None,
    text_field: str,
    label: str,
    rows: "RowRange | None" = None,
) -> RecordReader:
    """The reader for a file's declared format. `label` names the file in errors.

    With `rows`, only these rows become records; the rest of the file is read and digested all the same. The format
    `json` is JSON lines or one array of objects.
    """
    if format == "parquet":
        return ParquetReader(path, text_field, label, rows)
    if format == "json":
        return ObjectReader(path, compression, text_field, label, rows)
    return JsonLinesReader(path, compression, text_field, label, rows)


class JsonLinesReader:
    """JSON lines, one object a line. Rows are physical lines: `sed -n ROWp` shows the record that a message names."""

    def __init__(
        self, path: Path, compression: str | None, text_field: str, label: str, rows: "RowRange | None" = None
    ) -> None:
        self._blocks = BlockReader(path, compression, label)
        self._field, self._range = text_field, rows

    @property
    def sha256(self) -> str:
        return self._blocks.sha256

    @property
    def bytes_read(self) -> int:
        return self._blocks.bytes_read

    def __iter__(self) -> Iterator[Block]:
        row, byte = 1, 0
        tail: list[bytes] = []
        first = True
        for data in self._blocks:
            if first:
                first = False
                if data.startswith(b"\xef\xbb\xbf"):
                    data, byte = data[3:], 3
            cut = data.rfind(b"\n") + 1
            if not cut:
                tail.append(data)  # a line longer than a block: joined once, when its end arrives
                continue
            lines = b"".join([*tail, data[:cut]]) if tail else data[:cut]
            tail = [data[cut:]] if cut < len(data) else []
            if self._range is None:
                block, count = self._parse(lines, row, byte)
                yield block
            else:
                count = lines.count(b"\n")
                yield from self._within(lines, row, byte, count)
            row += count
            byte += len(lines)
        if tail:
            rest = b"".join(tail)
            if self._range is None:
                yield self._parse(rest, row, byte)[0]
            else:
                yield from self._within(rest, row, byte, 1)

    def _within(self, data: bytes, row: int, byte: int, count: int) -> Iterator[Block]:
        assert self._range is not None
        chosen = self._range.within(row, count)
        if chosen.start == chosen.stop:
            return
        start = _after_lines(data, 0, chosen.start)
        stop = len(data) if chosen.stop == count else _after_lines(data, start, chosen.stop - chosen.start)
        yield self._parse(data[start:stop], row + chosen.start, byte + start)[0]

    def _parse(self, data: bytes, row: int, byte: int) -> tuple[Block, int]:
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
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


def _after_lines(data: bytes, start: int, lines: int) -> int:
    """The byte after this many more line ends."""
    for _ in range(lines):
        start = data.index(b"\n", start) + 1
    return start


def _text_of(line: bytes, field_name: str) -> tuple[str, str | None]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            return "", "invalid_utf8"
        return "", "bad_json"
    if not isinstance(record, dict):
        return "", "not_an_object"
    return _checked(record.get(field_name, _ABSENT))


_ABSENT: Any = object()


def _checked(value: Any) -> tuple[str, str | None]:
    if isinstance(value, str):
        return value, None
    return "", "missing_text" if value is _ABSENT else "null_text" if value is None else "text_not_a_string"


class ParquetReader:
    """One text column of a Parquet file, read in batches of rows; the file's digest costs one more read of it."""

    def __init__(self, path: Path, text_field: str, label: str, rows: "RowRange | None" = None) -> None:
        self._path, self._field, self._label, self._range = path, text_field, label, rows
        self._sha256 = ""
        self._bytes = 0

    @property
    def sha256(self) -> str:
        return self._sha256

    @property
    def bytes_read(self) -> int:
        return self._bytes

    def __iter__(self) -> Iterator[Block]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from dataprep_assets.integrity.digest import sha256_file

        row = 1
        try:
            with pq.ParquetFile(self._path, memory_map=True) as file:
                column = file.schema_arrow.field(self._field) if self._field in file.schema_arrow.names else None
                if column is None or not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
                    held = {f.name: str(f.type) for f in file.schema_arrow}
                    raise CorruptSourceError(
                        f"{self._label}: no string column {self._field!r}; columns are {held}. Set `text_field`"
                    )
                groups, row = self._groups(file)
                for batch in file.iter_batches(
                    batch_size=2048, row_groups=groups, columns=[self._field], use_threads=False
                ):
                    values, count = batch.column(0), batch.num_rows
                    chosen = slice(0, count) if self._range is None else self._range.within(row, count)
                    if chosen.start or chosen.stop < count:
                        values = values.slice(chosen.start, chosen.stop - chosen.start)
                    texts, first = values.to_pylist(), row + chosen.start
                    yield self._block(texts, first) if values.null_count else Block(texts, first)
                    row += count
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # OSError: some damage
            raise CorruptSourceError(
                f"{self._label}: Parquet cannot be read near row {row}: {error}. Fetch the file again"
            ) from error
        self._sha256 = sha256_file(self._path)
        self._bytes = self._path.stat().st_size

    def _groups(self, file: Any) -> tuple[list[int] | None, int]:
        """The row groups that hold rows of the range, and the row that the first of them begins with."""
        if self._range is None:
            return None, 1
        groups: list[int] = []
        first, row = 1, 1
        for group in range(file.metadata.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            chosen = self._range.within(row, count)
            if chosen.start < chosen.stop:
                first = row if not groups else first
                groups.append(group)
            row += count
        return groups, first

    @staticmethod
    def _block(values: list[str | None], row: int) -> Block:
        block = Block([], row, rows=[])
        assert block.rows is not None
        for offset, value in enumerate(values):
            if value is None:
                block.bad.append(BadRecord(row + offset, -1, "null_text"))
            else:
                block.texts.append(value)
                block.rows.append(row + offset)
        return block


class ObjectReader:
    """JSON lines or one JSON array, through whole objects: for files named `.json`, which may be either."""

    def __init__(
        self, path: Path, compression: str | None, text_field: str, label: str, rows: "RowRange | None" = None
    ) -> None:
        from dataprep_assets.sources.rows import read_rows  # that module builds on this one

        self._field = text_field
        self._rows = read_rows(path, format="json", compression=compression, label=label, rows=rows)

    @property
    def sha256(self) -> str:
        return self._rows.sha256

    @property
    def bytes_read(self) -> int:
        return self._rows.bytes_read

    def __iter__(self) -> Iterator[Block]:
        for found in self._rows:
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
