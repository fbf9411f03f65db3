"""Whole rows of source files, as blocks of objects with their positions; and the formats JSON and Parquet.

`records.py` reads one text per record, fast. This module yields whole objects for pipelines that need several fields
(conversations, prompts with answers). Both treat valid JSON, blank lines, and damaged or truncated files in the same
way. A reader accepts a range of rows, so that several shards can share one big file. Every row of a file is in exactly
one of the ranges from `split_rows`.

Entry points: `read_rows`, `count_rows`, `split_rows`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import orjson

from dataprep_assets.bounds import MAX_PARSED, must_read_single_rows, report_position
from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.fields import find_top_name, find_type
from dataprep_assets.sources.readers.blocks import TextReader
from dataprep_assets.sources.readers.contents import BOM, is_array
from dataprep_assets.sources.readers.input_format import (
    MAX_ROWS,
    InputFile,
    InputFormat,
    RowBlock,
    RowReader,
    input_format,
)
from dataprep_assets.sources.readers.json_elements import ElementScanner
from dataprep_assets.sources.readers.json_values import describe_fault, has_long_integers, parse_value
from dataprep_assets.sources.readers.read_options import AS_NAMED, MAX_RECORD_BYTES, TOO_LARGE, ReadOptions, RowRange
from dataprep_assets.sources.readers.row_files import (
    BadRecord,
    BlankLines,
    ParquetBlocks,
    WrappingReader,
    build_invalid_record,
    is_too_large,
    may_be_too_large,
    read_wanted_lines,
)

__all__ = ["REASONS", "RowBlock", "RowRange", "RowReader", "count_rows", "read_rows", "split_rows"]

REASONS = ("bad_json", "invalid_utf8", "not_an_object", TOO_LARGE)
"""Reasons for refusing a row, as counted in the ledger."""
_BLOCK_BYTES = 4 << 20
"""Bytes of elements after which a block ends, because parsed elements can take forty times as much memory."""
_MAX_PART_BYTES = 64 << 20
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
    as_json: bool = False,
) -> RowReader:
    """Return the reader of the file `path` for its `format` (`planning.inputs`), with the declared options (`reading`).

    `compression` is the compression of the whole file, and `label` its name in errors. With `rows`, only these rows are
    read, and with `only`, only the rows with these numbers.

    A `jsonl` or `json` file that starts with `[` is one array of rows; any other is JSON Lines. `columns` limits the
    columns read from a Parquet file, and columns that it does not have are ignored. A line, an element or a Parquet row
    of more than `max_record_bytes` is a bad row, and is not kept in memory. For `as_json` see `InputFile`.
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
        as_json=as_json,
    )
    return input_format(format).rows(file)


def count_rows(path: Path, *, format: str, compression: str | None, label: str, reading: ReadOptions = AS_NAMED) -> int:
    """Return the number of physical rows in the file `path`, as `RowRange` counts them.

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


class JsonRows(WrappingReader[TextReader]):
    """Reader of JSON Lines, or of one JSON array."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(TextReader(file.path, file.compression, file.label))
        self._label, self._range, self._largest, self._only = file.label, file.rows, file.max_record_bytes, file.only

    def pieces(self) -> Iterator[bytes]:
        """Yield the file's text in blocks. A reader of lines calls `read_array` if the first block begins an array."""
        return self._under.pieces()

    def count(self) -> int:
        """Return the number of physical rows: lines, or elements of the array."""
        # Start with a line ending as the previous byte, so that an empty file has no rows, and only the first block can
        # begin an array.
        lines, last_byte, blocks = 0, b"\n", iter(self._under)
        for data in blocks:
            if not lines and last_byte == b"\n" and is_array(data):
                return sum(1 for _ in self._read_elements(data, blocks))
            lines += data.count(b"\n")
            last_byte = data[-1:]
        return lines + (last_byte != b"\n")

    def __iter__(self) -> Iterator[RowBlock]:
        blocks = iter(self._under)
        first_block = next(blocks, b"")
        if is_array(first_block):
            yield from self.read_array(first_block, blocks)
            return
        for lines, row, byte in read_wanted_lines(chain([first_block], blocks), self._range, self._largest):
            if isinstance(lines, BlankLines):  # report no position, because blank lines are not parsed
                yield RowBlock(blank_lines=lines)
                continue
            report_position(self._label, row, byte)
            block = RowBlock()
            if lines is None:
                if self._is_wanted(row):
                    block.bad.append(BadRecord(row, byte, TOO_LARGE))
                    yield block
                continue
            only_rows = self._only
            if only_rows is None and (objects := _parse_objects(lines, self._largest)) is not None:
                begins = accumulate((len(line) + 1 for line in lines[:-1]), initial=byte)
                yield RowBlock(objects, list(range(row, row + len(objects))), list(begins))
                continue
            for number, line in enumerate(lines, row):
                if only_rows is None or number in only_rows:
                    _add_line(block, line, number, byte, self._largest)
                byte += len(line) + 1
            yield block

    def _is_wanted(self, number: int) -> bool:
        return self._only is None or number in self._only

    def _read_elements(self, first_bytes: bytes, blocks: Iterator[bytes]) -> Iterator[tuple[int, bytes | None]]:
        """Yield the byte offset and JSON of each element of the array; None for an element beyond the limit."""
        return ElementScanner("array", self._label, self._largest).cut_elements(chain([first_bytes], blocks))

    def read_array(self, first_bytes: bytes, blocks: Iterator[bytes]) -> Iterator[RowBlock]:
        """Yield the rows of a file that is an array, starting with its first block."""
        block, block_bytes = RowBlock(), 0
        for number, (byte, raw) in enumerate(self._read_elements(first_bytes, blocks), 1):
            # Cut elements outside of the range without parsing them, because they must be counted, and the array's end
            # must be found.
            if self._range.select_rows(number, 1) != slice(0, 1):
                continue
            too_large = raw is None or is_too_large(raw, self._largest)
            if not block_bytes or must_read_single_rows():
                report_position(self._label, number)
            # Also parse elements that the caller did not request, because parsing them checks that they are JSON.
            value = None if raw is None or too_large else self._parse(raw, number, byte)
            if not self._is_wanted(number):
                continue
            if too_large:
                block.bad.append(BadRecord(number, -1, TOO_LARGE))
            else:
                block.add(value, number, -1)
            block_bytes += len(raw or b"")
            if (
                len(block.rows) + len(block.bad) >= (1 if must_read_single_rows() else MAX_ROWS)
                or block_bytes >= _BLOCK_BYTES
            ):
                yield block
                block, block_bytes = RowBlock(), 0
        if block.rows or block.bad:
            yield block

    def _parse(self, raw: bytes, number: int, byte: int) -> Any:
        try:
            return parse_value(raw)
        except orjson.JSONDecodeError as error:
            raise CorruptSourceError(
                f"{self._label}: begins like a JSON array, but element {number} at byte {byte} is not valid JSON: "
                f"{error.msg}. Correct the element, or write one object per line",
                file=self._label,
                row=number,
                byte=byte,
            ) from error


