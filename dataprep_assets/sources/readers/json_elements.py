"""Split a byte stream into the elements of one JSON array or object, with a scanner for strings and escapes.

Memory is limited to one element and one block, for files of any size. A parser decides whether an element is valid.
Messages never contain file content, because files may contain patient data.
"""

import re
from collections.abc import Iterator

from dataprep_assets.errors import CorruptSourceError, count_of
from dataprep_assets.sources.readers.contents import BOM

_WHITE = b" \t\r\n"
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPENING, _CLOSING = b"[{", b"]}"
# Unlike `_DEEPER`, this also matches commas, because commas separate the elements. The element's parser handles the
# commas inside an element.
_BETWEEN = re.compile(rb'["{}\[\],]')
# The repeat is not possessive, because in Python 3.11.2 the possessive repeat of a group matches one byte too many. It
# is bounded, because a repeat that is not possessive needs memory for each repetition.
_INNERMOST = re.compile(rb'(?:[^"{}\[\]]++|\{[^"{}\[\]]*+\}|\[[^"{}\[\]]*+\]){1,4096}')
"""Pairs of brackets without strings and brackets inside, up to 4,096 of possibly millions in a row."""
_DEEPER = re.compile(rb'["{}\[\]]')


def strip_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the blocks of a file without its byte order mark."""
    for data in blocks:
        # Replace the mark with white space, so that byte positions count from the start of the file.
        yield data.replace(BOM, b"   ", 1) if data.startswith(BOM) else data
        break
    yield from blocks


class ElementScanner:
    """Scanner that cuts one JSON array or object into its elements.

    `label` names the file. Elements of more than `largest` bytes are not kept in memory.

    Raises CorruptSourceError for a file that ends early, or has data after its end.
    """

    def __init__(self, noun: str, label: str, largest: int) -> None:
        """Start before the array or object; `noun` is `array` or `object`."""
        index = 0 if noun == "array" else 1
        self._opening, self._closing, self._what = _OPENING[index], _CLOSING[index], noun
        self._label, self._largest = label, largest
        self._depth = 0
        self._closed = False
        self._in_string = False
        # `_escaped` is true if the previous block ended within an escape of a string. `_pieces` has the parts of the
        # current element from earlier blocks, and is empty if the element is too large. `_held` is the number of the
        # element's bytes in earlier blocks. `_byte` and `_element` are the bytes at which the current block and the
        # current element begin.
        self._escaped = False
        self._pieces: list[bytes] = []
        self._held = 0
        self._byte = 0
        self._element = 0
        self._rows = 0

    def cut_elements(self, blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes | None]]:
        """Yield the byte offset and stripped content of each element; content of more than `largest` bytes is None."""
        for data in strip_mark(blocks):
            yield from self._feed(data)
            self._byte += len(data)
        if not self._closed:
            value_start = (
                f"in record {self._rows + 1}, which begins at byte {self._element}"
                if self._depth
                else "before any record"
            )
            raise CorruptSourceError(
                f"{self._label}: unexpected end of file at byte {self._byte}, {value_start}, inside the {self._what}. "
                "The file is truncated, or a quote or bracket is missing. Download it again",
                file=self._label,
                byte=self._byte,
            )

    def _feed(self, data: bytes) -> Iterator[tuple[int, bytes | None]]:
        offset = self._enter(data) if not self._depth and not self._closed else 0
        start = offset
        while offset < len(data) and not self._closed:
            if self._in_string:
                offset = self._leave_string(data, offset)
                continue
            if self._depth > 1 and (match := _INNERMOST.match(data, offset)):
                offset = match.end()
            match = (_BETWEEN if self._depth == 1 else _DEEPER).search(data, offset)
            if match is None:
                break
            offset, byte = match.end(), data[match.start()]
            if byte == _QUOTE:
                self._in_string = True
            elif byte in _OPENING:
                self._depth += 1
            # Treat all kinds of brackets alike, because the element's parser checks whether they match.
            elif byte != _COMMA:
                self._depth -= 1
            if byte == _COMMA or not self._depth:
                yield from self._end_element(data[start : offset - 1], byte)
                self._element = self._byte + offset
                start = offset
        if self._closed:
            self._require_nothing_follows(data, start)
        elif start < len(data):
            self._held += len(data) - start
            if self._held <= self._largest:
                self._pieces.append(data[start:])
            else:
                self._pieces.clear()

    def _enter(self, data: bytes) -> int:
        """Return the position after the opening bracket, or the end of the block if the block is blank."""
        blank = len(data) - len(data.lstrip(_WHITE))
        if blank == len(data):
            return blank
        if data[blank] != self._opening:
            raise CorruptSourceError(
                f"{self._label}: no JSON {self._what} begins at byte {self._byte + blank}. Correct `cohorts.format`",
                file=self._label,
                byte=self._byte + blank,
            )
        self._depth = 1
        self._element = self._byte + blank + 1
        return blank + 1

    def _leave_string(self, data: bytes, position: int) -> int:
        """Return the position after the end of the string, or the end of the block."""
        if self._escaped:
            self._escaped = False
            position += 1
        while True:
            quote = data.find(_QUOTE, position)
            stop = len(data) if quote < 0 else quote
            # A quote after an odd number of backslashes is part of the string. Count the backslashes only if there is
            # one before the quote, because counting copies the bytes before it.
            escapes = stop - position - len(data[position:stop].rstrip(b"\\")) if data[stop - 1 : stop] == b"\\" else 0
            if quote < 0:
                self._escaped = escapes % 2 == 1
                return stop
            position = stop + 1
            if escapes % 2 == 0:
                self._in_string = False
                return position

    def _end_element(self, last: bytes, delimiter: int) -> Iterator[tuple[int, bytes | None]]:
        size, self._held = self._held + len(last), 0
        if size > self._largest:
            self._pieces.clear()
            self._closed = delimiter != _COMMA
            if self._closed and delimiter != self._closing:
                raise self._build_invalid_json_error(self._element + size)
            self._rows += 1
            yield self._element, None
            return
        raw = b"".join([*self._pieces, last])
        self._pieces.clear()
        content = raw.lstrip(_WHITE)
        self._closed = delimiter != _COMMA
        # Refuse a wrong closing bracket, and an empty element after a comma: only an empty container may have nothing
        # before its closing bracket.
        if self._closed and (delimiter != self._closing or (not content and self._rows)):
            raise self._build_invalid_json_error(self._element + len(raw))
        if self._closed and not content:
            return
        self._rows += 1
        if not content:
            raise self._build_invalid_json_error(self._element + len(raw))
        yield self._element + len(raw) - len(content), content.rstrip(_WHITE)

    def _require_nothing_follows(self, data: bytes, position: int) -> None:
        remainder = data[position:].lstrip(_WHITE)
        if remainder:
            raise self._build_invalid_json_error(self._byte + len(data) - len(remainder))

    def _build_invalid_json_error(self, byte: int) -> CorruptSourceError:
        return CorruptSourceError(
            f"{self._label}: invalid JSON {self._what} at byte {byte}, after {count_of(self._rows, 'record')}. "
            "Correct the file, or download it again",
            file=self._label,
            byte=byte,
        )
