"""CSV and TSV, as in RFC 4180 and Python's `csv`: the first line has the field names, and all values are strings.

A quoted value may contain delimiters and line endings, and `""` is a quote. If the declaration disables quoting, a
quote is a character and each line is a record. A TSV is refused until the declaration sets quoting if each line of a
quoted value looks like a record. Many tools write TSV without quoting, and a quotation that begins in one value and
ends in another would merge many records into one.

Rows count the records after the header, as in `pandas` and `pyarrow`, and exclude blank lines. A record is bad if its
number of fields differs from the header's, or if characters follow a closing quote. Other tools guess or fill such
records, which usually come from a damaged file. A repeated header is also bad; `cat` leaves one where it joins files.
"""

import csv
from collections.abc import Iterator
from contextlib import suppress

from dataprep_assets.errors import CorruptSourceError, DataprepError, count_of
from dataprep_assets.sources.readers.blocks import BlockReader, TextReader
from dataprep_assets.sources.readers.first_rows import suggest_delimiter, summarize_first_rows
from dataprep_assets.sources.readers.input_format import FoundRow, InputFile, InputFormat, RowReader, SequentialReader
from dataprep_assets.sources.readers.read_options import BAD_CSV, MAX_RECORD_BYTES, TOO_LARGE
from dataprep_assets.sources.readers.row_files import BadRecord, read_whole_lines

_DELIMITERS = {"csv": ",", "tsv": "\t"}


class _Lines:
    """Lines of a file for the parser, with the position and size of its current record."""

    def __init__(self, file: InputFile, block_reader: BlockReader, delimiter: str) -> None:
        self._file, self._delimiter = file, delimiter.encode()
        # Maximum size of a record in bytes; a longer record is an error. It is at least MAX_RECORD_BYTES, even if the
        # declared limit is lower, because only the parser finds the end of a record that is then refused.
        self._max_bytes = max(file.max_record_bytes, MAX_RECORD_BYTES)
        self._lines = self._read_lines(block_reader)
        self.row = self.byte = self.size = 0
        # `delimiters` has the number of delimiters in each line of the current record, including those inside quotes.
        self.delimiters: list[int] = []
        self.valid, self.ended = True, False

    def begin(self, row: int) -> None:
        """Start a record with the next line."""
        self.row, self.size, self.valid, self.delimiters = row, 0, True, []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if (numbered_line := next(self._lines, None)) is None:
            self.ended = True
            raise StopIteration
        byte, line = numbered_line
        if not self.size:
            self.byte = byte
        self.size += len(line or b"") + 1
        if line is None or self.size > self._max_bytes:
            raise CorruptSourceError(
                f"{self._file.label}: row {self.row}, byte {self.byte}: longer than "
                f"{count_of(self._max_bytes, 'byte')}, perhaps because a quote is not closed. Correct the row, or "
                "raise `bad_records: {max_record_bytes: …}`",
                file=self._file.label,
                row=self.row,
                byte=self.byte,
            )
        self.delimiters.append(line.count(self._delimiter))
        try:
            # Include the line ending, because within quotes it is part of the value.
            return line.decode() + "\n"
        except UnicodeDecodeError:
            # Decode the line anyway, because the parser must still find the end of this record, which is then refused
            # as a whole.
            self.valid = False
            return line.decode(errors="replace") + "\n"

    def _read_lines(self, block_reader: BlockReader) -> Iterator[tuple[int, bytes | None]]:
        for line_group, byte in read_whole_lines(block_reader.pieces(), self._max_bytes):
            if line_group is None:
                yield byte, None
                continue
            # Include blank lines, because they may be within quotes.
            for line in line_group.split():
                yield byte, line
                byte += len(line) + 1


