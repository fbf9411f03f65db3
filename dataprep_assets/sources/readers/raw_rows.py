"""Rows of a source file as the file has them, to show rows that did not become documents.

Entry point: `RawRows`.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.sources.readers.blocks import TextReader
from dataprep_assets.sources.readers.input_format import RowReader
from dataprep_assets.sources.readers.row_files import BadRecord

MAX_LINE_BYTES = 64 << 10
"""Maximum number of bytes that are shown of an unreadable row, because a file without line ends is a single line."""


_FoundRow = tuple[int, int, Mapping[str, Any] | BadRecord]
"""Number, byte offset and content of a row."""


@dataclass(frozen=True, kw_only=True)
class RawRow:
    """A row of a source file.

    Attributes:
        byte: Its byte offset in the decompressed file; None if the format has none.
        text: The row as JSON, or the first bytes of its line if it cannot be read; None if the format has no lines.
        values: Its values; None if it cannot be read.
        reason: Why it cannot be read; empty otherwise.
    """

    byte: int | None
    text: str | None
    values: Mapping[str, Any] | None
    reason: str


class RawRows:
    """Lookup of rows of one file in ascending order, in one pass."""

    def __init__(self, read_from: Callable[[int], RowReader], text: TextReader) -> None:
        """Set the readers, which open the file later.

        Args:
            read_from: Returns a reader of the file's rows from a number on.
            text: Reader of the file's text.
        """
        self._read_from = read_from
        self._rows: Iterator[_FoundRow] | None = None
        self._lines = _LineStarts(text)

    def find(self, number: int) -> RawRow | None:
        """Return the row with a number that is larger than the last one; None if the file has no such row."""
        if self._rows is None:
            self._rows = self._iterate_rows(number)
        found_number, offset, content = next((row for row in self._rows if row[0] >= number), (0, 0, {}))
        if found_number != number:
            return None
        byte = offset if offset >= 0 else None
        if isinstance(content, BadRecord):
            text = None if byte is None else self._lines.read(byte)
            return RawRow(byte=byte, text=text, values=None, reason=content.reason)
        text = json.dumps(content, ensure_ascii=False, default=str)
        return RawRow(byte=byte, text=text, values=content, reason="")

    def _iterate_rows(self, first_row: int) -> Iterator[_FoundRow]:
        """Yield the number, the byte offset and the content of each row from a number on."""
        for block in self._read_from(first_row):
            rows: list[_FoundRow] = list(zip(block.numbers, block.offsets, block.rows, strict=True))
            rows += [(record.row, record.byte, record) for record in block.bad]
            yield from sorted(rows, key=lambda row: row[0])


class _LineStarts:
    """Lookup of the first bytes of lines in ascending order, in one pass."""

    def __init__(self, text: TextReader) -> None:
        self._blocks = iter(text)
        # `_data` is the part of the decompressed file that begins at the byte `_start`.
        self._data, self._start = b"", 0

    def read(self, byte: int) -> str | None:
        """Return the line at a byte offset, up to `MAX_LINE_BYTES`; None if the file is not text."""
        try:
            while self._start + len(self._data) < byte + MAX_LINE_BYTES:
                # Drop the bytes before the line, so that the memory does not depend on the size of the file.
                dropped_count = min(max(0, byte - self._start), len(self._data))
                self._start += dropped_count
                block = next(self._blocks, b"")
                self._data = self._data[dropped_count:] + block
                if not block:
                    break
        except CorruptSourceError:  # a file of a binary format has no lines
            return None
        offset = byte - self._start
        line, _, _ = self._data[offset : offset + MAX_LINE_BYTES].partition(b"\n")
        return line.decode("utf-8", "backslashreplace")
