"""Token ids of a document in the files of trainers: flat arrays, NumPy files, MDS shards and Parquet rows.

Entry point: `TrainerFiles`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.trace.place import TokenRange
from dataprep_assets.formats import mds, npy_shards
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore

_COLUMN = "input_ids"
"""Column of ids in Parquet files of trainers."""


class TrainerFiles:
    """Reader of token ids at the places of a trace. Opened artifacts are kept, because a sample has many places."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._handles: dict[str, ArtifactHandle] = {}
        # `_group` is the row group of a Parquet file that was read last, because samples are read in order.
        self._group: tuple[tuple[str, str, int], Any] | None = None

    def read_beginning(self, token_ranges: Sequence[TokenRange], count: int) -> NDArray[np.integer] | None:
        """Return the first `count` ids of a document, whose parts are at these places of one artifact.

        Returns None if the format of the files is not supported.
        """
        pieces, missing = list[NDArray[np.integer]](), count
        for token_range in token_ranges:
            if missing <= 0:
                break
            ids = self._read(token_range, missing)
            if ids is None:
                return None
            pieces.append(ids)
            missing -= len(ids)
        return np.concatenate(pieces) if pieces else None

    def _read(self, token_range: TokenRange, count: int) -> NDArray[np.integer] | None:
        handle, stop = self._open(token_range.artifact), min(token_range.stop, token_range.start + count)
        if token_range.itemsize is not None:
            return np.asarray(handle.tokens(token_range.file)[token_range.start : stop])
        if token_range.file.endswith(".npy"):
            dtype = token_dtype(handle.receipt.facts["dtype"])
            begin, end = (npy_shards.HEADER_BYTES + position * dtype.itemsize for position in (token_range.start, stop))
            return np.frombuffer(handle.read(token_range.file, begin, end), dtype)
        if token_range.file.endswith(".mds"):
            first_offset = mds.parse_first_offset(handle.read(token_range.file, 0, 8))
            begin, end = (first_offset + 4 * position for position in (token_range.start, stop))
            return np.frombuffer(handle.read(token_range.file, begin, end), "<i4")
        if token_range.file.endswith(".parquet") and isinstance(row := token_range.at.get("row"), int):
            return self._read_row(handle, token_range.file, row)[token_range.start : stop]
        return None

    def _read_row(self, handle: ArtifactHandle, name: str, row: int) -> NDArray[np.integer]:
        import pyarrow.parquet as pq

        with handle.open(name) as source, pq.ParquetFile(source) as file:
            group = 0
            while row >= (rows := file.metadata.row_group(group).num_rows):
                row, group = row - rows, group + 1
            key = (str(handle.artifact), name, group)
            if self._group is None or self._group[0] != key:
                self._group = key, file.read_row_group(group, columns=[_COLUMN], use_threads=False).column(0)
        ids: NDArray[np.integer] = self._group[1][row].values.to_numpy()
        return ids

    def _open(self, name: str) -> ArtifactHandle:
        if name not in self._handles:
            artifact = Artifact(**dict(zip(("dataset", "name", "partition"), name.split("/"), strict=False)))
            self._handles[name] = ArtifactHandle.from_store(self._store, artifact)
        return self._handles[name]
