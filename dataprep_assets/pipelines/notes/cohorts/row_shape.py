"""Shape of packed rows of notes, from which the padded columns are computed with the tokens and segments.

Because the columns are computed, a row of 8,192 tokens takes about 32 kB in `formats/packed_rows` instead of five
columns, and the next step does not parse JSON. Rows of one column are stored without padding. `RowShape.row_length` is
then the maximum length, and `ABSENT` fills the arrays after the end of a row.

Entry point: `RowShape`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from dataprep_assets.formats.packed_rows import PackedRowBlock
from dataprep_assets.packing.bins import Bins
from dataprep_assets.packing.rows import pack_rows

# Limit the positions per row group, because `pack_rows` unpacks a whole group, which needs about 30 bytes per position
# (60 MB per group).
_POSITIONS_PER_GROUP = 2 << 20


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """Common shape of a dataset's rows: the stored columns, their length, and the id that fills rows."""

    columns: tuple[str, ...]
    row_length: int
    pad_id: int

    @property
    def group_rows(self) -> int:
        """Number of rows per row group."""
        return max(1, _POSITIONS_PER_GROUP // self.row_length)

    def values(self, block: PackedRowBlock) -> dict[str, NDArray[np.int32]]:
        """Return the stored columns: name → int32 array of shape ``(rows, row_length)``, in the order of ``columns``.

        In the single column of unpacked rows, `ABSENT` follows the tokens of a row. `ABSENT` is not stored.
        """
        rows = pack_rows(
            block.tokens,
            np.append(block.bounds()[0], len(block.tokens)),
            Bins(items=np.arange(block.starts.size), offsets=block.heads),
            row_length=self.row_length,
            pad_id=self.pad_id,
            targets="targets" in self.columns,
        )
        if self.columns == ("tokens",):
            return {"tokens": rows.inputs}
        return {name: column for name, column in rows.columns().items() if name in self.columns}

    def count_stored_values(self, block: PackedRowBlock) -> NDArray[np.int64]:
        """Return the number of values per row in each stored column: ``(rows,)``; without padding, its tokens."""
        return np.diff(block.rows) if self.columns == ("tokens",) else np.full(len(block), self.row_length, np.int64)

    def encode_json_lines(self, block: PackedRowBlock) -> Iterator[bytes]:
        """Yield the rows as JSON Lines, with one object of the stored columns per row."""
        values = self.values(block)
        for row, length in enumerate(self.count_stored_values(block).tolist()):
            line = {name: values[name][row, :length] for name in self.columns}
            # Do not change these options, because `sample_lines` accepts a line with exactly these bytes without
            # parsing it.
            yield orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
