"""What a format of source files is: how the rows of one file are read.

A format gives whole rows, dicts of the fields that a record has, each with its number and byte; everything else (which
field is the text, which rows become documents, ledger, quarantine, trace) follows from that. `RowByRow` does what
formats that find one row after another have in common. JSON lines and Parquet have faster ways to the texts alone, too
(`records.py`).

Entry points: `InputFormat`, `InputFile`, `ReadOptions`, `input_format`; `RowByRow`, for a format.
"""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from dataprep_assets.bounds import is_close, report_position
from dataprep_assets.errors import ConfigError
from dataprep_assets.planning.inputs import INPUTS
from dataprep_assets.sources.readers.blocks import BlockReader
from dataprep_assets.sources.readers.row_files import MAX_RECORD_BYTES, BadRecord, Digested, ReadThrough, RowRange

MOST_ROWS = 1024
"""Most rows in one block."""
_MOST_BYTES = 4 << 20
"""A block ends with the row by which it has so many bytes: a row may have as many as a record."""


@dataclass(slots=True)
class RowBlock:
    """Some consecutive rows: `rows[i]` is the object at 1-based row `numbers[i]`.

    `offsets[i]` is the byte at which it begins in the decompressed file, -1 where there is none: in Parquet and Arrow,
    and for elements of a JSON array.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)
    blank_lines: int = 0

    def add(self, value: Any, number: int, byte: int) -> None:
        """Add a parsed row, as refused if it is no object."""
        if not isinstance(value, dict):
            self.bad.append(BadRecord(number, byte, "not_an_object"))
            return
        self.rows.append(value)
        self.numbers.append(number)
        self.offsets.append(byte)


class RowReader(Digested, Protocol):
    """Iterates over the blocks of one file; `sha256` and `bytes_read` are of the whole file once iteration has ended.

    Rows outside of the range are read and digested too, but not parsed.
    """

    def __iter__(self) -> Iterator[RowBlock]: ...
    def count(self) -> int:
        """Physical rows of the file, as a `RowRange` counts them; iterating afterwards is not possible."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """What a declaration says of files that do not say it themselves. Picklable.

    Attributes:
        text_separator: What stands between two documents of a `.txt`; None if a file is a document.
        csv_delimiter: What stands between two fields of a `.csv` or `.tsv`; None: a comma, or a tab.
        csv_quotes: Whether quotes enclose values of a `.csv` or `.tsv`, or are characters; None: they do, unless a TSV
            looks otherwise.
    """

    text_separator: str | None = None
    csv_delimiter: str | None = None
    csv_quotes: bool | None = None

    def settings(self, format: str) -> dict[str, str]:
        """Those that decide the rows of a file of this format and are not the default, for keys: name → value."""
        # Neither defaults nor settings of other formats enter a key: shards that they do not touch stay as they are.
        options = {
            "text_separator": (self.text_separator, ("txt",)),
            "csv_delimiter": (self.csv_delimiter, CSV),
            # rows are the same whether it is declared that values are quoted, or assumed
            "csv_quotes": ("false" if self.csv_quotes is False else None, CSV),
        }
        return {name: value for name, (value, formats) in options.items() if value is not None and format in formats}


CSV = ("csv", "tsv")
ALL_ROWS = RowRange()
AS_NAMED = ReadOptions()
"""Files are read as their names say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """A file to read, and which of its rows.

    Attributes:
        path: Where it is.
        label: Its name in errors.
        format: Its format, a name in `planning.inputs`.
        compression: That of the whole file, by its name: `zstd`, `gzip`, `xz`, `bzip2` or None.
        rows: Only rows in this range are read; the rest of the file is still digested.
        only: Only rows with these numbers; None for all.
        columns: The fields that are needed, those that there are; None for all. A format may give more.
        max_record_bytes: A longer row is refused.
        reading: What the declaration says of it.
    """

    path: Path
    label: str
    format: str
    compression: str | None = None
    rows: RowRange = ALL_ROWS
    only: Collection[int] | None = None
    columns: Sequence[str] | None = None
    max_record_bytes: int = MAX_RECORD_BYTES
    reading: ReadOptions = AS_NAMED

    def wants(self, number: int) -> bool:
        """Return whether a row is to be read."""
        return self.rows.rows_within(number, 1) == slice(0, 1) and (self.only is None or number in self.only)


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """How the files of a format are read.

    Attributes:
        rows: Makes the reader of a file's rows. It raises CorruptSourceError, naming file, row and byte, where nobody
            can tell how the file goes on.
        needs: A module that it needs; empty if none.
        extra: The extra of this package that brings the module, or the package that does.
        starts_threads: Whether reading starts threads, beside which no worker may be forked.
    """

    rows: Callable[[InputFile], RowReader]
    needs: str = ""
    extra: str = ""
    starts_threads: bool = False


def input_format(name: str) -> InputFormat:
    """The format of this name; raises ConfigError if it cannot be used here, and says what to install."""
    definition = INPUTS[name].load()
    # An entry point of another package may name anything.
    if not isinstance(definition, InputFormat):
        raise INPUTS[name].unfit("not an InputFormat")
    if definition.needs and importlib.util.find_spec(definition.needs) is None:
        raise ConfigError(
            f".{name} files need the module {definition.needs}, which is not installed. Install {definition.extra}"
        )
    return definition


class Found(NamedTuple):
    """A row that a format found: its 1-based number, where it begins in the decompressed file, its length in bytes.

    `row` are its fields, or why it is refused; None for what is no row, a blank line, with the number of the next one.
    """

    number: int
    byte: int
    size: int
    row: dict[str, Any] | BadRecord | None


class RowByRow(ReadThrough[BlockReader], ABC):
    """A reader that finds one row after another, in blocks of bounded size."""

    under: ClassVar[type[BlockReader]] = BlockReader
    """What reads the bytes: a `TextReader` where a file that is no text has no rows."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(self.under(file.path, file.compression, file.label))
        self._file = file

    @abstractmethod
    def _find_rows(self) -> Iterator[Found]:
        """All rows of the file, wanted or not."""

    def count(self) -> int:
        """Physical rows of the file."""
        return sum(entry.row is not None for entry in self._find_rows())

    def __iter__(self) -> Iterator[RowBlock]:
        block, block_bytes = RowBlock(), 0
        for number, byte, size, row in self._find_rows():
            if not self._file.wants(number):
                continue
            if not block_bytes or is_close():
                report_position(self._file.label, number, byte)
            if row is None:
                block.blank_lines += 1
            elif isinstance(row, BadRecord):
                block.bad.append(row)
            else:
                block.add(row, number, byte)
            block_bytes += size
            if block_bytes >= _MOST_BYTES or len(block.rows) + len(block.bad) >= (1 if is_close() else MOST_ROWS):
                yield block
                block, block_bytes = RowBlock(), 0
        if block.rows or block.bad or block.blank_lines:
            yield block
