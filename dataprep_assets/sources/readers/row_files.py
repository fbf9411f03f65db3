"""Readers of row files: JSON Lines as whole lines, Parquet as batches, both within a range of rows.

`records.py` turns these rows into texts, and `rows.py` into objects. Rows are physical: lines of a JSON Lines file
(including blank ones), elements of an array, rows of a Parquet file.

Entry points: `BadRecord`; `read_whole_lines`, `read_wanted_lines`, `BlankLines`; `DigestingReader`,
`ParquetBlocks`, `WrappingReader`.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import orjson

from dataprep_assets.bounds import MAX_VALUES, has_too_many_values, must_read_single_rows, report_position
from dataprep_assets.errors import CorruptSourceError, FormatError, RowPosition, build_memory_error
from dataprep_assets.sources.readers.contents import BOM, detect_non_table
from dataprep_assets.sources.readers.json_values import describe_fault
from dataprep_assets.sources.readers.parquet_pages import count_rows_at_once
from dataprep_assets.sources.readers.read_options import MAX_RECORD_BYTES, RowRange
from dataprep_assets.stores.files import sha256_file

_GROUP_BYTES = 4 << 20
"""Bytes of lines that are yielded together, so that each later step finds its own tables in the CPU's cache."""


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A refused record: 1-based row, byte offset of its line in the decompressed file (-1 for Parquet), reason.

    `fault` is a detail of the reason `bad_json`. It is not stored in artifacts, because ledgers and keys have
    one count per reason.
    """

    row: int
    byte: int
    reason: str
    fault: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return the reason in words: `bad_json (a lone surrogate)`."""
        return f"{self.reason} ({self.fault})" if self.fault else self.reason

    @property
    def position(self) -> RowPosition:
        """Its position in its file."""
        return RowPosition(row=self.row, byte=self.byte) if self.byte >= 0 else RowPosition(row=self.row)


class Lines:
    """Some whole lines of a file, as slices of its blocks; nothing is copied until they are split."""

    __slots__ = ("_begun", "_blocks")

    def __init__(self, begun: list[bytes], blocks: list[bytes]) -> None:
        """Store lines without splitting them.

        Args:
            begun: The pieces of a line that began in earlier blocks.
            blocks: The blocks with the end of that line and the following lines. Each block contains a line ending, and
                bytes after its last line ending do not count. Empty if the file ended before the line did.
        """
        self._begun, self._blocks = begun, blocks

    def __len__(self) -> int:
        return sum(block.count(b"\n") for block in self._blocks) or 1  # `or 1` counts a last line without a line ending

    @property
    def is_blank(self) -> bool:
        """Whether the lines contain only white space. May be False for some blank lines."""
        return bool(self._blocks) and all(map(bytes.isspace, self._blocks)) and not b"".join(self._begun).strip()

    def split(self) -> list[bytes]:
        """Return the lines without their line endings. Call this only once, because it releases the blocks."""
        line_parts, blocks = self._begun, self._blocks
        self._begun = self._blocks = []
        lines: list[bytes] = []
        for block in blocks:
            pieces = block.split(b"\n")
            if line_parts:
                line_parts.append(pieces[0])
                pieces[0] = b"".join(line_parts)
            line_parts = [pieces.pop()]
            lines += pieces
        return lines if blocks else [b"".join(line_parts)]


