"""Files of rows as their readers find them: JSON lines as whole lines, Parquet as batches, both within a range of rows.

`records.py` makes texts of these rows and `rows.py` objects. Rows are physical: lines (blank ones too) of JSON lines,
elements of an array, rows of a Parquet file.

Entry points: `RowRange`, `BadRecord`; `whole_lines`, `wanted_lines`; `Digested`, `ParquetBlocks`, `ReadThrough`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.integrity.digest import sha256_file

__all__ = [
    "BOM",
    "BadRecord",
    "Digested",
    "ParquetBlocks",
    "ReadThrough",
    "RowRange",
    "split_lines",
    "wanted_lines",
    "whole_lines",
    "why_not_json",
]

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A refused record: 1-based row, byte offset of its line in the decompressed file (-1 for Parquet), reason."""

    row: int
    byte: int
    reason: str


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `first` (1-based) up to, not including, `stop`; None means to the end of the file."""

    first: int = 1
    stop: int | None = None

    def within(self, first: int, count: int) -> slice:
        """Which of `count` rows that begin at row `first` are in the range."""
        start = min(max(self.first - first, 0), count)
        stop = count if self.stop is None else min(max(self.stop - first, 0), count)
        return slice(start, max(start, stop))


def whole_lines(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Whole lines, many at a time, and the byte at which they begin. Only the file's last line may have no end.

    A byte order mark at the start of the file is left out, and counted in the bytes.
    """
    byte = 0
    tail: list[bytes] = []
    for data in blocks:
        if not byte and not tail and data.startswith(BOM):
            data, byte = data[len(BOM) :], len(BOM)
        cut = data.rfind(b"\n") + 1
        if not cut:
            tail.append(data)  # a line longer than a block: joined once, when its end arrives
            continue
        lines = b"".join([*tail, data[:cut]]) if tail else data[:cut]
        tail = [data[cut:]] if cut < len(data) else []
        yield lines, byte
        byte += len(lines)
    if rest := b"".join(tail):
        yield rest, byte


def wanted_lines(blocks: Iterable[bytes], rows: RowRange) -> Iterator[tuple[bytes, int, int]]:
    """`whole_lines` of the rows in the range: the lines, the row and the byte at which they begin."""
    row = 1
    for lines, byte in whole_lines(blocks):
        count = lines.count(b"\n") + (not lines.endswith(b"\n"))
        chosen = rows.within(row, count)
        if chosen.start < chosen.stop:
            start = _after_lines(lines, 0, chosen.start)
            stop = len(lines) if chosen.stop == count else _after_lines(lines, start, chosen.stop - chosen.start)
            yield lines[start:stop], row + chosen.start, byte + start
        row += count


def _after_lines(data: bytes, start: int, lines: int) -> int:
    """The byte after this many more line ends."""
    for _ in range(lines):
        start = data.index(b"\n", start) + 1
    return start


def split_lines(data: bytes) -> list[bytes]:
    """Each of some whole lines, without its end."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def why_not_json(line: bytes) -> str:
    """The reason to refuse a line that the parser refuses."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return "invalid_utf8"
    return "bad_json"


class Digested(Protocol):
    """What a reader knows of its whole file once iteration has ended: SHA-256 (hex) and size as stored."""

    @property
    def sha256(self) -> str: ...
    @property
    def bytes_read(self) -> int: ...


D = TypeVar("D", bound=Digested)
B = TypeVar("B")


class ReadThrough(Generic[D]):
    """A reader on top of another one: what was read of the file, and its digest, are that one's."""

    def __init__(self, under: D) -> None:
        self._under = under

    @property
    def sha256(self) -> str:
        return self._under.sha256

    @property
    def bytes_read(self) -> int:
        return self._under.bytes_read


class ParquetBlocks(ABC, Generic[B]):
    """Iterates over the rows of a Parquet file that are in a range, a block a batch of them.

    Row groups without such rows are not read; the digest of the whole file costs one more read of it.
    """

    batch_rows: ClassVar[int]

    def __init__(self, path: Path, label: str, rows: RowRange | None) -> None:
        self._path, self._label, self._range = path, label, rows or RowRange()
        self.sha256 = ""
        self.bytes_read = 0

    @abstractmethod
    def _columns(self, schema: Any) -> list[str] | None:
        """Which columns of a `pyarrow.Schema` are read; None for all."""

    @abstractmethod
    def _block(self, batch: Any, row: int) -> B:
        """The block of a `pyarrow.RecordBatch` that begins at a 1-based row."""

    def count(self) -> int:
        """Rows by the file's footer."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return int(pq.read_metadata(self._path).num_rows)
        except (pa.ArrowException, OSError) as error:
            raise self._unreadable(1, error) from error

    def __iter__(self) -> Iterator[B]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = 1
        try:
            with pq.ParquetFile(self._path, memory_map=True) as file:
                columns = self._columns(file.schema_arrow)
                groups, row = self._groups(file.metadata)
                for batch in file.iter_batches(
                    batch_size=self.batch_rows, row_groups=groups, columns=columns, use_threads=False
                ):
                    chosen = self._range.within(row, batch.num_rows)
                    if chosen.start < chosen.stop:
                        wanted = batch.slice(chosen.start, chosen.stop - chosen.start)
                        yield self._block(wanted, row + chosen.start)
                    row += batch.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # OSError: some damage
            raise self._unreadable(row, error) from error
        self.sha256 = sha256_file(self._path)
        self.bytes_read = self._path.stat().st_size

    def _groups(self, metadata: Any) -> tuple[list[int], int]:
        """The row groups that hold rows of the range, and the row that the first of them begins with."""
        groups: list[int] = []
        first, row = 1, 1
        for group in range(metadata.num_row_groups):
            count = metadata.row_group(group).num_rows
            chosen = self._range.within(row, count)
            if chosen.start < chosen.stop:
                first = row if not groups else first
                groups.append(group)
            row += count
        return groups, first

    def _unreadable(self, row: int, error: Exception) -> CorruptSourceError:
        return CorruptSourceError(
            f"{self._label}: Parquet cannot be read near row {row}: {error}. Fetch the file again"
        )
