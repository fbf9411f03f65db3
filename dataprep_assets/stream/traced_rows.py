"""Tracing of packed rows: the position and the origin of each segment, read by ranges from object storage.

Entry points: `TracedRows`, `TracedSegment`.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.formats.packed_rows import IDS, LENGTHS, STARTS, UNPADDED
from dataprep_assets.formats.row_origins import Origins, parse_origins
from dataprep_assets.integrity.artifacts import ArtifactHandle


class TracedSegment(NamedTuple):
    """A segment: its row, its number in the row (from 0), its first token in the row, and its ids without padding.

    `unpadded_start` is its first token in the row if the segments before it had no padding.
    """

    row: int
    number: int
    start: int
    ids: NDArray[np.int32]
    unpadded_start: int

    @property
    def stop(self) -> int:
        """End of the segment in the row, exclusive."""
        return self.start + len(self.ids)


class TracedRows:
    """One file of packed rows (`formats/packed_rows`) and its origins (`formats/row_origins`)."""

    def __init__(self, handle: ArtifactHandle, rows: str | None, origins: str, columns: int) -> None:
        """Open the files of packed rows.

        Args:
            handle: The artifact.
            rows: The file of rows; None if nothing was packed.
            origins: The file of origins.
            columns: Number of columns in the file of origins.
        """
        self._handle, self._rows, self._origins, self._columns = handle, rows, origins, columns
        # `_group` is the number and the ids of the row group that was read last. It is cached, because the segments of
        # a query are near each other.
        self._group: tuple[int, Any] = (-1, None)
        self._is_padded = False  # set when the index is read

    @cached_property
    def origins(self) -> Origins:
        """Origins of all segments; raises FormatError if the file is damaged."""
        if self._rows is None:
            return np.empty((0, self._columns), np.int64)
        location = f"{self._handle.artifact}/{self._origins}"
        return parse_origins(self._handle.read(self._origins), self._columns, location)

    @cached_property
    def _index(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Three arrays: first segment of each row and the total, start of each segment, end of each row group."""
        import pyarrow.parquet as pq

        if self._rows is None:
            return np.zeros(1, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
        with self._handle.open(self._rows) as rows_file, pq.ParquetFile(rows_file) as file:
            self._is_padded = UNPADDED in file.schema_arrow.names
            column = file.read(columns=[STARTS]).column(0).combine_chunks()
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
        heads = np.concatenate([np.zeros(1, np.int64), np.cumsum(column.value_lengths().to_numpy())])
        return heads, column.flatten().to_numpy().astype(np.int64), np.cumsum(sizes)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._index[0]) - 1

    def segments(self, row: int) -> range:
        """Return the numbers of a row's segments in the file."""
        heads = self._index[0]
        return range(int(heads[row]), int(heads[row + 1]))

    def segment(self, position: int) -> TracedSegment:
        """Return the segment with this number in the file."""
        heads, starts, _ = self._index
        # The segment is in the last row whose first segment is not after it.
        row = int(np.searchsorted(heads, position, side="right")) - 1
        ids, start = self._read_ids(row), int(starts[position])
        number = position - int(heads[row])
        stop, unpadded_start = int(starts[position + 1]) if position + 1 < heads[row + 1] else len(ids), start
        if self._is_padded:
            lengths = self.lengths[int(heads[row]) : position + 1].tolist()
            stop, unpadded_start = start + lengths[-1], sum(lengths[:-1])
        return TracedSegment(row=row, number=number, start=start, ids=ids[start:stop], unpadded_start=unpadded_start)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each segment without padding; only for files of conversations."""
        import pyarrow.parquet as pq

        assert self._rows is not None, "there is a segment"
        with self._handle.open(self._rows) as rows_file, pq.ParquetFile(rows_file) as file:
            name = UNPADDED if UNPADDED in file.schema_arrow.names else LENGTHS
            lengths: NDArray[Any] = file.read(columns=[name]).column(0).combine_chunks().flatten().to_numpy()
            return lengths.astype(np.int64)

    def _read_ids(self, row: int) -> NDArray[np.int32]:
        import pyarrow.parquet as pq

        assert self._rows is not None, "there is a row"
        ends = self._index[2]
        group = int(np.searchsorted(ends, row, side="right"))
        if self._group[0] != group:
            with self._handle.open(self._rows) as rows_file, pq.ParquetFile(rows_file) as file:
                self._group = group, file.read_row_group(group, columns=[IDS]).column(0)
        # The index is negative, because it counts from the end of the row group.
        row_ids: NDArray[np.int32] = self._group[1][row - int(ends[group])].values.to_numpy()
        return row_ids
