"""Whole rows of source files: JSON lines, JSON arrays and Parquet, as blocks of objects with their positions.

`records.py` reads one text a record, fast; this module gives whole objects to pipelines that need several fields
(conversations, prompts with answers). What is valid JSON, what a blank line is, and how a damaged or cut file is
refused are the same as there. A reader may be given a range of rows, so that several shards share one big file: every
row of a file is in exactly one of the ranges that `split_rows` makes.

Entry points: `read_rows`, `count_rows`, `split_rows`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.integrity.digest import sha256_file
from dataprep_assets.sources.blocks import BlockReader
from dataprep_assets.sources.records import BadRecord

__all__ = ["REASONS", "RowBlock", "RowRange", "RowReader", "count_rows", "read_rows", "split_rows"]

REASONS = ("bad_json", "invalid_utf8", "not_an_object")
"""Why a row can be refused here, as counted in the ledger."""
_BOM = b"\xef\xbb\xbf"
_ELEMENTS = 1024
"""Elements of a JSON array, or rows of a Parquet file, in one block."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `first` (1-based) up to, not including, `stop`; None means to the end of the file.

    Rows are physical: lines (blank ones too) of JSON lines, elements of an array, rows of a Parquet file.
    """

    first: int = 1
    stop: int | None = None

    def within(self, first: int, count: int) -> slice:
        """Which of `count` rows that begin at row `first` are in the range."""
        start = min(max(self.first - first, 0), count)
        stop = count if self.stop is None else min(max(self.stop - first, 0), count)
        return slice(start, max(start, stop))


@dataclass(slots=True)
class RowBlock:
    """Some consecutive rows: `rows[i]` is the object at 1-based row `numbers[i]`.

    `offsets[i]` is the byte of its line in the decompressed file, -1 for Parquet and for elements of an array.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)
    blank_lines: int = 0


class RowReader(Protocol):
    """Iterates over the blocks of one file; `sha256` and `bytes_read` are of the whole file once iteration has ended.

    A range is no exception: what lies outside it is read and digested, not parsed.
    """

    def __iter__(self) -> Iterator[RowBlock]: ...
    @property
    def sha256(self) -> str: ...
    @property
    def bytes_read(self) -> int: ...


def read_rows(
    path: Path,
    *,
    format: str,
    compression: str | None,
    label: str,
    rows: RowRange | None = None,
    columns: Sequence[str] | None = None,
) -> RowReader:
    """The reader for a file's format (`jsonl`, `json` or `parquet`). `label` names the file in errors.

    A `jsonl` or `json` file that starts with `[` is one array of rows; any other is JSON lines. `columns` spares the
    reading of other columns of a Parquet file; those that it does not have are left out.
    """
    chosen = rows or RowRange()
    if format == "parquet":
        return _ParquetRows(path, label, chosen, columns)
    return _JsonRows(path, compression, label, chosen)


def count_rows(path: Path, *, format: str, compression: str | None, label: str) -> int:
    """Physical rows of a file, as a `RowRange` counts them. CorruptSourceError for one that cannot be read."""
    if format == "parquet":
        return _ParquetRows(path, label, RowRange(), None).count()
    return _JsonRows(path, compression, label, RowRange()).count()


