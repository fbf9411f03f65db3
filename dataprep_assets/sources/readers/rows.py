"""Whole rows of source files, as blocks of objects with their positions; and the formats JSON and Parquet.

`records.py` reads one text per record, fast. This module yields whole objects for pipelines that need several fields
(conversations, prompts with answers). Both treat valid JSON, blank lines, and damaged or truncated files in the same
way. A reader accepts a range of rows, so that several shards can share one big file. Every row of a file is in exactly
one of the ranges from `split_rows`.

Entry points: `read_rows`, `count_rows`, `split_rows`.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import orjson

from dataprep_assets.bounds import MOST_PARSED, is_close, report_position
from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.fields import inner_type, top_name
from dataprep_assets.sources.readers.blocks import TextReader
from dataprep_assets.sources.readers.contents import BOM, is_array
from dataprep_assets.sources.readers.input_format import (
    AS_NAMED,
    MOST_ROWS,
    InputFile,
    InputFormat,
    ReadOptions,
    RowBlock,
    RowReader,
    input_format,
)
from dataprep_assets.sources.readers.json_elements import Elements
from dataprep_assets.sources.readers.json_values import has_long_integers, parse
from dataprep_assets.sources.readers.row_files import (
    MAX_RECORD_BYTES,
    TOO_LARGE,
    BadRecord,
    Blank,
    ParquetBlocks,
    ReadThrough,
    RowRange,
    is_too_large,
    may_be_too_large,
    not_json,
    wanted_lines,
)

__all__ = ["REASONS", "RowBlock", "RowRange", "RowReader", "count_rows", "read_rows", "split_rows"]

REASONS = ("bad_json", "invalid_utf8", "not_an_object", TOO_LARGE)
"""Reasons for refusing a row, as counted in the ledger."""
_TOGETHER = 4 << 20
"""Bytes of elements after which a block ends, because parsed elements can take forty times as much memory."""
_MADE_TOGETHER = 64 << 20
"""Maximum memory of the objects from a part of a Parquet batch."""


def read_rows(
    path: Path,
    *,
    format: str,
    compression: str | None,
    label: str,
    rows: RowRange | None = None,
    columns: Sequence[str] | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    only: Collection[int] | None = None,
    reading: ReadOptions = AS_NAMED,
) -> RowReader:
    """Return the reader of the file `path` for its `format` (`planning.inputs`), with the declared options (`reading`).

    `compression` is the compression of the whole file, and `label` its name in errors. With `rows`, only these rows are
    read, and with `only`, only the rows with these numbers.

    A `jsonl` or `json` file that starts with `[` is one array of rows; any other is JSON lines. `columns` limits the
    columns read from a Parquet file, and columns that it does not have are ignored. A line, an element or a Parquet row
    of more than `max_record_bytes` is a bad row, and is not kept in memory.
    """
    file = InputFile(
        path=path,
        label=label,
        format=format,
        compression=compression,
        rows=rows or RowRange(),
        only=only,
        columns=columns,
        max_record_bytes=max_record_bytes,
        reading=reading,
    )
    return input_format(format).rows(file)


def count_rows(path: Path, *, format: str, compression: str | None, label: str, reading: ReadOptions = AS_NAMED) -> int:
    """Return the physical rows of the file `path`, as counted by `RowRange`.

    For `format`, `compression`, `label` and `reading` see `read_rows`. Raises CorruptSourceError for a file that cannot
    be read.
    """
    file = InputFile(path=path, label=label, format=format, compression=compression, reading=reading)
    return input_format(format).rows(file).count()


def split_rows(count: int, parts: int) -> list[RowRange]:
    """Return `parts` consecutive ranges that cover `count` rows once, with sizes that differ by at most one.

    The last range has no end.
    """
    edges = [1 + count * part // parts for part in range(parts)]
    return [RowRange(start, stop) for start, stop in zip(edges, [*edges[1:], None], strict=True)]


class JsonRows(ReadThrough[TextReader]):
    """JSON lines, or one JSON array."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(TextReader(file.path, file.compression, file.label))
        self._label, self._range, self._largest, self._only = file.label, file.rows, file.max_record_bytes, file.only

    def pieces(self) -> Iterator[bytes]:
        """Yield the file's text in blocks. A reader of lines calls `of_array` if the first block begins an array."""
        return self._under.pieces()

    def count(self) -> int:
        """Return the number of physical rows: lines, or elements of the array."""
        # The last byte starts as a line end, so that an empty file has no rows, and only the first block can begin an
        # array.
        lines, last_byte, blocks = 0, b"\n", iter(self._under)
        for data in blocks:
            if not lines and last_byte == b"\n" and is_array(data):
                return sum(1 for _ in self._elements(data, blocks))
            lines += data.count(b"\n")
            last_byte = data[-1:]
        return lines + (last_byte != b"\n")

    def __iter__(self) -> Iterator[RowBlock]:
        blocks = iter(self._under)
        first_block = next(blocks, b"")
        if is_array(first_block):
            yield from self.of_array(first_block, blocks)
            return
        for lines, row, byte in wanted_lines(chain([first_block], blocks), self._range, self._largest):
            if isinstance(lines, Blank):  # no progress to report
                yield RowBlock(blank_lines=lines)
                continue
            report_position(self._label, row, byte)
            block = RowBlock()
            if lines is None:
                if self._is_wanted(row):
                    block.bad.append(BadRecord(row, byte, TOO_LARGE))
                    yield block
                continue
            only = self._only
            if only is None and (objects := _all_objects(lines, self._largest)) is not None:
                begins = accumulate((len(line) + 1 for line in lines[:-1]), initial=byte)
                yield RowBlock(objects, list(range(row, row + len(objects))), list(begins))
                continue
            for number, line in enumerate(lines, row):
                if only is None or number in only:
                    _add_line(block, line, number, byte, self._largest)
                byte += len(line) + 1
            yield block

    def _is_wanted(self, number: int) -> bool:
        return self._only is None or number in self._only

    def _elements(self, first: bytes, blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes | None]]:
        """Yield the byte offset and JSON of each element of the array; None for an element beyond the limit."""
        return Elements("array", self._label, self._largest).cut_elements(chain([first], blocks))

    def of_array(self, first: bytes, blocks: Iterator[bytes]) -> Iterator[RowBlock]:
        """Yield the rows of a file that is an array, starting with its first block."""
        block, block_bytes = RowBlock(), 0
        for number, (byte, raw) in enumerate(self._elements(first, blocks), 1):
            # Elements outside the range are cut, to count them and to find the array's end, but not parsed.
            if self._range.rows_within(number, 1) != slice(0, 1):
                continue
            too_large = raw is None or is_too_large(raw, self._largest)
            if not block_bytes or is_close():
                report_position(self._label, number)
            # all elements are parsed, to check that the file is an array
            value = None if raw is None or too_large else self._parse(raw, number, byte)
            if not self._is_wanted(number):
                continue
            if too_large:
                block.bad.append(BadRecord(number, -1, TOO_LARGE))
            else:
                block.add(value, number, -1)
            block_bytes += len(raw or b"")
            if len(block.rows) + len(block.bad) >= (1 if is_close() else MOST_ROWS) or block_bytes >= _TOGETHER:
                yield block
                block, block_bytes = RowBlock(), 0
        if block.rows or block.bad:
            yield block

    def _parse(self, raw: bytes, number: int, byte: int) -> Any:
        try:
            return parse(raw)
        except orjson.JSONDecodeError as error:
            raise CorruptSourceError(
                f"{self._label}: begins like a JSON array, but element {number}, at byte {byte}, is not JSON: "
                f"{error.msg}. Correct it, or write one object per line",
                file=self._label,
                row=number,
                byte=byte,
            ) from error


