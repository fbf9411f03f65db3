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


def read_records(path: Path, *, format: str, compression: str | None, text_field: str, label: str) -> RecordReader:
    """The reader for a file's declared format. `label` names the file in errors."""
    if format == "parquet":
        return ParquetReader(path, text_field, label)
    return JsonLinesReader(path, compression, text_field, label)


class JsonLinesReader:
    """JSON lines, one object a line. Rows are physical lines: `sed -n ROWp` shows the record that a message names."""

    def __init__(self, path: Path, compression: str | None, text_field: str, label: str) -> None:
        self._blocks = BlockReader(path, compression, label)
        self._field = text_field

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
            block, count = self._parse(lines, row, byte)
            yield block
            row += count
            byte += len(lines)
        if tail:
            block, _ = self._parse(b"".join(tail), row, byte)
            yield block

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

    def __init__(self, path: Path, text_field: str, label: str) -> None:
        self._path, self._field, self._label = path, text_field, label
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
                for batch in file.iter_batches(batch_size=2048, columns=[self._field], use_threads=False):
                    texts = batch.column(0).to_pylist()
                    yield self._block(texts, row) if batch.column(0).null_count else Block(texts, row)
                    row += len(texts)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # OSError: some damage
            raise CorruptSourceError(
                f"{self._label}: Parquet cannot be read near row {row}: {error}. Fetch the file again"
            ) from error
        self._sha256 = sha256_file(self._path)
        self._bytes = self._path.stat().st_size

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
