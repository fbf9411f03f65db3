"""CSV and TSV, as in RFC 4180 and Python's `csv`: the first line has the names of the fields, all values are texts.

A quoted value may have delimiters and line ends in it, `""` is a quote; where the declaration says that nothing is
quoted, a quote is a character and each line a record. A TSV of which each line of a quoted value looks like a record is
refused until the declaration says so or otherwise: many tools write TSV without quoting, and a quotation that begins
one value and ends another would make one record of many. Rows count the records after the header, as
`pandas` and `pyarrow` do; blank lines are none. A record with another number of fields than the header, or with text
behind a closing quote, is bad: what others guess there, or fill with nothing, is most often a damaged file. So is the
header once more, which `cat` leaves where it joins files.
"""

import csv
from collections.abc import Iterator
from contextlib import suppress

from dataprep_assets.errors import CorruptSourceError, DataprepError, count_of
from dataprep_assets.sources.readers.blocks import BlockReader, TextReader
from dataprep_assets.sources.readers.first_rows import first_bad, other_delimiter
from dataprep_assets.sources.readers.input_format import Found, InputFile, InputFormat, RowByRow, RowReader
from dataprep_assets.sources.readers.row_files import MAX_RECORD_BYTES, TOO_LARGE, BadRecord, whole_lines

BAD_CSV = "bad_csv"
"""The reason, in the ledger, for refusing a record that is not CSV or does not fit the header."""
_DELIMITERS = {"csv": ",", "tsv": "\t"}


class _Lines:
    """Gives a file's lines to the parser one by one, and knows the record that it is reading."""

    def __init__(self, file: InputFile, under: BlockReader, delimiter: str) -> None:
        self._file, self._delimiter = file, delimiter.encode()
        # so many bytes of a record are held, even if the record will be refused: only the parser knows where it ends
        self._most = max(file.max_record_bytes, MAX_RECORD_BYTES)
        self._lines = self._read_lines(under)
        self.row = self.byte = self.size = 0
        # how many delimiters each line of the record has, quoted or not
        self.delimiters: list[int] = []
        self.valid, self.ended = True, False

    def begin(self, row: int) -> None:
        """A record begins with the next line."""
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
        if line is None or self.size > self._most:
            raise CorruptSourceError(
                f"{self._file.label}: row {self.row}, byte {self.byte}: longer than {count_of(self._most, 'byte')}, "
                "perhaps because a quote is not closed. Correct the row, or raise `bad_records: {max_record_bytes: "
                "…}`",
                file=self._file.label,
                row=self.row,
                byte=self.byte,
            )
        self.delimiters.append(line.count(self._delimiter))
        try:
            # the line end goes along: within quotes it is part of the value
            return line.decode() + "\n"
        except UnicodeDecodeError:
            # The parser still has to find the end of the record, which is then refused as a whole.
            self.valid = False
            return line.decode(errors="replace") + "\n"

    def _read_lines(self, under: BlockReader) -> Iterator[tuple[int, bytes | None]]:
        for line_group, byte in whole_lines(under.pieces(), self._most):
            if line_group is None:
                yield byte, None
                continue
            for line in line_group.split():  # blank ones may be within quotes
                yield byte, line
                byte += len(line) + 1