def read_whole_lines(
    blocks: Iterable[bytes], max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[tuple[Lines | None, int]]:
    """Yield groups of whole lines, and their byte offset. Only the file's last line may have no line ending.

    A line of more than `max_record_bytes` that extends over several blocks is skipped without keeping it in memory, and
    yielded separately as None. A long line within a block is yielded with the others, and the parser refuses it. A byte
    order mark at the start of the file is removed, but counted in the bytes.
    """
    byte = 0
    # `group` has the blocks whose lines will be yielded together, and `group_bytes` is the size of these lines.
    # `opening` has the parts of the line that ends in the first block of the group. `line_parts` has the parts of the
    # unfinished line after the group, unless that line is too long to keep, and `line_bytes` is the size of that line.
    opening: list[bytes] = []
    group: list[bytes] = []
    group_bytes = 0
    line_parts: list[bytes] = []
    line_bytes = 0
    for data in blocks:
        if not byte and not line_bytes and not group and data.startswith(BOM):
            data, byte = data[len(BOM) :], len(BOM)
        first_end, last_end = data.find(b"\n") + 1, data.rfind(b"\n") + 1
        length = line_bytes + (first_end or len(data))
        too_long = line_bytes > 0 and length > max_record_bytes
        # Yield complete lines first, because the next line is skipped or continues in the next blocks.
        if group and (too_long or not first_end):
            yield Lines(opening, group), byte
            byte, group_bytes, group = byte + group_bytes, 0, []
        if too_long:
            line_parts, line_bytes = [], length
            if not first_end:
                continue
            yield None, byte
            byte, data, last_end, line_bytes = byte + length, data[first_end:], last_end - first_end, 0
        if not last_end:
            # Collect the parts of a line that is longer than a block, because they can be joined only once the line
            # ends.
            line_parts, line_bytes = [*line_parts, data], line_bytes + len(data)
            continue
        if not group:
            opening = line_parts
        group.append(data)
        group_bytes, line_bytes = group_bytes + line_bytes + last_end, len(data) - last_end
        line_parts = [data[last_end:]] if line_bytes else []
        if group_bytes >= _GROUP_BYTES:
            yield Lines(opening, group), byte
            byte, group_bytes, group = byte + group_bytes, 0, []
    if group:
        yield Lines(opening, group), byte
    if line_bytes:
        yield Lines(line_parts, []) if line_parts else None, byte + group_bytes


class BlankLines(int):
    """A number of blank lines, unsplit, because a file of a few kilobytes can decompress to a billion of them."""


def read_wanted_lines(
    blocks: Iterable[bytes], rows: RowRange, max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[tuple[list[bytes] | BlankLines | None, int, int]]:
    """Yield the lines of the rows in the range, in the groups of `read_whole_lines`, with their first row and byte.

    The lines are split. They are None for a line that is too long to keep in memory.
    """
    row, blocks = 1, iter(blocks)
    for line_group, byte in read_whole_lines(blocks, max_record_bytes):
        if rows.stop is not None and row >= rows.stop:
            # No further line is needed, but the rest must be read, because the reader digests the whole file.
            deque(blocks, maxlen=0)
            return
        count = 1 if line_group is None else len(line_group)
        span = rows.select_rows(row, count)
        if span.start < span.stop:
            if line_group is None:
                yield None, row, byte
            elif line_group.is_blank:
                yield BlankLines(span.stop - span.start), row + span.start, byte
            else:
                lines = line_group.split()
                skipped = lines[: span.start]
                first_row, begins = row + span.start, byte + sum(map(len, skipped)) + len(skipped)
                lines = lines[span]
                if must_read_single_rows():
                    for line in lines:
                        yield [line], first_row, begins
                        first_row, begins = first_row + 1, begins + len(line) + 1
                else:
                    yield lines, first_row, begins
                del lines  # free the lines before joining the next record, because they may be as large as a record
        row += count


def is_too_large(line: bytes, max_record_bytes: int) -> bool:
    """Return whether a line is longer than the limit, or would take many times its length after parsing."""
    return len(line) > max_record_bytes or has_too_many_values(line)


def may_be_too_large(lines: list[bytes], max_record_bytes: int) -> bool:
    """Return whether any of these lines may be too large, so that they must be checked one by one."""
    # A value takes at least two bytes with its comma, so a line of at most `2 * MAX_VALUES - 1` bytes cannot have too
    # many values.
    return max(map(len, lines), default=0) > min(max_record_bytes, 2 * MAX_VALUES - 1)


def build_invalid_record(row: int, byte: int, line: bytes, error: orjson.JSONDecodeError) -> BadRecord:
    """Return the refused record for a line that the parser refuses with this error."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return BadRecord(row, byte, "invalid_utf8")
    return BadRecord(row, byte, "bad_json", describe_fault(error))


class DigestingReader(Protocol):
    """Facts about the whole file that a reader knows after iteration: SHA-256 (hex) and size as stored."""

    @property
    def sha256(self) -> str: ...
    @property
    def bytes_read(self) -> int: ...


D = TypeVar("D", bound=DigestingReader)
B = TypeVar("B")


class WrappingReader(Generic[D]):
    """A reader on top of another reader, which provides the digest and the number of bytes read."""

    def __init__(self, reader: D) -> None:
        self._under = reader

    @property
    def sha256(self) -> str:
        return self._under.sha256

    @property
    def bytes_read(self) -> int:
        return self._under.bytes_read


class ParquetBlocks(ABC, Generic[B]):
    """Iterator over the rows of a Parquet file in a range, one block per batch.

    Row groups without such rows are not read. The digest of the whole file requires an additional read.
    """

    batch_rows: ClassVar[int]

    def __init__(self, path: Path, label: str, rows: RowRange | None) -> None:
        self._path, self._label, self._range = path, label, rows or RowRange()
        self.sha256 = ""
        self.bytes_read = 0

    @abstractmethod
    def _select_columns(self, schema: Any) -> list[str] | None:
        """Return the columns of a `pyarrow.Schema` to read; None for all."""

    @abstractmethod
    def _build_block(self, batch: Any, row: int) -> B:
        """Return the block of a `pyarrow.RecordBatch` that begins at a 1-based row."""

    def _split_batch(self, batch: Any) -> Iterator[Any]:
        """Return the parts of a batch that become one block each."""
        step = 1 if must_read_single_rows() else batch.num_rows
        return (batch.slice(start, step) for start in range(0, batch.num_rows, step))

    def count(self) -> int:
        """Return the number of rows in the file's footer."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return int(pq.read_metadata(self._path).num_rows)
        except (pa.ArrowException, OSError) as error:
            raise self._build_unreadable_error(1, error) from error

    def __iter__(self) -> Iterator[B]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = 1
        try:
            # Verify checksums if the writer stored them, because a damaged page may decode to a different text.
            with pq.ParquetFile(self._path, memory_map=True, page_checksum_verification=True) as file:
                columns = self._select_columns(file.schema_arrow)
                groups, row = self._find_row_groups(file.metadata)
                report_position(self._label, row)
                for batch in self._read_batches(file, groups, columns):
                    span = self._range.select_rows(row, batch.num_rows)
                    if span.start < span.stop:
                        first_row = row + span.start
                        for part in self._split_batch(batch.slice(span.start, span.stop - span.start)):
                            report_position(self._label, first_row)
                            yield self._build_block(part, first_row)
                            first_row += part.num_rows
                    row += batch.num_rows
        except (MemoryError, pa.ArrowMemoryError):
            raise build_memory_error(f"{self._label}, near row {row}") from None
        # Also catch OSError, because pyarrow reports some damage in this way.
        except (pa.ArrowException, OSError, UnicodeDecodeError, FormatError) as error:
            raise self._build_unreadable_error(row, error) from error
        self.sha256 = sha256_file(self._path)
        self.bytes_read = self._path.stat().st_size

    def _read_batches(self, file: Any, groups: list[int], columns: list[str] | None) -> Iterator[Any]:
        """Yield the record batches of these row groups, each of a bounded size."""
        with open(self._path, "rb") as raw, ExitStack() as stack:
            longest = _LongestValues(self._path, stack)

            def rows(group: int) -> int:
                return count_rows_at_once(
                    raw.fileno(), file.metadata, group, columns, self.batch_rows, partial(longest, group)
                )

            for size, same_size_groups in groupby(groups, rows):
                yield from file.iter_batches(
                    batch_size=size, row_groups=list(same_size_groups), columns=columns, use_threads=False
                )

    def _find_row_groups(self, metadata: Any) -> tuple[list[int], int]:
        """Return the row groups with rows of the range, and the first row of the first group."""
        groups: list[int] = []
        first_row, row = 1, 1
        for group in range(metadata.num_row_groups):
            count = metadata.row_group(group).num_rows
            span = self._range.select_rows(row, count)
            if span.start < span.stop:
                first_row = row if not groups else first_row
                groups.append(group)
            row += count
        return groups, first_row

    def _build_unreadable_error(self, row: int, error: Exception) -> CorruptSourceError:
        with suppress(OSError):  # the file may be missing, which the error below reports
            if (kind := detect_non_table(self._path, ".parquet")) is not None:
                return CorruptSourceError(f"{self._label}: {kind}")
        reason = str(error).rstrip(".")  # Arrow ends some of its messages with a period
        return CorruptSourceError(
            f"{self._label}: invalid Parquet data near row {row}: {reason}. Download the file again",
            file=self._label,
            row=row,
        )


class _LongestValues:
    """Lookup of the bytes of the longest value in a column's dictionary, by the column's path.

    Returns None if the column is nested or does not contain texts. The file is opened a second time on the first call.
    """

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path, self._opened = path, stack
        self._file: Any = None

    def __call__(self, group: int, column: str) -> int | None:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        if self._file is None:
            schema = pq.read_schema(self._path, memory_map=True)
            # Leave out nested columns, because `read_dictionary` does not find them by name.
            names = [field.name for field in schema if not pa.types.is_nested(field.type)]
            self._file = self._opened.enter_context(pq.ParquetFile(self._path, memory_map=True, read_dictionary=names))
        # One row is enough, because its batch includes the whole dictionary.
        batches = self._file.iter_batches(batch_size=1, row_groups=[group], columns=[column], use_threads=False)
        batch = next(batches, None)
        if batch is None or not batch.num_columns or not isinstance(values := batch.column(0), pa.DictionaryArray):
            return None
        lengths = pc.binary_length(values.dictionary)
        return int(pc.max(lengths).as_py() or 0)
