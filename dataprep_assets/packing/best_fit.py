"""Best fit: each item goes to the bin that it leaves with the least room; the earliest of several such bins.

Bins are kept in buckets by the room they have left, and the non-empty buckets in a sorted list, so finding the bin is a
binary search instead of a scan over all bins. The list never has more entries than the capacity. The bins are exactly
those of the textbook's scan.
"""

from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np

from dataprep_assets.packing.bins import Int64
from dataprep_assets.packing.runs import equal_runs


def best_fit(lengths: Int64, capacity: int) -> Int64:
    """The bin of each item, int64, shape ``(items,)``; ``lengths`` are 1 to ``capacity``, in the order of placement."""
    # The rooms of the buckets that are not empty, ascending: the first that is enough is the tightest.
    rooms: list[int] = []
    buckets: dict[int, list[int]] = {}  # room → heap of the bins that have it
    bins = 0
    found: list[int] = []
    takes: list[int] = []
    for length, count in equal_runs(lengths):
        while count:
            at = bisect_left(rooms, length)
            if at < len(rooms):
                room = rooms[at]
                bucket = buckets[room]
                bin_ = heappop(bucket)
                if not bucket:
                    del rooms[at]
            else:
                room, bin_ = capacity, bins
                bins += 1
            # The bin stays the tightest as long as another item of the run fits: no other bin has less room and enough.
            take = room // length
            if take > count:
                take = count
            found.append(bin_)
            takes.append(take)
            count -= take
            room -= take * length
            if room:
                bucket = buckets.setdefault(room, [])
                # The room of an empty bucket is not in the list.
                if not bucket:
                    insort(rooms, room)
                heappush(bucket, bin_)
    return np.repeat(np.array(found, np.int64), takes)
