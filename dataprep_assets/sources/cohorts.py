"""Cohort files: one JSON file a month of birth, read patient by patient.

A cohort is a JSON array of patients, a JSON object of them, or JSON lines. Arrays and objects are cut into their
elements by a scanner that knows strings and escapes and nothing else, so memory is that of one patient and one block,
whatever the size of the file; what an element is worth is then decided by a strict parser.

Patients' data pass through here, so no message and no `repr` has anything of a file's content or name: messages name
the month, the record, the byte.

Entry points: `expected_months`, `find_cohorts`; `CohortReader`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from dataprep_assets.errors import ConfigError, CorruptSourceError, SourceError
from dataprep_assets.planning.manifest import SourceFile
from dataprep_assets.sources.blocks import BlockReader
from dataprep_assets.sources.json_values import parse
from dataprep_assets.sources.row_files import (
    MAX_RECORD_BYTES,
    TOO_LARGE,
    BadRecord,
    is_too_large,
    split_lines,
    whole_lines,
)

__all__ = ["CohortFormat", "CohortReader", "PatientRecord", "compression_of", "expected_months", "find_cohorts"]

CohortFormat = Literal["json_array", "json_object", "jsonl"]

_MONTH = re.compile(r"(?P<year>[0-9]{4})-(?P<month>0[1-9]|1[0-2])")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHITE = b" \t\r\n"
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPENING, _CLOSING = b"[{", b"]}"
# Commas matter between the elements alone; deeper ones are left to the parser.
_BETWEEN = re.compile(rb'["{}\[\],]')
_DEEPER = re.compile(rb'["{}\[\]]')


def expected_months(first: str, last: str, absent: Collection[str] = ()) -> list[str]:
    """The months ``YYYY-MM`` from ``first`` to ``last``, both included, without the ``absent`` ones.

    ConfigError for what is not a month, for a first after the last, and for an absent month outside of them.
    """
    for month in (first, last, *absent):
        if not _MONTH.fullmatch(month):
            raise ConfigError(f"months: {month!r} is not a year and a month, YYYY-MM")
    if first > last:
        raise ConfigError(f"months: first {first} is after last {last}")
    months = [_name(number) for number in range(_number(first), _number(last) + 1)]
    if outside := sorted(set(absent) - set(months)):
        raise ConfigError(f"months: {outside} are not from {first} to {last}")
    return [month for month in months if month not in absent]


def _number(month: str) -> int:
    year, number = month.split("-")
    return int(year) * 12 + int(number) - 1


def _name(number: int) -> str:
    return f"{number // 12:04d}-{number % 12 + 1:02d}"


def find_cohorts(
    files: Iterable[SourceFile], pattern: str, expected: Sequence[str], absent: Collection[str] = ()
) -> dict[str, SourceFile]:
    """Month → its file, of the expected months that have one, in their order.

    ``pattern``: a regular expression that matches the whole path of a cohort inside the source, with the groups
    ``year`` and ``month``. Files that do not match, and months that are not expected, are left alone. SourceError for
    a month that two files claim, and for a file of a month that was declared absent. No message names a file.
    """
    compiled = re.compile(pattern)
    found: dict[str, SourceFile] = {}
    twice: set[str] = set()
    for file in files:
        if (match := compiled.fullmatch(file.relpath)) is None:
            continue
        month = f"{int(match['year']):04d}-{int(match['month']):02d}"
        if month in found:
            twice.add(month)
        found[month] = file
    if wrong := sorted(twice & {*expected, *absent}):
        raise SourceError(f"months {_shown(wrong)} have several files each; leave one of each in the source")
    if wrong := sorted(found.keys() & set(absent)):
        raise SourceError(
            f"months {_shown(wrong)} have a file, but months.allow_missing says that they have none; correct it"
        )
    return {month: found[month] for month in expected if month in found}


def _shown(months: Sequence[str]) -> str:
    return ", ".join(months[:8]) + (f" and {len(months) - 8} more" if len(months) > 8 else "")


def compression_of(relpath: str) -> str | None:
    """``zstd``, ``gzip`` or None, by the suffix of the name."""
    return {".zst": "zstd", ".gz": "gzip"}.get(Path(relpath).suffix.lower())


@dataclass(frozen=True, slots=True)
class PatientRecord:
    """One element of a cohort: its number from 1, the byte (of the decompressed file) where it begins, its content.

    ``key`` is that of the element in a JSON object, None in an array or a line.
    """

    row: int
    byte: int
    key: str | None = field(repr=False)
    value: dict[str, Any] = field(repr=False)


class CohortReader:
    """Iterates over the records of one file: `PatientRecord`, or `BadRecord` for an element that is no JSON object.

    ``label`` names the file in messages. `sha256` and `bytes_read` are final once iteration has ended. Reasons of bad
    records are ``bad_json`` (JSON lines alone), ``invalid_utf8``, ``not_an_object`` and, for a patient of more than
    ``max_record_bytes``, ``too_large``.

    CorruptSourceError for a file that ends early, goes on behind its end, or is not of its format, and for an element
    of an array or object that is not JSON: where one element ends is not certain then, so none can be dropped alone.
    """

    def __init__(
        self,
        path: Path,
        format: CohortFormat,
        compression: str | None,
        label: str,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self._blocks = BlockReader(path, compression, label)
        self._format, self._label, self._largest = format, label, max_record_bytes

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the file as stored."""
        return self._blocks.sha256

    @property
    def bytes_read(self) -> int:
        """Bytes of the file as stored that were read."""
        return self._blocks.bytes_read

    def __iter__(self) -> Iterator[PatientRecord | BadRecord]:
        elements = (
            _lines(self._data(), self._largest)
            if self._format == "jsonl"
            else _Elements(self._format, self._label, self._largest).cut(self._data())
        )
        for row, (byte, raw) in enumerate(elements, 1):
            if raw is None or is_too_large(raw, self._largest):
                yield BadRecord(row, byte, TOO_LARGE)
            elif raw:
                yield self._record(row, byte, raw)

    def _data(self) -> Iterator[bytes]:
        return iter(self._blocks)

    def _record(self, row: int, byte: int, raw: bytes) -> PatientRecord | BadRecord:
        key, value = None, None
        try:
            # Braces make an object of one pair; the parser then also sees to the key, the colon and what follows.
            value = parse(b"{%b}" % raw if self._format == "json_object" else raw)
        except orjson.JSONDecodeError:
            return self._refused(row, byte, raw)
        if self._format == "json_object":
            ((key, value),) = value.items()
        if not isinstance(value, dict):
            return BadRecord(row, byte, "not_an_object")
        return PatientRecord(row, byte, key, value)

    def _refused(self, row: int, byte: int, raw: bytes) -> BadRecord:
        try:
            raw.decode()
        except UnicodeDecodeError:
            return BadRecord(row, byte, "invalid_utf8")
        if self._format == "jsonl":
            return BadRecord(row, byte, "bad_json")
        broken = f"{self._label}: record {row} at byte {byte} is not JSON; mend the file or fetch it again"
        raise CorruptSourceError(broken) from None