class CsvRows(SequentialReader):
    """Reader of the records of a CSV or TSV file."""

    under = TextReader
    merged: tuple[int, int] | None = None
    """Row and byte of the first record so far whose lines all look like records; None if there is no such record."""

    def _find_rows(self) -> Iterator[FoundRow]:
        file = self._file
        # Raise the limit of the `csv` module, because a long document may exceed the default. The limit is
        # process-wide.
        csv.field_size_limit(max(csv.field_size_limit(), 1 << 30))
        delimiter = file.reading.csv_delimiter or _DELIMITERS[file.format]
        lines = _Lines(file, self._under, delimiter)
        plain = file.reading.csv_quotes is False
        parser = csv.reader(
            lines, delimiter=delimiter, strict=True, quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL
        )
        header, row = list[str](), 0
        while True:
            lines.begin(row)
            try:
                fields, reason = next(parser), ""
            except StopIteration:
                return
            except csv.Error as error:
                # After an error, the parser starts with the next line, so the records after the bad one are still read.
                fields, reason = [], _describe_fault(error) + self._quote_advice
                if lines.ended:
                    defect = "a quote is not closed before the end of the file. Close it, or download the file again"
                    defect += self._quote_advice
                    raise CorruptSourceError(
                        f"{file.label}: row {row}, byte {lines.byte}: {defect}",
                        file=file.label,
                        row=row,
                        byte=lines.byte,
                    ) from None
            if not row:
                if fields or reason:
                    header, row = self._check_header(fields, reason or ("" if lines.valid else "not valid UTF-8")), 1
                continue
            byte, size = lines.byte, lines.size
            self._record_merged_rows(lines, len(header))
            if not fields and not reason:
                yield FoundRow(row, byte, size, None)
                continue
            if size - 1 > file.max_record_bytes:
                yield FoundRow(row, byte, size, BadRecord(row, byte, TOO_LARGE))
            elif not lines.valid:
                yield FoundRow(row, byte, size, BadRecord(row, byte, "invalid_utf8"))
            elif defect := reason or _explain_misfit(fields, header):
                yield FoundRow(row, byte, size, BadRecord(row, byte, BAD_CSV, defect))
            else:
                yield FoundRow(row, byte, size, dict(zip(header, fields, strict=True)))
            row += 1

    @property
    def _quote_advice(self) -> str:
        is_open = self._file.format == "tsv" and self._file.reading.csv_quotes is None
        return ". If a quote is an ordinary character in this file, set `csv_quotes: false`" if is_open else ""

    def _record_merged_rows(self, lines: _Lines, columns: int) -> None:
        """Record the first multi-line record whose lines all look like records.

        Raises CorruptSourceError if the file is a TSV.
        """
        if len(lines.delimiters) < 2 or self._file.reading.csv_quotes is not None:
            return
        if {*lines.delimiters} != {columns - 1}:
            return
        if self._file.format == "tsv":
            raise CorruptSourceError(
                f"{self._file.label}: row {lines.row}, byte {lines.byte}: a quoted value spans "
                f"{count_of(len(lines.delimiters), 'line')} that each look like a row. Set `csv_quotes: false` if a "
                "quote is an ordinary character in this file, and `csv_quotes: true` if values are quoted. You "
                "can also write the file as JSON Lines",
                file=self._file.label,
                row=lines.row,
                byte=lines.byte,
            )
        # Do not refuse a CSV file, because line endings in values are common, and a value may by chance have the same
        # number of delimiters in each line.
        if columns > 1 and self.merged is None:
            self.merged = lines.row, lines.byte

    def _check_header(self, names: list[str], reason: str) -> list[str]:
        if reason or len(set(names)) < len(names):
            reason = reason or "a name occurs twice"
            raise CorruptSourceError(
                f"{self._file.label}: the first line is not a header: {reason}. Add a header with each field name "
                "exactly once",
                file=self._file.label,
            )
        return names


def describe_merged_rows(reader: RowReader, label: str) -> str:
    """Return a sentence on a CSV record in a file's first rows that may be several records; `""` if there is none."""
    with suppress(DataprepError, OSError):  # the error is reported when the file is checked
        summarize_first_rows((len(block.rows), block.bad) for block in reader)
    if not isinstance(reader, CsvRows) or reader.merged is None:
        return ""
    row, byte = reader.merged
    return (
        f"csv_quotes: {label}: row {row}, byte {byte}: every line of a quoted value looks like a row. Set "
        "`false` if a quote is an ordinary character in this file, and `true` if not"
    )


def _explain_misfit(fields: list[str], header: list[str]) -> str:
    """Return why the values of a record do not match this header; empty if they match."""
    if len(fields) != len(header):
        return f"{count_of(len(fields), 'field')}, but the header has {len(header)}{suggest_delimiter(header)}"
    # Do not refuse a value that equals the column's name in a file with a single column. Only a byte order mark before
    # the name shows that a second file was appended.
    if [fields[0].removeprefix("\ufeff"), *fields[1:]] == header and (len(header) > 1 or fields != header):
        return "the header is repeated, as in concatenated files"
    return ""


def _describe_fault(error: csv.Error) -> str:
    """Return the defect of a record that the parser refused, without any of its text."""
    return "a carriage return outside quotes" if "new-line" in str(error) else str(error)


FORMAT = InputFormat(rows=CsvRows)
