"""Definition of a format of source files: how the rows of one file are read.

A format yields whole rows: dicts of a record's fields, each with its number and byte offset. All further processing
(text field, selection, ledger, quarantine, trace) is based on these rows. `SequentialReader` is the common base of
formats that find rows sequentially. JSON Lines and Parquet also have faster readers for texts only (`records.py`).

Entry points: `InputFormat`, `InputFile`, `input_format`; `SequentialReader`, for a format.
"""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from dataprep_assets.bounds import must_read_single_rows, report_position
from dataprep_assets.errors import ConfigError
from dataprep_assets.planning.inputs import INPUTS
from dataprep_assets.sources.readers.blocks import BlockReader
from dataprep_assets.sources.readers.read_options import ALL_ROWS, AS_NAMED, MAX_RECORD_BYTES, ReadOptions, RowRange
from dataprep_assets.sources.readers.row_files import BadRecord, DigestingReader, WrappingReader

MAX_ROWS = 1024
"""Maximum number of rows in one block."""
_MAX_BYTES = 4 << 20
"""A block ends with the row that reaches this number of bytes. A single row may be as large as a record."""


@dataclass(slots=True)
class RowBlock:
    """Some consecutive rows: `rows[i]` is the object at 1-based row `numbers[i]`.

    `offsets[i]` is its byte offset in the decompressed file. It is -1 in Parquet and Arrow, and for elements of a JSON
    array.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    bad: list[BadRecord] = field(default_factory=list)
    blank_lines: int = 0

    def add(self, value: Any, number: int, byte: int) -> None:
        """Add a parsed row; if it is not an object, add it as a refused row."""
        if not isinstance(value, dict):
            self.bad.append(BadRecord(number, byte, "not_an_object"))
            return
        self.rows.append(value)
        self.numbers.append(number)
        self.offsets.append(byte)


class RowReader(DigestingReader, Protocol):
    """Iterator over the blocks of one file; `sha256` and `bytes_read` describe the whole file after iteration.

    Rows outside the range are read and digested, but not parsed.
    """

    def __iter__(self) -> Iterator[RowBlock]: ...
    def count(self) -> int:
        """Return the number of physical rows, as `RowRange` counts them. The reader cannot be iterated afterwards."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """A source file, with the rows and fields to read and the declared options.

    Attributes:
        path: The local path.
        label: Its name in errors.
        format: Its format, a name in `planning.inputs`.
        compression: Compression of the whole file by its name: `zstd`, `gzip`, `xz`, `bzip2` or None.
        rows: The range of rows to read; the rest of the file is still digested.
        only: Numbers of the rows to read; None for all.
        columns: The requested fields, of which missing ones are ignored; None for all. A format may return more.
        max_record_bytes: Size above which a row is refused.
        reading: The declared options.
        as_json: Whether rows of Parquet and Arrow are returned as the JSON objects that were written: null fields,
            which the schema of other rows adds, are left out, and columns of the type `arrow.json` are parsed.
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
    as_json: bool = False

    def is_requested(self, number: int) -> bool:
        """Return whether the row with this number is to be read."""
        return self.rows.select_rows(number, 1) == slice(0, 1) and (self.only is None or number in self.only)


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """Definition of how the files of a format are read.

    Attributes:
        rows: Creates the reader of a file's rows. It raises CorruptSourceError, naming file, row and byte, if it cannot
            find the next row.
        needs: A required module; empty if none.
        extra: The extra of this package that installs the module, or the module's package.
        starts_threads: Whether reading starts threads, after which workers must not be forked.
    """

    rows: Callable[[InputFile], RowReader]
    needs: str = ""
    extra: str = ""
    starts_threads: bool = False


def input_format(name: str) -> InputFormat:
    """Return the format with this name.

    Raises ConfigError, naming the package to install, if it cannot be used here.
    """
    definition = INPUTS[name].load()
    # Check the type, because another package's entry point may refer to any object.
    if not isinstance(definition, InputFormat):
        raise INPUTS[name].build_unfit_error("is not an InputFormat")
    if definition.needs and importlib.util.find_spec(definition.needs) is None:
        raise ConfigError(
            f".{name} files need the module {definition.needs}, which is not installed. Install {definition.extra}"
        )
    return definition


class FoundRow(NamedTuple):
    """A row found by a format: its 1-based number, its byte offset in the decompressed file, its length in bytes.

    `row` is its fields, or the reason for refusing it. It is None for a blank line, which has the number of the next
    row.
    """

    number: int
    byte: int
    size: int
    row: dict[str, Any] | BadRecord | None


class SequentialReader(WrappingReader[BlockReader], ABC):
    """A reader that finds rows sequentially, in blocks of bounded size."""

    under: ClassVar[type[BlockReader]] = BlockReader
    """The reader of the file's bytes; `TextReader` for formats in which a file that is not text has no rows."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(self.under(file.path, file.compression, file.label))
        self._file = file

    @abstractmethod
    def _find_rows(self) -> Iterator[FoundRow]:
        """Yield all rows of the file, including rows that are not requested."""

    def count(self) -> int:
        """Return the number of physical rows in the file."""
        return sum(entry.row is not None for entry in self._find_rows())

    def __iter__(self) -> Iterator[RowBlock]:
        block, block_bytes = RowBlock(), 0
        for number, byte, size, row in self._find_rows():
            if not self._file.is_requested(number):
                continue
            if not block_bytes or must_read_single_rows():
                report_position(self._file.label, number, byte)
            if row is None:
                block.blank_lines += 1
            elif isinstance(row, BadRecord):
                block.bad.append(row)
            else:
                block.add(row, number, byte)
            block_bytes += size
            if block_bytes >= _MAX_BYTES or len(block.rows) + len(block.bad) >= (
                1 if must_read_single_rows() else MAX_ROWS
            ):
                yield block
                block, block_bytes = RowBlock(), 0
        if block.rows or block.bad or block.blank_lines:
            yield block
