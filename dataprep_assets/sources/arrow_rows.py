"""Arrow IPC: the stream format, which folders of `datasets` have (`save_to_disk`), and the file format (Feather).

Both are read as a stream, from the beginning to the end: so a file may be compressed as a whole, is digested while it
is read, and memory is that of its largest batch. A stream has to end with its end-of-stream marker, and a file with its
magic: pyarrow takes a stream that was cut between two batches for a shorter one.
"""

from collections.abc import Iterator
from typing import Any

from dataprep_assets.bounds import at
from dataprep_assets.errors import CorruptSourceError, out_of_memory
from dataprep_assets.sources.blocks import BlockReader
from dataprep_assets.sources.input_format import MOST_ROWS, InputFile, InputFormat, RowBlock
from dataprep_assets.sources.row_files import ReadThrough
from dataprep_assets.sources.rows import rows_of_batch, small_parts

_MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\0\0\0\0"
_BLOCK_BYTES = 16 << 20
"""About as many bytes of a batch become rows at once."""


class _Stream:
    """The decompressed bytes of a file as pyarrow reads them."""

    closed = False

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._held = blocks, b""
        self.last = b""

    def peek(self, size: int) -> bytes:
        while len(self._held) < size and (block := next(self._blocks, None)) is not None:
            self._held += block
        return self._held[:size]

    def read(self, size: int = -1) -> bytes:
        """So many bytes, fewer only at the end."""
        parts, left = [self._held[:size]], size - len(self._held)
        self._held = self._held[size:]
        while left > 0 and (block := next(self._blocks, None)) is not None:
            parts.append(block[:left])
            self._held = block[left:]
            left -= len(block)
        data = b"".join(parts)
        self.last = (self.last + data[-len(_END) :])[-len(_END) :]
        return data

    def drain(self) -> bytes:
        """Read all that is left; returns the last bytes of the file."""
        last = self.last + self._held
        for block in self._blocks:
            last = last[-len(_END) :] + block
        return last[-len(_END) :]

    def close(self) -> None:
        """Nothing: the blocks are the reader's."""


class ArrowRows(ReadThrough[BlockReader]):
    """The rows of an Arrow file, or some columns of them."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(BlockReader(file.path, file.compression, file.label))
        self._file = file

    def count(self) -> int:
        """Rows of all batches."""
        return sum(batch.num_rows for batch, _ in self._batches())

    def __iter__(self) -> Iterator[RowBlock]:
        file = self._file
        for batch, first in self._batches():
            chosen = file.rows.within(first, batch.num_rows)
            if file.columns is not None:
                batch = batch.select([name for name in file.columns if name in batch.schema.names])
            step = max(1, min(MOST_ROWS, batch.num_rows * _BLOCK_BYTES // max(batch.nbytes, 1)))
            for start in range(chosen.start, chosen.stop, step):
                row = first + start
                for some in small_parts(batch.slice(start, min(step, chosen.stop - start))):
                    at(file.label, row)
                    try:
                        block = rows_of_batch(some, row, file)
                    except UnicodeDecodeError:
                        raise self._unreadable(row, "a text is not UTF-8") from None
                    yield block
                    row += some.num_rows

    def _batches(self) -> Iterator[tuple[Any, int]]:
        """Each batch and its first row."""
        import pyarrow as pa

        stream, row = _Stream(iter(self._under)), 1
        of_file = stream.peek(len(_MAGIC)) == _MAGIC
        if of_file:
            stream.read(8)  # the magic and its padding; what follows is a stream, then the footer
        try:
            with pa.ipc.open_stream(
                pa.PythonFile(stream, mode="r"), options=pa.ipc.IpcReadOptions(use_threads=False)
            ) as batches:
                for batch in batches:
                    yield batch, row
                    row += batch.num_rows
        except (MemoryError, pa.ArrowMemoryError):
            raise out_of_memory(f"{self._file.label}, near row {row}") from None
        except (pa.ArrowException, OSError, EOFError) as error:
            raise self._unreadable(row, str(error)) from error
        whole = stream.last == _END
        last = stream.drain()
        if not whole or (of_file and not last.endswith(_MAGIC)):
            raise self._unreadable(row, "it ends before its end mark")

    def _unreadable(self, row: int, why: str) -> CorruptSourceError:
        return CorruptSourceError(
            f"{self._file.label}: Arrow cannot be read near row {row}: {why}. Fetch the file again"
        )


FORMAT = InputFormat(rows=ArrowRows, starts_threads=True)