def _parse_objects(lines: list[bytes], largest: int) -> list[dict[str, Any]] | None:
    """Return the objects of lines that are all valid rows; None if a line is not, or must be parsed separately."""
    if may_be_too_large(lines, largest) or has_long_integers(b"\n".join(lines)):
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
        value = parse_value(line.removeprefix(BOM))
    except orjson.JSONDecodeError as error:
        block.bad.append(build_invalid_record(number, byte, line, error))
        return
    block.add(value, number, byte)


class _ParquetRows(ParquetBlocks[RowBlock]):
    """Reader of whole rows of a Parquet file, or of some of their columns."""

    batch_rows = MAX_ROWS

    def __init__(self, file: InputFile) -> None:
        super().__init__(file.path, file.label, file.rows)
        self._wanted, self._file = file.columns, file

    def _select_columns(self, schema: Any) -> list[str] | None:
        check_names(schema.names, self._wanted, self._label)
        return None if self._wanted is None else [name for name in self._wanted if find_type(schema, name) is not None]

    def _split_batch(self, batch: Any) -> Iterator[Any]:
        return split_into_small_parts(batch)

    def _build_block(self, batch: Any, row: int) -> RowBlock:
        return read_rows_of_batch(batch, row, self._file)


def check_names(names: Sequence[str], required_names: Collection[str] | None, label: str) -> None:
    """Raise CorruptSourceError, naming the file `label`, if two requested columns (None: all) have the same name."""
    positions: dict[str, int] = {}
    required_names = None if required_names is None else {find_top_name(names, path) for path in required_names}
    for position, name in enumerate(names, 1):
        if (required_names is None or name in required_names) and (
            first_position := positions.setdefault(name, position)
        ) != position:
            raise CorruptSourceError(
                f"{label}: columns {first_position} and {position} have the same name. Rename one of them"
            )


def split_into_small_parts(batch: Any) -> Iterator[Any]:
    """Yield a `pyarrow.RecordBatch` in parts whose objects take a bounded amount of memory."""
    if batch.num_rows > 1 and (must_read_single_rows() or _estimate_object_bytes(batch.columns) > _MAX_PART_BYTES):
        # Halve the batch until it fits, because rows differ in size, and one row may be most of the batch.
        half = batch.num_rows // 2
        yield from split_into_small_parts(batch.slice(0, half))
        yield from split_into_small_parts(batch.slice(half))
    else:
        yield batch