class CsvRows(RowByRow):
    """The records of a CSV or TSV file."""

    under = TextReader
    merged: tuple[int, int] | None = None
    """Row and byte of the first record each of whose lines looks like one, once it was read."""

    def _find_rows(self) -> Iterator[Found]:
        file = self._file
        # a limit of the whole process, which is smaller than a long document
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
                fields, why = next(parser), ""
            except StopIteration:
                return
            except csv.Error as error:
                # After an error the parser begins anew with the next line, so the neighbours of a bad record are read.
                fields, why = [], _fault(error) + self._advice
                if lines.ended:
                    complaint = "a quote is not closed before the end of the file. Close it, or download the file again"
                    complaint += self._advice
                    raise CorruptSourceError(
                        f"{file.label}: row {row}, byte {lines.byte}: {complaint}",
                        file=file.label,
                        row=row,
                        byte=lines.byte,
                    ) from None
            if not row:
                if fields or why:
                    header, row = self._header(fields, why or ("" if lines.valid else "it is not UTF-8")), 1
                continue
            byte, size = lines.byte, lines.size
            self._watch(lines, len(header))
            if not fields and not why:
                yield Found(row, byte, size, None)
                continue
            if size - 1 > file.max_record_bytes:
                yield Found(row, byte, size, BadRecord(row, byte, TOO_LARGE))
            elif not lines.valid:
                yield Found(row, byte, size, BadRecord(row, byte, "invalid_utf8"))
            elif complaint := why or _misfit(fields, header):
                yield Found(row, byte, size, BadRecord(row, byte, BAD_CSV, complaint))
            else:
                yield Found(row, byte, size, dict(zip(header, fields, strict=True)))
            row += 1

    @property
    def _advice(self) -> str:
        is_open = self._file.format == "tsv" and self._file.reading.csv_quotes is None
        return ". If a quote is an ordinary character in this file, set `csv_quotes: false`" if is_open else ""

    def _watch(self, lines: _Lines, columns: int) -> None:
        """Note a record of several lines that each look like one; raises CorruptSourceError for one of a TSV."""
        if len(lines.delimiters) < 2 or self._file.reading.csv_quotes is not None:
            return
        if {*lines.delimiters} != {columns - 1}:
            return
        if self._file.format == "tsv":
            raise CorruptSourceError(
                f"{self._file.label}: row {lines.row}, byte {lines.byte}: a quoted value spans "
                f"{count_of(len(lines.delimiters), 'line')} that each look like a row. Set `csv_quotes: false` if a "
                "quote is an ordinary character in this file, `true` if values are quoted. Or write the file as "
                "JSON Lines",
                file=self._file.label,
                row=lines.row,
                byte=lines.byte,
            )
        # of CSV, where line ends in values are common: a text with as many commas in each line looks like this, too
        if columns > 1 and self.merged is None:
            self.merged = lines.row, lines.byte

    def _header(self, names: list[str], why: str) -> list[str]:
        if why or len(set(names)) < len(names):
            why = why or "a name occurs twice"
            raise CorruptSourceError(
                f"{self._file.label}: the first line is not a header: {why}. It must contain each field name exactly "
                "once",
                file=self._file.label,
            )
        return names


def merged_rows(reader: RowReader, label: str) -> str:
    """A sentence on a record of a CSV that may be several, by the first rows of a file; empty if there is none."""
    with suppress(DataprepError, OSError):  # told where the file is judged
        first_bad((len(block.rows), block.bad) for block in reader)
    if not isinstance(reader, CsvRows) or reader.merged is None:
        return ""
    row, byte = reader.merged
    return (
        f"csv_quotes: {label}: row {row}, byte {byte}: every line of a quoted value looks like a row. Set `false` if "
        "a quote is an ordinary character there, `true` if not"
    )


def _misfit(fields: list[str], header: list[str]) -> str:
    """Why the values of a record are none under this header; empty if they are."""
    if len(fields) != len(header):
        return f"{count_of(len(fields), 'field')}, but the header has {len(header)}{other_delimiter(header)}"
    # of one column the name may be a text, unless a file begins there
    if [fields[0].removeprefix("\ufeff"), *fields[1:]] == header and (len(header) > 1 or fields != header):
        return "the header is repeated, as in concatenated files"
    return ""


def _fault(error: csv.Error) -> str:
    """Return what is wrong with a record that the parser refused, without any of its text."""
    return "a carriage return outside quotes" if "new-line" in str(error) else str(error)


FORMAT = InputFormat(rows=CsvRows)
