"""Packing algorithms by name: lengths in, bins out.

Each is an order in which items are placed, and a rule that places them:

======================  =============  ============================================================================
name                    order          an item goes to
======================  =============  ============================================================================
concatenative           given          the last bin, or a new one if it does not fit (next fit)
first_fit               given          the earliest bin with room
first_fit_shuffle       seeded         the earliest bin with room
first_fit_decreasing    long to short  the earliest bin with room
best_fit                given          the bin that it leaves with the least room, the earliest of several
best_fit_decreasing     long to short  the bin that it leaves with the least room, the earliest of several
======================  =============  ============================================================================

Bins are numbered as they are opened; items are, in each bin, as they were placed. Equal lengths are placed in the given
order. `concatenative` keeps neighbours together, `first_fit_shuffle` mixes lengths in a bin at a fill near the best,
the decreasing ones fill best and put similar lengths together. For cutting items, see `next_fit.concat_then_split`.

The bins are exactly those of the textbook's scan over all bins, which is avoided. First fit finds the bin in a
tournament tree over the room that bins have left. Its decreasing order fills one bin after another with the items of
one length. Best fit keeps bins in buckets by their room, and searches the sorted list of non-empty buckets.

Entry point: `pack`.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.packing.bins import Bins, Int64, checked_capacity, checked_lengths, group
from dataprep_assets.packing.next_fit import next_fit

Algorithm = Literal[
    "concatenative", "first_fit", "first_fit_shuffle", "first_fit_decreasing", "best_fit", "best_fit_decreasing"
]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


def pack(lengths: NDArray[Any], capacity: int, algorithm: Algorithm, *, seed: int = 0) -> Bins:
    """Put items into bins of ``capacity`` tokens by one ``algorithm`` of `ALGORITHMS`; each is in exactly one bin.

    ``lengths``: integers, shape ``(items,)``, unit tokens, 1 to ``capacity``. ``seed``: not negative, used by
    `first_fit_shuffle` alone. The same arguments give the same bins on every platform. Raises ConfigError for an
    unknown algorithm, a negative seed, a capacity that no row can have, and, with index and value, a length out of
    range.
    """
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"packing algorithm {algorithm!r}: must be one of {', '.join(ALGORITHMS)}")
    if seed < 0:
        raise ConfigError(f"packing seed {seed}: must not be negative")
    lengths = checked_lengths(lengths, checked_capacity(capacity))
    method = _METHODS[algorithm]
    order = method.order(lengths, seed)
    return group(order, method.place(lengths[order], capacity))


def _given_order(lengths: Int64, _seed: int) -> Int64:
    return np.arange(lengths.size, dtype=np.int64)


def _decreasing(lengths: Int64, _seed: int) -> Int64:
    falling = lengths.max(initial=0) - lengths
    # In the smallest dtype: NumPy's stable sort of 16-bit integers is a radix sort.
    return np.argsort(falling.astype(np.min_scalar_type(falling.max(initial=0))), kind="stable")


def _shuffled(lengths: Int64, seed: int) -> Int64:
    # NumPy guarantees the raw stream of PCG64 forever, but not the results of Generator.permutation.
    return np.argsort(np.random.PCG64(seed).random_raw(lengths.size), kind="stable")


def _first_fit(lengths: Int64, capacity: int) -> Int64:
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
                break  # the sibling has more room, so no ancestor changes
            node >>= 1
            if sibling > most:
                most = sibling
            room[node] = most
    return np.array(found, np.int64) - leaves


def _first_fit_decreasing(lengths: Int64, capacity: int) -> Int64:
    """The bin of each item, int64, shape ``(items,)``; ``lengths`` are 1 to ``capacity`` and never increase."""
    found, takes = _fill_by_length(_equal_runs(lengths), capacity)
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


def _best_fit(lengths: Int64, capacity: int) -> Int64:
    """The bin of each item, int64, shape ``(items,)``; ``lengths`` are 1 to ``capacity``, in the order of placement."""
    # The rooms of the buckets that are not empty, ascending: the first that is enough is the tightest.
    rooms: list[int] = []
    buckets: dict[int, list[int]] = {}  # room → heap of the bins that have it
    bins = 0
    found: list[int] = []
    takes: list[int] = []
    for length, count in _equal_runs(lengths):
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


def _equal_runs(lengths: Int64) -> list[tuple[int, int]]:
    """`(length, items)` of each run, in order; ``lengths`` are at least 1, shape ``(items,)``."""
    # no length is 0, so the first item begins a run, too
    firsts = np.flatnonzero(np.diff(lengths, prepend=0))
    counts = np.diff(firsts, append=lengths.size)
    return list(zip(lengths[firsts].tolist(), counts.tolist(), strict=True))


@dataclass(frozen=True)
class _Method:
    order: Callable[[Int64, int], Int64]
    place: Callable[[Int64, int], Int64]


_METHODS: dict[Algorithm, _Method] = {
    "concatenative": _Method(_given_order, next_fit),
    "first_fit": _Method(_given_order, _first_fit),
    "first_fit_shuffle": _Method(_shuffled, _first_fit),
    "first_fit_decreasing": _Method(_decreasing, _first_fit_decreasing),
    "best_fit": _Method(_given_order, _best_fit),
    "best_fit_decreasing": _Method(_decreasing, _best_fit),
}
