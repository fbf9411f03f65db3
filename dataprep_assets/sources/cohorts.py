"""Cohort files: one JSON file per month of birth, read patient by patient.

A cohort is a JSON array of patients, a JSON object of patients, or JSON Lines. Arrays and objects are cut into their
elements (`json_elements`), so memory is limited to one patient and one block for files of any size. A strict parser
then decides whether an element is valid.

The files contain patient data, so messages and `repr` never contain a file's content or name. Messages name the month,
the record and the byte.

Entry points: `list_expected_months`, `find_cohorts`, `parse_month`; `CohortReader`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson

from dataprep_assets.bounds import must_read_single_rows, report_position
from dataprep_assets.errors import BadRecordError, ConfigError, CorruptSourceError, SourceError
from dataprep_assets.planning.manifest import COMPRESSION, SourceFile
from dataprep_assets.sources.readers.blocks import TextReader
from dataprep_assets.sources.readers.json_elements import ElementScanner, strip_mark
from dataprep_assets.sources.readers.json_values import parse_value
from dataprep_assets.sources.readers.read_options import MAX_RECORD_BYTES, TOO_LARGE
from dataprep_assets.sources.readers.row_files import BadRecord, is_too_large, read_whole_lines
from dataprep_assets.sources.readers.unreadable import build_unreadable_error

CohortFormat = Literal["json_array", "json_object", "jsonl"]

REFUSED = ("bad_json", "invalid_utf8", "not_an_object", TOO_LARGE)
"""Reasons for refusing an element of a cohort, as counted in the ledger."""
_RECORDS_PER_REPORT = 16
"""Number of records per position report of the reader."""
_MONTH = re.compile(r"(?P<year>[0-9]{4})-(?P<month>0[1-9]|1[0-2])")
_DIGITS = re.compile(r"[0-9]+")
_WHITE = b" \t\r\n"


def list_expected_months(first: str, last: str, absent_months: Collection[str] = ()) -> list[str]:
    """Return the months ``YYYY-MM`` from ``first`` to ``last``, both included, except ``absent_months``.

    Raises ConfigError for a value that is not a month, for a first month after the last, and for an absent month
    outside the range.
    """
    for month in (first, last, *absent_months):
        if not _MONTH.fullmatch(month):
            raise ConfigError(f"{month!r}: must be a year and a month (YYYY-MM)")
    if first > last:
        raise ConfigError(f"first ({first}) must not be after last ({last}). Correct one of them")
    months = [_format_month(number) for number in range(_parse_month_number(first), _parse_month_number(last) + 1)]
    if outside := sorted(set(absent_months) - set(months)):
        raise ConfigError(
            f"{', '.join(outside)}: must be within {first} to {last}. Correct the list, `first` or `last`"
        )
    return [month for month in months if month not in absent_months]


def _parse_month_number(month: str) -> int:
    year, number = month.split("-")
    return int(year) * 12 + int(number) - 1


def _format_month(number: int) -> str:
    return f"{number // 12:04d}-{number % 12 + 1:02d}"


def find_cohorts(
    files: Iterable[SourceFile], pattern: str, expected_months: Sequence[str], absent_months: Collection[str] = ()
) -> dict[str, SourceFile]:
    """Return a mapping from each expected month with a file to that file, in order.

    ``pattern``: a regular expression with the groups ``year`` and ``month`` that matches the whole path of a cohort
    inside the source. Files that do not match, groups that are not decimal numbers, and unexpected months are ignored.
    Raises SourceError for a month with several files, and for a file of a month that was declared absent. Messages
    never name a file.
    """
    file_of_month: dict[str, SourceFile] = {}
    repeated_months: set[str] = set()
    for file in files:
        if (month := parse_month(file.relpath, pattern)) is not None:
            if month in file_of_month:
                repeated_months.add(month)
            file_of_month[month] = file
    if wrong_names := sorted(repeated_months & {*expected_months, *absent_months}):
        raise SourceError(
            f"months: several files for {_format_months(wrong_names)}. Keep only one file per month in the source"
        )
    if wrong_names := sorted(file_of_month.keys() & set(absent_months)):
        raise SourceError(
            f"months: the source has files for {_format_months(wrong_names)}, but `months.allow_missing` lists them as "
            "missing. Correct `months.allow_missing`"
        )
    return {month: file_of_month[month] for month in expected_months if month in file_of_month}


def parse_month(relpath: str, pattern: str) -> str | None:
    """Return the month ``YYYY-MM`` of a file by its path inside the source; None if ``pattern`` does not match."""
    match = re.fullmatch(pattern, relpath)
    if match is None or not all(_DIGITS.fullmatch(part or "") for part in match.group("year", "month")):
        return None
    return f"{int(match['year']):04d}-{int(match['month']):02d}"


def _format_months(months: Sequence[str]) -> str:
    return ", ".join(months[:8]) + (f" and {len(months) - 8} more" if len(months) > 8 else "")


def find_compression(relpath: str) -> str | None:
    """Return ``zstd``, ``gzip``, ``xz``, ``bzip2`` or None, by the suffix of the name."""
    return COMPRESSION.get(Path(relpath).suffix.lower())


@dataclass(frozen=True, slots=True)
class PatientRecord:
    """One element of a cohort: its number from 1, its byte offset in the decompressed file, its content.

    ``key`` is the element's key in a JSON object, and None in an array or a line.
    """

    row: int
    byte: int
    key: str | None = field(repr=False)
    value: dict[str, Any] = field(repr=False)


class CohortReader:
    """Iterator over the records of one file: `PatientRecord`, or `BadRecord` for an element that is not a JSON object.

    ``label`` names the file in messages. `sha256` and `bytes_read` are final after iteration. Reasons of bad records
    are ``bad_json`` (only in JSON Lines), ``invalid_utf8``, ``not_an_object`` and, for a patient of more than
    ``max_record_bytes``, ``too_large``.

    Raises CorruptSourceError for a file that ends early, has data after its end, or has a different format. Also raises
    it for an element of an array or object that is not JSON, because its end is uncertain, so it cannot be dropped.
    """

    def __init__(
        self,
        path: Path,
        format: CohortFormat,
        compression: str | None,
        label: str,
        max_record_bytes: int = MAX_RECORD_BYTES,
    ) -> None:
        self._blocks = TextReader(path, compression, label)
        self._format, self._label, self._largest = format, label, max_record_bytes

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the file as stored."""
        return self._blocks.sha256

    @property
    def bytes_read(self) -> int:
        """Bytes of the file as stored that were read."""
        return self._blocks.bytes_read

    def build_unreadable_error(self, first: str) -> BadRecordError:
        """Return the error for a file without records; `first` is the position of its first element and its defect."""
        return build_unreadable_error(self._blocks.path, self._format, self._blocks.compression, self._label, first)

    def __iter__(self) -> Iterator[PatientRecord | BadRecord]:
        elements = (
            _read_lines(self._read_data(), self._largest)
            if self._format == "jsonl"
            else ElementScanner(self._format.removeprefix("json_"), self._label, self._largest).cut_elements(
                self._read_data()
            )
        )
        for row, (byte, raw) in enumerate(elements, 1):
            if row % _RECORDS_PER_REPORT == 1 or must_read_single_rows():
                report_position(self._label, row, byte)
            if raw is None or is_too_large(raw, self._largest):
                yield BadRecord(row, byte, TOO_LARGE)
            elif raw:  # a blank line has a number, but is not a record
                yield self._parse_record(row, byte, raw)

    def _read_data(self) -> Iterator[bytes]:
        return iter(self._blocks)

    def _parse_record(self, row: int, byte: int, raw: bytes) -> PatientRecord | BadRecord:
        key, value = None, None
        try:
            # Add braces, so that the parser also checks the pair's key, colon and end.
            value = parse_value(b"{%b}" % raw if self._format == "json_object" else raw)
        except orjson.JSONDecodeError:
            return self._build_bad_record(row, byte, raw)
        if self._format == "json_object":
            # There is exactly one pair, because elements are cut at the commas between pairs.
            ((key, value),) = value.items()
        if not isinstance(value, dict):
            return BadRecord(row, byte, "not_an_object")
        return PatientRecord(row, byte, key, value)

    def _build_bad_record(self, row: int, byte: int, raw: bytes) -> BadRecord:
        try:
            raw.decode()
        except UnicodeDecodeError:
            return BadRecord(row, byte, "invalid_utf8")
        if self._format == "jsonl":
            return BadRecord(row, byte, "bad_json")
        broken = f"{self._label}: record {row} at byte {byte} is not valid JSON. Correct the file, or download it again"
        raise CorruptSourceError(broken, file=self._label, row=row, byte=byte) from None


def _read_lines(blocks: Iterator[bytes], largest: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield the byte offset and the stripped content of each line; None for a line of more than `largest` bytes.

    The content of a blank line is empty.
    """
    for line_group, byte in read_whole_lines(strip_mark(blocks), largest):
        if line_group is None:
            yield byte, None
            continue
        for line in line_group.split():
            yield byte, line.strip(_WHITE) if len(line) <= largest else None
            byte += len(line) + 1