def _lines(blocks: Iterator[bytes], largest: int) -> Iterator[tuple[int, bytes | None]]:
    """Byte and content of each line, white space stripped; None for one of more bytes. Blank lines are empty."""
    for lines, byte in whole_lines(_without_mark(blocks), largest):
        if lines is None:
            yield byte, None
            continue
        for line in split_lines(lines):
            yield byte, line.strip(_WHITE) if len(line) <= largest else None
            byte += len(line) + 1


def _without_mark(blocks: Iterator[bytes]) -> Iterator[bytes]:
    for data in blocks:
        # Replaced by white space, so that bytes are counted from the start of the file.
        yield data.replace(_BYTE_ORDER_MARK, b"   ", 1) if data.startswith(_BYTE_ORDER_MARK) else data
        break
    yield from blocks


class _Elements:
    """Cuts one JSON array or object into its elements."""

    def __init__(self, format: CohortFormat, label: str, largest: int) -> None:
        at = 0 if format == "json_array" else 1
        self._opening, self._closing, self._what = _OPENING[at], _CLOSING[at], format.removeprefix("json_")
        self._label, self._largest = label, largest
        self._depth = 0
        self._closed = False
        self._in_string = False
        self._escaped = False  # the block before ended within an escape of a string
        self._pieces: list[bytes] = []  # of the element at work, from blocks before; empty when it is too large
        self._held = 0  # bytes of that element in the blocks before
        self._byte = 0  # where the block at work begins
        self._element = 0  # where the element at work begins
        self._rows = 0

    def cut(self, blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes | None]]:
        """Byte and content of each element, white space stripped; None for one of more bytes than may be held."""
        for data in _without_mark(blocks):
            yield from self._feed(data)
            self._byte += len(data)
        if not self._closed:
            began = f"in record {self._rows + 1}, which begins at byte {self._element}" if self._depth else "at once"
            raise CorruptSourceError(
                f"{self._label}: the file ends {began}: byte {self._byte} is its end, not that of the {self._what}. "
                "It was cut, or a quote or bracket is missing; fetch it again"
            )

    def _feed(self, data: bytes) -> Iterator[tuple[int, bytes | None]]:
        at = self._enter(data) if not self._depth and not self._closed else 0
        start = at
        while at < len(data) and not self._closed:
            if self._in_string:
                at = self._leave_string(data, at)
                continue
            match = (_BETWEEN if self._depth == 1 else _DEEPER).search(data, at)
            if match is None:
                break
            at, byte = match.end(), data[match.start()]
            if byte == _QUOTE:
                self._in_string = True
            elif byte in _OPENING:
                self._depth += 1
            elif byte != _COMMA:
                self._depth -= 1
            if byte == _COMMA or not self._depth:
                yield from self._ended(data[start : at - 1], byte)
                self._element = self._byte + at
                start = at
        if self._closed:
            self._nothing_follows(data, start)
        elif start < len(data):
            self._held += len(data) - start
            if self._held <= self._largest:
                self._pieces.append(data[start:])
            else:
                self._pieces.clear()

    def _enter(self, data: bytes) -> int:
        """Past the opening bracket, if the block has one."""
        blank = len(data) - len(data.lstrip(_WHITE))
        if blank == len(data):
            return blank
        if data[blank] != self._opening:
            raise CorruptSourceError(
                f"{self._label}: byte {self._byte + blank} does not begin a JSON {self._what}; correct cohorts.format"
            )
        self._depth = 1
        self._element = self._byte + blank + 1
        return blank + 1

    def _leave_string(self, data: bytes, at: int) -> int:
        """Past the end of the string, or the end of the block."""
        if self._escaped:
            self._escaped = False
            at += 1
        while True:
            quote = data.find(_QUOTE, at)
            stop = len(data) if quote < 0 else quote
            escapes = stop - at - len(data[at:stop].rstrip(b"\\")) if data[stop - 1 : stop] == b"\\" else 0
            if quote < 0:
                self._escaped = escapes % 2 == 1
                return stop
            at = stop + 1
            if escapes % 2 == 0:
                self._in_string = False
                return at

    def _ended(self, last: bytes, delimiter: int) -> Iterator[tuple[int, bytes | None]]:
        size, self._held = self._held + len(last), 0
        if size > self._largest:
            self._pieces.clear()
            self._closed = delimiter != _COMMA
            if self._closed and delimiter != self._closing:
                raise self._broken(self._element + size)
            self._rows += 1
            yield self._element, None
            return
        raw = b"".join([*self._pieces, last])
        self._pieces.clear()
        content = raw.lstrip(_WHITE)
        self._closed = delimiter != _COMMA
        if self._closed and (delimiter != self._closing or (not content and self._rows)):
            raise self._broken(self._element + len(raw))
        if self._closed and not content:
            return
        self._rows += 1
        if not content:
            raise self._broken(self._element + len(raw))
        yield self._element + len(raw) - len(content), content.rstrip(_WHITE)

    def _nothing_follows(self, data: bytes, at: int) -> None:
        rest = data[at:].lstrip(_WHITE)
        if rest:
            raise self._broken(self._byte + len(data) - len(rest))

    def _broken(self, byte: int) -> CorruptSourceError:
        return CorruptSourceError(
            f"{self._label}: byte {byte}, after {self._rows} records, is not what a JSON {self._what} has there; "
            "mend the file or fetch it again"
        )
