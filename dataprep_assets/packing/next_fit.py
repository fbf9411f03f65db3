"""Next fit: items stay in their order, and only the last bin is open.

`assign_next_fit` never splits an item and leaves the end of a bin empty if the next item does not fit.
`concat_then_split` fills every bin except the last, and splits items to do so. Both take linear time.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.packing.bins import Int64, Segments, check_capacity, check_lengths


def assign_next_fit(lengths: Int64, capacity: int) -> Int64:
    """Return each item's bin, int64, shape ``(items,)``; ``lengths`` (1 to ``capacity``) are in placement order."""
    ends = np.cumsum(lengths)
    # If a bin starts with item i, `following[i]` is the first item of the next bin.
    following = np.searchsorted(ends, ends - lengths + capacity, side="right").tolist()
    opens = np.zeros(lengths.size, np.int64)
    # Step from bin to bin instead of from item to item, because a Python loop over all items would be slow.
    item = following[0] if following else 0
    while item < lengths.size:
        opens[item] = 1
        item = following[item]
    return np.cumsum(opens)


def concat_then_split(lengths: NDArray[Any], capacity: int) -> Segments:
    """Concatenate all items in order and cut every ``capacity`` tokens.

    ``lengths``: tokens, shape ``(items,)``, at least 1 and without an upper limit. Bin ``b`` contains tokens
    ``b * capacity`` to ``(b + 1) * capacity`` of the concatenation; only the last bin may be shorter. Segments are in
    the order of the concatenation. Raises ConfigError for a length below 1 and for a capacity that is not allowed.
    """
    capacity, lengths = check_capacity(capacity), check_lengths(lengths, None)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    cuts = np.arange(capacity, total, capacity)
    ahead = np.searchsorted(ends, cuts)
    # Keep only the cuts inside an item, because a cut at the end of an item is already in `ends`.
    is_inside = ends[ahead] != cuts
    stops = np.insert(ends, ahead[is_inside], cuts[is_inside])
    starts = np.concatenate([np.zeros(1, np.int64), stops])[:-1]
    # Search with `right`, because a segment that begins where an item ends belongs to the next item.
    items = np.searchsorted(ends, starts, side="right")
    offsets = (ends - lengths)[items]
    firsts = np.searchsorted(starts, np.arange(0, total, capacity))
    return Segments(
        items=items.astype(np.int64),
        starts=starts - offsets,
        stops=stops - offsets,
        offsets=np.append(firsts, starts.size).astype(np.int64),
    )
