"""Arrow IPC: the stream format, which folders of `datasets` use (`save_to_disk`), and the file format (Feather).

A stream, and a file that is compressed as a whole, are read from beginning to end and digested while they are read.
Memory is limited to the largest batch. A stream must end with its end-of-stream marker, and a file with its magic.
pyarrow does not check this: it accepts a stream that was truncated between two batches as a shorter one. Other files
are read by their footer and digested separately, because polars writes its own data before the stream in a file.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import report_position
from dataprep_assets.errors import CorruptSourceError, build_memory_error
from dataprep_assets.fields import select_fields
from dataprep_assets.sources.readers.blocks import BlockReader
from dataprep_assets.sources.readers.contents import detect_non_table
from dataprep_assets.sources.readers.input_format import MAX_ROWS, InputFile, InputFormat, RowBlock
from dataprep_assets.sources.readers.row_files import WrappingReader
from dataprep_assets.sources.readers.rows import check_names, read_rows_of_batch, split_into_small_parts

_MAGIC = b"ARROW1"
# The end of a stream is a continuation marker and a message length of 0.
_END = b"\xff\xff\xff\xff\0\0\0\0"
_POLARS_HINT = (
    "If polars wrote it, remove the .zst or .gz compression, or write a stream (`write_ipc_stream`). Otherwise: "
)
_BLOCK_BYTES = 16 << 20
"""Approximate number of bytes of a batch that are converted to rows at once."""


class _ArrowStream:
    """File object through which pyarrow reads the decompressed bytes of a file."""

    closed = False  # pyarrow's PythonFile requires this attribute

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._held = blocks, b""
        # `last` has the last bytes that pyarrow read. In a complete stream, they are the end marker.
        self.last = b""

    def peek(self, size: int) -> bytes:
        while len(self._held) < size and (block := next(self._blocks, None)) is not None:
            self._held += block
        return self._held[:size]

    def read(self, size: int = -1) -> bytes:
        """Return this many bytes, or fewer at the end."""
        parts, remaining = [self._held[:size]], size - len(self._held)
        self._held = self._held[size:]
        while remaining > 0 and (block := next(self._blocks, None)) is not None:
            parts.append(block[:remaining])
            self._held = block[remaining:]
            remaining -= len(block)
        data = b"".join(parts)
        self.last = (self.last + data[-len(_END) :])[-len(_END) :]
        return data

    def drain(self) -> bytes:
        """Read all remaining bytes, and return the last bytes of the file."""
        tail = self.last + self._held
        for block in self._blocks:
            tail = tail[-len(_END) :] + block
        return tail[-len(_END) :]

    def close(self) -> None:
        """Do nothing, because the reader owns the blocks."""


class ArrowRows(WrappingReader[BlockReader]):
    """Reader of the rows of an Arrow file, or of some of their columns."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(BlockReader(file.path, file.compression, file.label))
        self._file = file

    def count(self) -> int:
        """Return the number of rows of all batches."""
        return sum(batch.num_rows for batch, _ in self._read_batches())

    def __iter__(self) -> Iterator[RowBlock]:
        file = self._file
        for batch, first_row in self._read_batches():
            check_names(batch.schema.names, file.columns, file.label)
            span = file.rows.select_rows(first_row, batch.num_rows)
            if file.columns is not None:
                batch = select_fields(batch, file.columns)
            step = max(1, min(MAX_ROWS, batch.num_rows * _BLOCK_BYTES // max(batch.nbytes, 1)))
            for start in range(span.start, span.stop, step):
                row = first_row + start
                for part in split_into_small_parts(batch.slice(start, min(step, span.stop - start))):
                    report_position(file.label, row)
                    yield read_rows_of_batch(part, row, file)
                    row += part.num_rows

    def _read_batches(self) -> Iterator[tuple[Any, int]]:
        """Yield each batch and its first row."""
        import pyarrow as pa

        stream, row = _ArrowStream(iter(self._under)), 1
        of_file = stream.peek(len(_MAGIC)) == _MAGIC
        # The compression is known here, because `peek` has made the reader detect it from the first bytes.
        by_footer = of_file and self._under.compression is None
        try:
            for batch in (
                _read_by_footer(self._file.path, stream) if by_footer else _stream_batches(stream, 8 if of_file else 0)
            ):
                for column in batch.columns:
                    _check_buffers(column)
                yield batch, row
                row += batch.num_rows
        except (MemoryError, pa.ArrowMemoryError):
            raise build_memory_error(f"{self._file.label}, near row {row}") from None
        except (pa.ArrowException, OSError, EOFError) as error:
            # Name polars as a possible cause only if not even the first batch can be read as a stream. A later error
            # means that the file is damaged.
            is_of_polars = of_file and not by_footer and row == 1
            raise self._build_unreadable_error(row, str(error), _POLARS_HINT if is_of_polars else "") from error
        # Require the end marker, because a truncated stream may end between two batches. In Arrow's file format, the
        # footer and the magic number follow the marker.
        has_end = stream.last == _END
        tail = stream.drain()
        if not by_footer and (not has_end or (of_file and not tail.endswith(_MAGIC))):
            raise self._build_unreadable_error(row, "the end marker is missing")

    def _build_unreadable_error(self, row: int, reason: str, unless: str = "") -> CorruptSourceError:
        if (kind := detect_non_table(self._file.path, ".arrow")) is not None and self._under.compression is None:
            return CorruptSourceError(f"{self._file.label}: {kind}")
        return CorruptSourceError(
            f"{self._file.label}: invalid Arrow data near row {row}: {reason}. {unless}Download the file again",
            file=self._file.label,
            row=row,
        )


def _check_buffers(array: Any) -> None:
    """Raise ArrowInvalid if an offset or an index points outside its buffers.

    pyarrow would still read there, and the process would crash or return arbitrary memory as text. Invalid UTF-8, which
    pyarrow's validation also refuses, is handled later as bad records.
    """
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    array.validate()
    if isinstance(kind, pa.BaseExtensionType):
        _check_buffers(array.storage)
    elif types.is_string(kind) or types.is_large_string(kind):
        array.view(pa.binary() if types.is_string(kind) else pa.large_binary()).validate(full=True)
    elif types.is_struct(kind):
        for number in range(kind.num_fields):
            _check_buffers(array.field(number))
    elif types.is_dictionary(kind):
        pa.DictionaryArray.from_arrays(array.indices, pa.nulls(len(array.dictionary))).validate(full=True)
        _check_buffers(array.dictionary)
    elif types.is_list(kind) or types.is_large_list(kind):
        # Combine the offsets with null values, which are always valid, to validate only the offsets.
        lists = pa.ListArray if types.is_list(kind) else pa.LargeListArray
        lists.from_arrays(array.offsets, pa.nulls(len(array.values))).validate(full=True)
        _check_buffers(array.values)
    elif types.is_fixed_size_list(kind):
        _check_buffers(array.values)
    else:
        array.validate(full=True)


def _read_by_footer(path: Path, stream: _ArrowStream) -> Iterator[Any]:
    """Yield the batches of a file, and digest its stream at the same pace, so that `bytes_read` shows the progress."""
    import pyarrow as pa

    options, digested_bytes = pa.ipc.IpcReadOptions(use_threads=False), 0
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source, options=options) as file:
        for number in range(file.num_record_batches):
            batch, upto = file.get_batch(number), source.size() * (number + 1) // file.num_record_batches
            stream.read(upto - digested_bytes)
            digested_bytes = upto
            yield batch


def _stream_batches(stream: _ArrowStream, bytes_before: int) -> Iterator[Any]:
    """Yield the batches of a stream after `bytes_before` bytes: the magic of a file and its padding."""
    import pyarrow as pa

    stream.read(bytes_before)
    options = pa.ipc.IpcReadOptions(use_threads=False)
    with pa.ipc.open_stream(pa.PythonFile(stream, mode="r"), options=options) as batches:
        yield from batches


FORMAT = InputFormat(rows=ArrowRows, starts_threads=True)
