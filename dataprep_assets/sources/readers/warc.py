"""WARC and WET: the texts of a crawl, read by fastwarc.

Documents are the records of type `conversion` (all of a WET file) and `resource` whose content is plain text in UTF-8;
their fields: `text`, `url`, `id`, `date`, `language`. A page as it was served (`response`), or another type of content,
is a bad record `not_text`: taking text out of HTML is a step of its own. Rows count all records of the file, as other
tools do; those about the crawl (`warcinfo`, `request`, `metadata`, `revisit`) count as blank lines.

The file is decompressed here (in crawls each record is compressed by itself), so positions are those of the
decompressed file, and one that is cut off is found like any other.
"""

import re
from collections.abc import Iterator
from typing import Any

from dataprep_assets.errors import CorruptSourceError, count_of
from dataprep_assets.sources.readers.blocks import TextReader
from dataprep_assets.sources.readers.input_format import Found, InputFormat, RowByRow
from dataprep_assets.sources.readers.row_files import TOO_LARGE, BadRecord

NOT_TEXT = "not_text"
"""The reason, in the ledger, for refusing a record that holds something else than text."""
_FIELDS = {
    "url": "WARC-Target-URI",
    "id": "WARC-Record-ID",
    "date": "WARC-Date",
    "language": "WARC-Identified-Content-Language",
}
_RECENT = 1 << 18
"""Bytes of a file that are kept for a second look; fastwarc reads ahead by less, and refuses longer headers."""
_END_OF_HEADERS = re.compile(rb"\n\r?\n")
_ENDS = (b"\r\n\r\n", b"\n\n", b"\r\n", b"\n", b"")
"""What may stand behind the content of a record: two line ends, by the standard; fewer lose nothing."""
_TEXTS, _PAGES = ("conversion", "resource"), ("response",)


class _WarcStream:
    """The decompressed bytes of a file, as fastwarc reads them."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._held, self._at = blocks, b"", 0
        self._recent = bytearray()

    def read(self, size: int = -1) -> bytes:
        """At least a byte, at most so many, or none at the end."""
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

    def content_of(self, byte: int) -> int:
        """Return where a record's content begins, which begins itself at `byte`, just after its headers have been
        read."""
        before = self._at - len(self._recent)
        match = _END_OF_HEADERS.search(self._recent, byte - before)
        # headers without an end are those of a file that was cut
        return self._at if match is None else before + match.end()

    def between(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`, of which the last have just been read."""
        before = self._at - len(self._recent)
        return bytes(self._recent[max(start - before, 0) : end - before])


class WarcRows(RowByRow):
    """The records of a WARC or WET file."""

    # which refuses what is no archive of a crawl; inside of one, bytes may be anything
    under = TextReader

    def _find_rows(self) -> Iterator[Found]:
        from fastwarc.warc import ArchiveIterator

        stream: Any = _WarcStream(iter(self._under))
        number, entry, end = 0, None, 0
        try:
            # The file is decompressed already, and pages are not read: so neither a compression nor HTTP is looked for.
            records = ArchiveIterator(
                stream, parse_http=False, verify_digests=False, stream_detect=False, fsspec_args=False
            )
            for number, record in enumerate(records, 1):
                self._require_end(entry, stream.between(end, record.stream_pos))
                content = stream.content_of(record.stream_pos)
                yield (entry := self._row(number, record))
                end = content + record.content_length
        except (OSError, ValueError) as error:
            raise self._corrupt(f"cannot be read after record {number}: {error}") from error
        self._require_end(entry, stream.between(end, stream.tell()))

    def _require_end(self, found: Found | None, rest: bytes) -> None:
        """Raise CorruptSourceError for `rest`, what follows a record's content, if it is more than the record's end.

        fastwarc skips any white space there, which may be the end of a text whose length is declared too small.
        """
        if found is not None and rest not in _ENDS:
            raise self._corrupt(
                f"row {found.number}, byte {found.byte}: its Content-Length is too small: "
                f"{count_of(len(rest), 'byte follows', 'bytes follow')} where only two line ends are allowed"
            )

    def _row(self, number: int, record: Any) -> Found:
        byte, headers, limit = record.stream_pos, record.headers, self._file.max_record_bytes
        length_text = headers.get("Content-Length") or ""
        # without one, or with a wrong one, the next record would begin somewhere else
        if not (length_text.isascii() and length_text.isdigit()):
            raise self._corrupt(f"row {number}, byte {byte}: no valid Content-Length")
        size, kind = int(length_text), headers.get("WARC-Type")
        if record.content_length != size:  # fastwarc looks for this one name as the standard spells it
            raise self._corrupt(
                f"row {number}, byte {byte}: the header Content-Length is spelled differently",
                "Spell it that way",
            )
        data = b"" if size > limit else record.reader.read()
        # consume() skips what was not read, and says how much there was: less than declared if the file was cut.
        if record.consume() + len(data) != size:
            raise self._corrupt(f"row {number}, byte {byte}: the file ends inside the record")
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
        return Found(number, byte, len(data), row)

    def count(self) -> int:
        """All records of the file."""
        return sum(1 for _ in self._find_rows())

    def _corrupt(self, why: str, remedy: str = "Download the file again") -> CorruptSourceError:
        return CorruptSourceError(f"{self._file.label}: WARC: {why}. {remedy}")


FORMAT = InputFormat(rows=WarcRows, needs="fastwarc", extra="dataprep-assets[warc]")