def split_rows(count: int, parts: int) -> list[RowRange]:
    """`parts` consecutive ranges that cover `count` rows once, even to one row; the last has no end."""
    edges = [1 + count * part // parts for part in range(parts)]
    return [RowRange(first, stop) for first, stop in zip(edges, [*edges[1:], None], strict=True)]


class _JsonRows:
    """JSON lines, or one JSON array."""

    def __init__(self, path: Path, compression: str | None, label: str, rows: RowRange) -> None:
        self._blocks = BlockReader(path, compression, label)
        self._label, self._range = label, rows

    @property
    def sha256(self) -> str:
        return self._blocks.sha256

    @property
    def bytes_read(self) -> int:
        return self._blocks.bytes_read

    def count(self) -> int:
        """Physical rows: lines, or elements of the array."""
        lines, last, blocks = 0, b"\n", iter(self._blocks)
        for data in blocks:
            if not lines and last == b"\n" and _is_array(data):
                return len(self._elements(data, blocks))
            lines += data.count(b"\n")
            last = data[-1:]
        return lines + (last != b"\n")

    def __iter__(self) -> Iterator[RowBlock]:
        blocks = iter(self._blocks)
        first = next(blocks, b"")
        if _is_array(first):
            yield from self._of_array(self._elements(first, blocks))
            return
        row, byte = 1, 0
        if first.startswith(_BOM):
            first, byte = first[3:], 3
        tail: list[bytes] = []
        for data in _chained(first, blocks):
            cut = data.rfind(b"\n") + 1
            if not cut:
                tail.append(data)  # a line longer than a block: joined once, when its end arrives
                continue
            lines = b"".join([*tail, data[:cut]]) if tail else data[:cut]
            tail = [data[cut:]] if cut < len(data) else []
            count = lines.count(b"\n")
            if block := self._parse(lines, row, byte, count):
                yield block
            row += count
            byte += len(lines)
        rest = b"".join(tail)
        if rest and (block := self._parse(rest, row, byte, 1)):
            yield block

    def _parse(self, data: bytes, row: int, byte: int, count: int) -> RowBlock | None:
        chosen = self._range.within(row, count)
        if chosen.start == chosen.stop:
            return None
        block = RowBlock()
        for number, line in enumerate(data.split(b"\n")[:count], row):
            if chosen.start <= number - row < chosen.stop:
                _add_line(block, line, number, byte)
            byte += len(line) + 1
        return block

    def _elements(self, first: bytes, blocks: Iterator[bytes]) -> list[Any]:
        data = b"".join([first, *blocks]).removeprefix(_BOM)
        try:
            elements: list[Any] = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise CorruptSourceError(
                f"{self._label}: starts as a JSON array and is none: {error.msg} at character {error.pos}. Nothing of "
                "it can be read: mend it, or write one object a line"
            ) from error
        return elements

    def _of_array(self, elements: list[Any]) -> Iterator[RowBlock]:
        chosen = self._range.within(1, len(elements))
        for start in range(chosen.start, chosen.stop, _ELEMENTS):
            block = RowBlock()
            for at in range(start, min(start + _ELEMENTS, chosen.stop)):
                _add(block, elements[at], at + 1, -1)
            yield block


def _is_array(data: bytes) -> bool:
    return data.removeprefix(_BOM).lstrip()[:1] == b"["


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _add_line(block: RowBlock, line: bytes, number: int, byte: int) -> None:
    if not line.strip():
        block.blank_lines += 1
        return
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        block.bad.append(BadRecord(number, byte, "bad_json" if _is_utf8(line) else "invalid_utf8"))
        return
    _add(block, value, number, byte)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _add(block: RowBlock, value: Any, number: int, byte: int) -> None:
    if not isinstance(value, dict):
        block.bad.append(BadRecord(number, byte, "not_an_object"))
        return
    block.rows.append(value)
    block.numbers.append(number)
    block.offsets.append(byte)


class _ParquetRows:
    """Rows of a Parquet file, read in batches; the file's digest costs one more read of it."""

    def __init__(self, path: Path, label: str, rows: RowRange, columns: Sequence[str] | None) -> None:
        self._path, self._label, self._range, self._columns = path, label, rows, columns
        self._sha256 = ""
        self._bytes = 0

    @property
    def sha256(self) -> str:
        return self._sha256

    @property
    def bytes_read(self) -> int:
        return self._bytes

    def count(self) -> int:
        """Rows by the file's footer."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return int(pq.read_metadata(self._path).num_rows)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(1, error) from error

    def __iter__(self) -> Iterator[RowBlock]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = 1
        try:
            with pq.ParquetFile(self._path, memory_map=True) as file:
                held = file.schema_arrow.names
                columns = None if self._columns is None else [name for name in self._columns if name in held]
                groups: list[int] = []
                start = 1
                for group in range(file.metadata.num_row_groups):
                    count = file.metadata.row_group(group).num_rows
                    chosen = self._range.within(start, count)
                    if chosen.start < chosen.stop:
                        row = start if not groups else row
                        groups.append(group)
                    start += count
                for batch in file.iter_batches(
                    batch_size=_ELEMENTS, row_groups=groups, columns=columns, use_threads=False
                ):
                    chosen = self._range.within(row, batch.num_rows)
                    if chosen.start < chosen.stop:
                        values = batch.slice(chosen.start, chosen.stop - chosen.start).to_pylist()
                        numbers = list(range(row + chosen.start, row + chosen.stop))
                        yield RowBlock(rows=values, numbers=numbers, offsets=[-1] * len(values))
                    row += batch.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # OSError: some damage
            raise self._unreadable(row, error) from error
        self._sha256 = sha256_file(self._path)
        self._bytes = self._path.stat().st_size

    def _unreadable(self, row: int, error: Exception) -> CorruptSourceError:
        return CorruptSourceError(
            f"{self._label}: Parquet cannot be read near row {row}: {error}. Fetch the file again"
        )