def _all_objects(lines: list[bytes], largest: int) -> list[dict[str, Any]] | None:
    """Return the objects of lines that are all valid rows; None if a line is not, or must be parsed separately."""
    if may_be_too_large(lines, largest) or any(map(has_long_integers, lines)):
        return None
    try:
        values = list(map(orjson.loads, lines))
    except orjson.JSONDecodeError:
        return None
    return values if {*map(type, values)} <= {dict} else None


def _add_line(block: RowBlock, line: bytes, number: int, byte: int, largest: int) -> None:
    if not line.strip():
        block.blank_lines += 1
        return
    if is_too_large(line, largest):
        block.bad.append(BadRecord(number, byte, TOO_LARGE))
        return
    try:
        value = parse(line.removeprefix(BOM))
    except orjson.JSONDecodeError as error:
        block.bad.append(not_json(number, byte, line, error))
        return
    block.add(value, number, byte)


class _ParquetRows(ParquetBlocks[RowBlock]):
    """Whole rows of a Parquet file, or some of their columns."""

    batch_rows = MOST_ROWS

    def __init__(self, file: InputFile) -> None:
        super().__init__(file.path, file.label, file.rows)
        self._wanted, self._file = file.columns, file

    def _columns(self, schema: Any) -> list[str] | None:
        check_names(schema.names, self._wanted, self._label)
        return None if self._wanted is None else [name for name in self._wanted if inner_type(schema, name) is not None]

    def _parts(self, batch: Any) -> Iterator[Any]:
        return small_parts(batch)

    def _block(self, batch: Any, row: int) -> RowBlock:
        return rows_of_batch(batch, row, self._file)


