"""Names of the rows of a shard's source files in messages and tables: `file:row`."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.table import read_joined_tables

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class RowNames:
    """Names of a shard's rows, by their position in the shard's tags.

    Attributes:
        rows: The file of the tags with the columns `file` and `row`.
        prefix: Prefix of each name: `dataset:` for rows of another dataset.
    """

    rows: Path
    prefix: str = ""

    def read_names(self, positions: NDArray[np.int64]) -> list[str]:
        """Return the names at the given positions, which must be ascending."""
        names = list[str]()
        for start, piece in self._read_pieces():
            # The positions are ascending, so the positions in a piece are one slice, and the file is read only once.
            offsets = positions[slice(*np.searchsorted(positions, [start, start + piece.num_rows]).tolist())] - start
            names += self._build_names(piece.take(offsets))
        return names

    def find_positions(self, names: Collection[str]) -> dict[str, int]:
        """Return name → position; omit names that do not exist."""
        return {
            name: position
            for start, piece in self._read_pieces()
            for position, name in enumerate(self._build_names(piece), start)
            if name in names
        }

    def _read_pieces(self) -> Iterator[tuple[int, "pa.Table"]]:
        start = 0
        for piece in read_joined_tables([self.rows], ["file", "row"]):
            yield start, piece
            start += piece.num_rows

    def _build_names(self, piece: "pa.Table") -> list[str]:
        columns = (piece[name].to_pylist() for name in ("file", "row"))
        return [f"{self.prefix}{file}:{row}" for file, row in zip(*columns, strict=True)]
