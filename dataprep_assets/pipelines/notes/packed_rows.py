"""Packed rows as a compact columnar file: the ids of each row without padding, and the lengths of its segments.

Everything else that a row stores follows from these two and the row length, so a row of 8,192 tokens takes about 32 kB
instead of five columns, and the next step parses no JSON. Rows of one column are stored without padding:
`RowShape.row_length` is then the longest, and `ABSENT` fills the arrays after the end of a row.

An Arrow IPC file, uncompressed, with two columns of lists of int32, ``tokens`` and ``segments``; the metadata of its
schema has what is the same for all rows. One record batch has as many rows as fit in about two million positions.

Entry points: `RowShape`, `PackedRowBlock`; `PackedRowsWriter`, `PackedRowsFile`.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import FormatError
from dataprep_assets.packing.bins import Bins
from dataprep_assets.packing.rows import pack_rows

# Positions of a record batch, which is unpacked at once: `pack_rows` takes about 30 bytes for each, some 60 MB.
_POSITIONS = 2 << 20
_MAGIC = b"ARROW1\0\0"
_KEY = b"dataprep_assets.row_shape"


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """What all rows of a file share: the stored columns, their length, and the id that fills rows."""

    columns: tuple[str, ...]
    row_length: int
    pad_id: int

    @property
    def batch_rows(self) -> int:
        """Rows of a record batch."""
        return max(1, _POSITIONS // self.row_length)


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedRowBlock:
    """Some consecutive rows without padding.

    ``tokens``: int32, shape ``(tokens,)``, of all rows one after another. ``segments``: int64, shape ``(segments,)``,
    tokens of each segment. ``offsets``: int64, shape ``(rows + 1,)``, the first segment of each row, from 0.
    """

    tokens: NDArray[np.int32]
    segments: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of rows."""
        return self.offsets.size - 1

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each row's tokens end, int64, shape ``(rows + 1,)``, with a leading 0."""
        # ends of all segments, of which a row's is that of its last
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.segments)])[self.offsets]

    def columns(self, shape: RowShape) -> dict[str, NDArray[np.int32]]:
        """The stored columns: name → int32 array of shape ``(rows, row_length)``, in the order of ``shape.columns``.

        In the only column of unpacked rows, `ABSENT` follows the tokens of a row; it is not stored.
        """
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.segments)])
        rows = pack_rows(
            self.tokens,
            bounds,
            Bins(items=np.arange(self.segments.size), offsets=self.offsets),
            row_length=shape.row_length,
            pad_id=shape.pad_id,
            targets="targets" in shape.columns,
        )
        if shape.columns == ("tokens",):
            return {"tokens": rows.inputs}
        return {name: column for name, column in rows.columns().items() if name in shape.columns}

    def stored_lengths(self, shape: RowShape) -> NDArray[np.int64]:
        """Values that each row stores in a column, shape ``(rows,)``: only its tokens if rows are not padded."""
        return np.diff(self.ends) if shape.columns == ("tokens",) else np.full(len(self), shape.row_length, np.int64)

    def json_lines(self, shape: RowShape) -> Iterator[bytes]:
        """The rows as JSON lines: an object of the stored columns each."""
        columns = self.columns(shape)
        for row, length in enumerate(self.stored_lengths(shape).tolist()):
            values = {name: columns[name][row, :length] for name in shape.columns}
            # Proofs take a line with exactly these bytes for the row's (`sampled_lines`); any other they have to parse.
            yield orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


class PackedRowsWriter:
    """Writes a new file, batch by batch; use as a context manager."""

    def __init__(self, path: Path, shape: RowShape) -> None:
        import pyarrow as pa

        lists = pa.list_(pa.int32())
        value = json.dumps(asdict(shape), sort_keys=True).encode()
        self._schema = pa.schema([("tokens", lists), ("segments", lists)], metadata={_KEY: value})
        self._file = open(path, "xb")  # noqa: SIM115 (closed by __exit__)
        self._writer = pa.ipc.new_file(self._file, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                # The footer makes it a file: one that an error has cut short must not get it, and is then refused.
                self._writer.close()
        finally:
            self._file.close()

    def write(self, block: PackedRowBlock) -> None:
        """Append one record batch."""
        import pyarrow as pa

        # int32 offsets suffice: a batch has some two million tokens, or one row of at most 2**31 - 1
        def lists(offsets: NDArray[np.int64], values: NDArray[Any]) -> Any:
            return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values.astype(np.int32)))

        columns = [lists(block.ends, block.tokens), lists(block.offsets, block.segments)]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))


class PackedRowsFile:
    """A file of packed rows, read one batch at a time: a mapped file would count as memory of the process.

    Raises FormatError if the file is not one or is damaged; no message shows a token.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._path = path
        try:
            with open(path, "rb") as file:
                if file.read(len(_MAGIC)) != _MAGIC:  # which no reader asks
                    raise ValueError("another beginning")
            self._reader = pa.ipc.open_file(pa.OSFile(str(path)))
            value = json_of(self._reader.schema.metadata[_KEY])
            self.shape = RowShape(**value | {"columns": tuple(value["columns"])})
        except (pa.ArrowException, ValueError, KeyError, TypeError):
            raise self._broken() from None
        # number and content of the batch read last: single rows and neighbouring blocks are asked for one after another
        self._last: tuple[int, Any] = (-1, None)
        # All batches but the last are full (`_batch` refuses others), so the last one alone tells the number of rows.
        batches = self._reader.num_record_batches
        self._rows = (batches - 1) * self.shape.batch_rows + self._batch(batches - 1).num_rows if batches else 0

    def _broken(self) -> FormatError:
        return FormatError(
            f"{self._path}: not a file of packed rows, or a damaged one; materialize packed_cohorts again"
        )

    def _batch(self, index: int) -> Any:
        import pyarrow as pa

        if self._last[0] != index:
            try:
                self._last = index, self._reader.get_batch(index)
            except (pa.ArrowException, OSError):
                raise self._broken() from None
        found = self._last[1]
        if index < self._reader.num_record_batches - 1 and found.num_rows != self.shape.batch_rows:
            raise self._broken()
        return found

    def __len__(self) -> int:
        """Number of rows."""
        return self._rows

    def block(self, start: int, stop: int) -> PackedRowBlock:
        """Rows ``start`` to ``stop``, exclusive; fewer at the end of the file."""
        import pyarrow as pa

        step, stop = self.shape.batch_rows, min(stop, len(self))
        if start >= stop:
            nothing = np.zeros(0, np.int64)
            return PackedRowBlock(tokens=np.zeros(0, np.int32), segments=nothing, offsets=np.zeros(1, np.int64))
        first = start // step
        batches = [self._batch(index) for index in range(first, -(-stop // step))]
        part = pa.Table.from_batches(batches).slice(start - first * step, stop - start).combine_chunks()
        _, tokens = _lists(part.column("tokens"))
        offsets, segments = _lists(part.column("segments"))
        return PackedRowBlock(tokens=tokens, segments=segments.astype(np.int64), offsets=offsets)

    def blocks(self, rows: int) -> Iterator[PackedRowBlock]:
        """All rows, up to ``rows`` at a time."""
        for start in range(0, len(self), rows):
            yield self.block(start, start + rows)


def _lists(column: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Offsets from 0, and values, of a column of lists in one chunk."""
    (chunk,) = column.chunks
    offsets = chunk.offsets.to_numpy().astype(np.int64)
    # A slice keeps the values of its whole chunk, and offsets into them.
    values = chunk.values.to_numpy()[offsets[0] : offsets[-1]]
    return offsets - offsets[0], values
