"""First fit: each item goes to the earliest bin that has room for it; a new bin is opened if none has.

Both functions give exactly the bins of the textbook's scan over all bins. `first_fit` takes items in any order and
finds the bin in a tournament tree over the room that bins have left, in O(log bins) an item. `first_fit_decreasing`
takes items from long to short and is several times faster: the items of one length fill one bin after another, so the
work is per bin and length, not per item.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

import numpy as np

from dataprep_assets.packing.bins import Int64
from dataprep_assets.packing.runs import equal_runs


def first_fit(lengths: Int64, capacity: int) -> Int64:
    """The bin of each item, int64, shape ``(items,)``; ``lengths`` are 1 to ``capacity``, in the order of placement."""
    # At most one bin is half empty or more: two such bins would have shared the first.
    most_bins = -(-2 * int(lengths.sum()) // capacity)
    leaves = 1
    while leaves < min(most_bins, lengths.size):
        leaves *= 2
    # Node i has children 2i and 2i + 1 and holds the most room that any bin below it has.
    room = [capacity] * (2 * leaves)
    found = []
    for length in lengths.tolist():
        node = 1
        while node < leaves:
            # Left first, where the earlier bins are. There are leaves for all bins that may be needed, so one has room.
            node += node
            if room[node] < length:
                node += 1
        found.append(node)
        before = room[node]
        most = room[node] = before - length
        while node > 1:
            sibling = room[node ^ 1]
            if sibling >= before:
                break  # the parent's value came from the sibling, and so did all above
            node >>= 1
            if sibling > most:
                most = sibling
            room[node] = most
    return np.array(found, np.int64) - leaves


def first_fit_decreasing(lengths: Int64, capacity: int) -> Int64:
    """The bin of each item, int64, shape ``(items,)``; ``lengths`` are 1 to ``capacity`` and never increase."""
    found, takes = _fill_by_length(equal_runs(lengths), capacity)
    return np.repeat(np.array(found, np.int64), takes)


def _fill_by_length(runs: Iterable[tuple[int, int]], capacity: int) -> tuple[list[int], list[int]]:
    """The bins in the order in which they get items, and the number of equal items that each gets at a time.

    A bin too full for one length may have room for a shorter one. It is kept aside by its room, and returns to the heap
    of fitting bins when the lengths have become as short.
    """
    room: list[int] = []  # tokens left in each bin
    fitting: list[int] = []  # a heap of the bins with room for the length at hand
    waiting: dict[int, list[int]] = {}  # the others that are not full, by the room that they have left
    rooms: list[int] = []  # a heap of the keys of `waiting`, negative for the largest first
    found, takes = [], []
    for length, count in runs:
        while rooms and -rooms[0] >= length:
            for bin_ in waiting.pop(-heappop(rooms)):
                heappush(fitting, bin_)
        while count:
            if not fitting:
                # An empty heap stays one with a single bin.
                fitting.append(len(room))
                room.append(capacity)
            bin_ = fitting[0]
            take = min(room[bin_] // length, count)
            found.append(bin_)
            takes.append(take)
            count -= take
            left = room[bin_] = room[bin_] - take * length
            if left < length:
                heappop(fitting)
                if left in waiting:
                    waiting[left].append(bin_)
                elif left:  # a full bin never returns
                    waiting[left] = [bin_]
                    heappush(rooms, -left)
    return found, takes
