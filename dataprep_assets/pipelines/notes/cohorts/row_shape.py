"""What packed rows of notes store: padded columns, which follow from tokens, segments and the shape of all rows.

So a row of 8,192 tokens takes about 32 kB in `formats/packed_rows` instead of five columns, and the next step parses no
JSON. Rows of one column are stored without padding: `RowShape.row_length` is then the longest, and `ABSENT` fills the
arrays after the end of a row.

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

# Positions of a row group, which is unpacked at once: `pack_rows` takes about 30 bytes for each, some 60 MB.
_POSITIONS = 2 << 20


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """What all rows of a dataset share: the stored columns, their length, and the id that fills rows."""

    columns: tuple[str, ...]
    row_length: int
    pad_id: int

    @property
    def group_rows(self) -> int:
        """Rows of a row group."""
        return max(1, _POSITIONS // self.row_length)

    def values(self, block: PackedRowBlock) -> dict[str, NDArray[np.int32]]:
        """The stored columns: name → int32 array of shape ``(rows, row_length)``, in the order of ``columns``.

        In the only column of unpacked rows, `ABSENT` follows the tokens of a row; it is not stored.
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

    def stored_lengths(self, block: PackedRowBlock) -> NDArray[np.int64]:
        """Values that each row stores in a column, shape ``(rows,)``: only its tokens if rows are not padded."""
        return np.diff(block.rows) if self.columns == ("tokens",) else np.full(len(block), self.row_length, np.int64)

    def json_lines(self, block: PackedRowBlock) -> Iterator[bytes]:
        """The rows as JSON lines: an object of the stored columns each."""
        values = self.values(block)
        for row, length in enumerate(self.stored_lengths(block).tolist()):
            line = {name: values[name][row, :length] for name in self.columns}
            # Proofs take a line with exactly these bytes for the row's (`sampled_lines`); any other they have to parse.
            yield orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
