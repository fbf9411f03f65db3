"""Row layouts: the ranges of a spool that are the segments of each row, determined before tokens are moved.

A spool is a flat file of the ids of all sequences; for chats, a second one contains their loss masks. Rows are laid out
from lengths only, and then read and written one row group at a time.

Entry points: `RowLayout`, `lay_out_whole`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.formats.packed_rows import PackedRowBlock
from dataprep_assets.packing.bins import Bins, Int64

ReadRanges = Callable[[Int64, Int64], NDArray[Any]]
"""Returns the items of ranges of a spool, given their starts and lengths, one range after another."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RowLayout:
    """Rows as ranges of a spool, in row order.

    ``items``: int64, shape ``(segments,)``, the sequence of each segment. ``starts``, ``lengths``: int64, shape
    ``(segments, ranges)``; a segment consists of its ranges in order. ``offsets``: int64, shape ``(rows + 1,)``, the
    first segment of each row, with a leading 0.
    """

    items: Int64
    starts: Int64
    lengths: Int64
    offsets: Int64

    def blocks(self, rows: int, tokens: ReadRanges, mask: ReadRanges | None = None) -> Iterator[PackedRowBlock]:
        """Yield the rows with their contents read from the spool, up to ``rows`` at a time."""
        for first_row in range(0, self.offsets.size - 1, rows):
            offsets = self.offsets[first_row : first_row + rows + 1]
            segments = slice(offsets[0], offsets[-1])
            # Flatten the arrays without sorting them, because segments and their ranges are already in the order of the
            # rows.
            ranges = self.starts[segments].ravel(), self.lengths[segments].ravel()
            yield PackedRowBlock.from_segments(
                tokens(*ranges),
                self.lengths[segments].sum(axis=1),
                offsets - offsets[0],
                mask=None if mask is None else mask(*ranges),
                first=first_row,
            )


def lay_out_whole(bins: Bins, lengths: Int64) -> RowLayout:
    """Return the layout of bins of whole sequences with these ``lengths``, which are consecutive in the spool."""
    return RowLayout(
        items=bins.items,
        starts=(np.cumsum(lengths) - lengths)[bins.items, None],
        lengths=lengths[bins.items, None],
        offsets=bins.offsets,
    )
