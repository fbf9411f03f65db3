"""WARC and WET: the texts of a crawl, read by fastwarc.

Documents are records of type `conversion` (all of a WET file) and `resource` whose content is UTF-8 plain text. Their
fields are `text`, `url`, `id`, `date`, `language`. An original page (`response`) or a different type of content is a
bad record `not_text`, because extracting text from HTML is a separate step. Rows count all records of the file, as in
other tools. Records about the crawl (`warcinfo`, `request`, `metadata`, `revisit`) count as blank lines.

The file is decompressed here (each record of a crawl is compressed separately). Positions therefore refer to the
decompressed file, and truncated files are detected as in other formats.
"""

import re
from collections.abc import Iterator
from typing import Any

from dataprep_assets.errors import CorruptSourceError, count_of
from dataprep_assets.sources.readers.blocks import TextReader
from dataprep_assets.sources.readers.input_format import FoundRow, InputFormat, SequentialReader
from dataprep_assets.sources.readers.read_options import NOT_TEXT, TOO_LARGE
from dataprep_assets.sources.readers.row_files import BadRecord

_FIELDS = {
    "url": "WARC-Target-URI",
    "id": "WARC-Record-ID",
    "date": "WARC-Date",
    "language": "WARC-Identified-Content-Language",
}
_RECENT = 1 << 18
"""Recent bytes of a file that are kept for a second read. fastwarc reads ahead by less, and refuses longer headers."""
_END_OF_HEADERS = re.compile(rb"\n\r?\n")
_ENDS = (b"\r\n\r\n", b"\n\n", b"\r\n", b"\n", b"")
"""Allowed bytes after a record's content. The standard requires two line ends, but fewer lose no data."""
_TEXTS, _PAGES = ("conversion", "resource"), ("response",)


class _WarcStream:
    """File object through which fastwarc reads the decompressed bytes of a file."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._held, self._at = blocks, b"", 0
        self._recent = bytearray()

    def read(self, size: int = -1) -> bytes:
        """Return between 1 and `size` bytes, or none at the end."""
        if not self._held:
            self._held = next(self._blocks, b"")
        data, self._held = (self._held, b"") if size < 0 else (self._held[:size], self._held[size:])
        self._at += len(data)
        if len(self._recent) > 4 * _RECENT:
            del self._recent[:-_RECENT]
        self._recent += data
        return data

    def tell(self) -> int:
        return self._at

    def find_content(self, byte: int) -> int:
        """Return the start of the content of the record at `byte`, whose headers have just been read."""
        content_start = self._at - len(self._recent)
        match = _END_OF_HEADERS.search(self._recent, byte - content_start)
        # In a truncated file, the headers may have no end, so there is no content.
        return self._at if match is None else content_start + match.end()

    def read_between(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, the last of which have just been read."""
        content_start = self._at - len(self._recent)
        return bytes(self._recent[max(start - content_start, 0) : end - content_start])


class WarcRows(SequentialReader):
    """Reader of the records of a WARC or WET file."""

    # Use `TextReader`, because it refuses content of other known kinds, such as an HTML page. It does not require a
    # record's content to be UTF-8.
    under = TextReader

    def _find_rows(self) -> Iterator[FoundRow]:
        from fastwarc.warc import ArchiveIterator

        stream: Any = _WarcStream(iter(self._under))
        number, entry, end = 0, None, 0
        try:
            # Disable fastwarc's detection of compression and its parsing of HTTP, because the file is already
            # decompressed and HTTP pages are not read.
            records = ArchiveIterator(
                stream, parse_http=False, verify_digests=False, stream_detect=False, fsspec_args=False
            )
            for number, record in enumerate(records, 1):
                self._require_end(entry, stream.read_between(end, record.stream_pos))
                content = stream.find_content(record.stream_pos)
                yield (entry := self._build_row(number, record))
                end = content + record.content_length
        except (OSError, ValueError) as error:
            raise self._build_corrupt_error(f"cannot be read after record {number}: {error}") from error
        self._require_end(entry, stream.read_between(end, stream.tell()))

    def _require_end(self, row: FoundRow | None, rest: bytes) -> None:
        """Raise CorruptSourceError if `rest`, the bytes after a record's content, are more than the record's end.

        fastwarc skips any white space there, which may belong to a text whose declared length is too small.
        """
        if row is not None and rest not in _ENDS:
            raise self._build_corrupt_error(
                f"row {row.number}, byte {row.byte}: its Content-Length is too small: "
                f"{count_of(len(rest), 'byte follows', 'bytes follow')} where only two line ends are allowed"
            )

    def _build_row(self, number: int, record: Any) -> FoundRow:
        byte, headers, limit = record.stream_pos, record.headers, self._file.max_record_bytes
        length_text = headers.get("Content-Length") or ""
        # Refuse an invalid length, because reading would continue at a wrong position.
        if not (length_text.isascii() and length_text.isdigit()):
            raise self._build_corrupt_error(f"row {number}, byte {byte}: missing or invalid Content-Length")
        size, kind = int(length_text), headers.get("WARC-Type")
        if record.content_length != size:  # fastwarc recognizes only the standard's spelling of this header
            raise self._build_corrupt_error(
                f"row {number}, byte {byte}: the name of the header Content-Length is misspelled",
                "Correct its spelling",
            )
        data = b"" if size > limit else record.reader.read()
        # Compare the lengths, because consume(), which skips and counts the unread bytes, finds fewer of them in a
        # truncated file.
        if record.consume() + len(data) != size:
            raise self._build_corrupt_error(f"row {number}, byte {byte}: the file ends inside the record")
        row: dict[str, Any] | BadRecord | None
        if kind not in (*_TEXTS, *_PAGES):
            row = None
        elif kind in _PAGES or not (headers.get("Content-Type") or "").lower().startswith("text/plain"):
            description = "of a type other than text/plain" if headers.get("Content-Type") else "without a Content-Type"
            row = BadRecord(number, byte, NOT_TEXT, f"a {kind} record {description}")
        elif size > limit:
            row = BadRecord(number, byte, TOO_LARGE)
        else:
            try:
                row = {"text": data.decode(), **{name: headers.get(header) for name, header in _FIELDS.items()}}
            except UnicodeDecodeError:
                row = BadRecord(number, byte, "invalid_utf8")
        return FoundRow(number, byte, len(data), row)

    def count(self) -> int:
        """Return the number of all records of the file."""
        return sum(1 for _ in self._find_rows())

    def _build_corrupt_error(self, reason: str, remedy: str = "Download the file again") -> CorruptSourceError:
        return CorruptSourceError(f"{self._file.label}: WARC: {reason}. {remedy}")


FORMAT = InputFormat(rows=WarcRows, needs="fastwarc", extra="dataprep-assets[warc]")