def check_names(names: Sequence[str], wanted: Collection[str] | None, label: str) -> None:
    """Raise CorruptSourceError, naming the file `label`, if two requested columns (None: all) have the same name."""
    positions: dict[str, int] = {}
    wanted = None if wanted is None else {top_name(names, path) for path in wanted}
    for position, name in enumerate(names, 1):
        if (wanted is None or name in wanted) and (first_position := positions.setdefault(name, position)) != position:
            raise CorruptSourceError(
                f"{label}: columns {first_position} and {position} have the same name. Rename one of them"
            )


def small_parts(batch: Any) -> Iterator[Any]:
    """Yield a `pyarrow.RecordBatch` in parts whose objects take a bounded amount of memory."""
    if batch.num_rows > 1 and (is_close() or _object_bytes(batch.columns) > _MADE_TOGETHER):
        # The batch is halved until it fits, because rows differ, and one row may be most of the batch.
        half = batch.num_rows // 2
        yield from small_parts(batch.slice(0, half))
        yield from small_parts(batch.slice(half))
    else:
        yield batch


def rows_of_batch(batch: Any, row: int, file: InputFile) -> RowBlock:
    """Return the requested rows of a `pyarrow.RecordBatch` that begins at a 1-based row of a file.

    Raises CorruptSourceError for a row with a value that Python cannot represent.
    """
    numbers = list(range(row, row + batch.num_rows))
    if file.only is not None:
        numbers = [number for number in numbers if number in file.only]
    elif not _may_be_too_large(batch, file):
        with suppress(ValueError, OverflowError, LookupError):  # the loop below finds the row
            return RowBlock(rows=batch.to_pylist(), numbers=numbers, offsets=[-1] * len(numbers))
    block = RowBlock()
    for number in numbers:  # not all rows are requested, or some may be bad
        row_batch = batch.slice(number - row, 1)
        if _may_be_too_large(row_batch, file):
            block.bad.append(BadRecord(number, -1, TOO_LARGE))
            continue
        try:
            block.add(row_batch.to_pylist()[0], number, -1)
        except UnicodeDecodeError:
            block.bad.append(BadRecord(number, -1, "invalid_utf8"))
        except (ValueError, OverflowError, LookupError) as error:  # the error's message may contain the value
            raise CorruptSourceError(
                f"{file.label}: row {number} has a value that Python cannot represent ({type(error).__name__}): a "
                "date after the year 9999, a time in an unknown zone, or two fields of the same name. Correct it, "
                "or write it as text",
                file=file.label,
                row=number,
            ) from None
    return block


def _may_be_too_large(batch: Any, file: InputFile) -> bool:
    """Return whether any of some rows may exceed the record limit; for a single row, whether it does."""
    return _value_bytes(batch.columns) > file.max_record_bytes or _object_bytes(batch.columns) > MOST_PARSED


def own_values(array: Any) -> Any:
    """Return a `pyarrow.Array` with only its own values; dictionaries and views contain the values of all rows."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(array.type):
        return own_values(array.dictionary_decode())
    if types.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if types.is_binary_view(array.type) else array


def _value_bytes(arrays: Sequence[Any]) -> int:
    """Return the bytes of the values of some `pyarrow.Array`s, without offsets."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    size = 0
    for array in map(own_values, arrays):
        kind = array.type
        if types.is_nested(kind):
            size += _value_bytes(_inner(array))
        elif (
            types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
        ):
            # `nbytes` is not used, because with offsets it would exceed the limit for a text of exactly this size.
            size += pc.sum(pc.binary_length(array)).as_py() or 0
        else:
            size += array.nbytes
    return size


def _object_bytes(arrays: Sequence[Any]) -> int:
    """Return the approximate bytes of the Python objects for some `pyarrow.Array`s, including their lists."""
    import pyarrow.types as types

    size = 0
    for array in map(own_values, arrays):
        # Approximate sizes of CPython's objects: 8 for a list slot, 184 for a dict and 24 per field, 64 for a list, 56
        # for any other object in addition to its content.
        kind, count = array.type, len(array) - array.null_count
        size += 8 * len(array)
        if types.is_struct(kind):
            size += count * (184 + 24 * kind.num_fields) + _object_bytes(_inner(array))
        elif types.is_nested(kind):
            size += 64 * count + _object_bytes(_inner(array))
        else:
            size += 56 * count + array.nbytes
    return size


def _inner(array: Any) -> list[Any]:
    """Return the arrays of a nested `pyarrow.Array`, with the values of its own rows."""
    import pyarrow.types as types

    if types.is_struct(array.type):
        return [array.field(i) for i in range(array.type.num_fields)]
    if not types.is_map(array.type):
        return [array.flatten()]
    start, stop = (array.offsets[end].as_py() for end in (0, -1))  # a map cannot be flattened
    return [array.values.slice(start, stop - start)]


JSON = InputFormat(rows=JsonRows)
PARQUET = InputFormat(rows=_ParquetRows, starts_threads=True)