def read_rows_of_batch(batch: Any, row: int, file: InputFile) -> RowBlock:
    """Return the requested rows of a `pyarrow.RecordBatch` that begins at a 1-based row of a file.

    Raises CorruptSourceError for a row with a value that Python cannot represent.
    """
    numbers = list(range(row, row + batch.num_rows))
    to_json = _build_json_converter(batch.schema) if file.as_json else None
    if file.only is not None:
        numbers = [number for number in numbers if number in file.only]
    elif not _may_be_too_large(batch, file):
        with suppress(ValueError, OverflowError, LookupError):  # the loop below finds the row with a bad value
            rows = batch.to_pylist()
            return RowBlock([*map(to_json, rows)] if to_json else rows, numbers, [-1] * len(numbers))
    block = RowBlock()
    # Convert the rows one by one, because some of them may be unwanted or bad.
    for number in numbers:
        row_batch = batch.slice(number - row, 1)
        if _may_be_too_large(row_batch, file):
            block.bad.append(BadRecord(number, -1, TOO_LARGE))
            continue
        try:
            value = row_batch.to_pylist()[0]
            block.add(to_json(value) if to_json else value, number, -1)
        except orjson.JSONDecodeError as error:
            block.bad.append(BadRecord(number, -1, "bad_json", describe_fault(error)))
        except UnicodeDecodeError:
            block.bad.append(BadRecord(number, -1, "invalid_utf8"))
        # Do not chain the error, because its message may contain the value.
        except (ValueError, OverflowError, LookupError) as error:
            raise CorruptSourceError(
                f"{file.label}: row {number} has a value that Python cannot represent ({type(error).__name__}): a "
                "date after the year 9999, a time in an unknown zone, or two fields of the same name. Correct the "
                "value, or write it as text",
                file=file.label,
                row=number,
            ) from None
    return block


def _build_json_converter(kind: Any) -> Callable[[Any], Any]:
    """Return a function that converts values of a `pyarrow.Schema` or type to JSON, for `InputFile.as_json`."""
    import pyarrow as pa
    import pyarrow.types as types

    if isinstance(kind, pa.Schema) or types.is_struct(kind):
        converters = {field.name: _build_json_converter(field.type) for field in kind}

        def convert_object(value: Any) -> Any:
            # Omit null fields, because a column's type comes from all rows, so a row without a field has a null in it.
            return None if value is None else {k: converters[k](v) for k, v in value.items() if v is not None}

        return convert_object
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        convert_item = _build_json_converter(kind.value_type)
        if convert_item is _return_unchanged:
            return _return_unchanged
        return lambda items: None if items is None else [*map(convert_item, items)]
    if isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.json":
        return lambda text: None if text is None else parse_value(text.encode())
    return _return_unchanged


def _return_unchanged(value: Any) -> Any:
    return value


def _may_be_too_large(batch: Any, file: InputFile) -> bool:
    """Return whether any row of a batch may exceed the record limit; for a batch of one row, whether it does."""
    return (
        _measure_value_bytes(batch.columns) > file.max_record_bytes
        or _estimate_object_bytes(batch.columns) > MAX_PARSED
    )


def own_values(array: Any) -> Any:
    """Return a `pyarrow.Array` with only its own values; dictionaries and views contain the values of all rows."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_dictionary(array.type):
        return own_values(array.dictionary_decode())
    if types.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if types.is_binary_view(array.type) else array


def _measure_value_bytes(arrays: Sequence[Any]) -> int:
    """Return the number of bytes of the values in some `pyarrow.Array`s, without offsets."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    size = 0
    for array in map(own_values, arrays):
        kind = array.type
        if types.is_nested(kind):
            size += _measure_value_bytes(_list_inner_arrays(array))
        elif (
            types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
        ):
            # Do not use `nbytes`, which includes offsets and would exceed the limit for a text whose own size equals
            # the limit.
            size += pc.sum(pc.binary_length(array)).as_py() or 0
        else:
            size += array.nbytes
    return size


def _estimate_object_bytes(arrays: Sequence[Any]) -> int:
    """Return the approximate number of bytes of the Python objects for some `pyarrow.Array`s, including their lists."""
    import pyarrow.types as types

    size = 0
    for array in map(own_values, arrays):
        # Approximate sizes of CPython's objects: 8 for a list slot, 184 for a dict and 24 per field, 64 for a list, 56
        # for any other object in addition to its content.
        kind, count = array.type, len(array) - array.null_count
        size += 8 * len(array)
        if types.is_struct(kind):
            size += count * (184 + 24 * kind.num_fields) + _estimate_object_bytes(_list_inner_arrays(array))
        elif types.is_nested(kind):
            size += 64 * count + _estimate_object_bytes(_list_inner_arrays(array))
        else:
            size += 56 * count + array.nbytes
    return size


def _list_inner_arrays(array: Any) -> list[Any]:
    """Return the arrays of a nested `pyarrow.Array`, with the values of its own rows."""
    import pyarrow.types as types

    if types.is_struct(array.type):
        return [array.field(i) for i in range(array.type.num_fields)]
    if not types.is_map(array.type):
        return [array.flatten()]
    # Slice the values by the offsets, because a map has no `flatten`.
    start, stop = (array.offsets[end].as_py() for end in (0, -1))
    return [array.values.slice(start, stop - start)]


JSON = InputFormat(rows=JsonRows)
PARQUET = InputFormat(rows=_ParquetRows, starts_threads=True)
