"""Packing algorithms by name: lengths in, bins out.

Each algorithm has an order in which items are placed, and a rule that chooses the bin of each item:

======================  =============  ============================================================================
name                    order          bin of an item
======================  =============  ============================================================================
concatenative           given          the last bin, or a new one if it does not fit (next fit)
first_fit               given          the earliest bin with room
first_fit_shuffle       seeded         the earliest bin with room
first_fit_decreasing    long to short  the earliest bin with room
best_fit                given          the fullest bin with room; of several, the earliest
best_fit_decreasing     long to short  the fullest bin with room; of several, the earliest
======================  =============  ============================================================================

Bins are numbered in the order in which they are opened, and the items of a bin are in the order of placement. Items of
equal length are placed in the given order. `concatenative` keeps neighbors together. `first_fit_shuffle` mixes lengths
within a bin and fills nearly as well as the best algorithms. The decreasing algorithms fill best and put similar
lengths together. To split items, use `next_fit.concat_then_split`.

The bins are exactly the bins of the textbook algorithm, which scans all bins. First fit instead finds the bin in a
tournament tree over the remaining capacity of the bins. First fit decreasing fills one bin after another with the items
of one length. Best fit keeps bins in buckets by remaining capacity, and searches the sorted list of non-empty ones.

Entry point: `pack_items`.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.packing.bins import Bins, Int64, check_capacity, check_lengths, group_by_bin
from dataprep_assets.packing.next_fit import assign_next_fit

Algorithm = Literal[
    "concatenative", "first_fit", "first_fit_shuffle", "first_fit_decreasing", "best_fit", "best_fit_decreasing"
]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


def pack_items(lengths: NDArray[Any], capacity: int, algorithm: Algorithm, *, seed: int = 0) -> Bins:
    """Put items into bins of ``capacity`` tokens by one ``algorithm`` of `ALGORITHMS`; each is in exactly one bin.

    ``lengths``: integers, shape ``(items,)``, in tokens, 1 to ``capacity``. ``seed``: at least 0, used only by
    `first_fit_shuffle`. The same arguments give the same bins on every platform. Raises ConfigError for an unknown
    algorithm, a negative seed, a capacity that is not allowed, and a length out of range (with its index and value).
    """
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"packing algorithm {algorithm!r}: must be one of {', '.join(ALGORITHMS)}")
    if seed < 0:
        raise ConfigError(f"packing seed {seed}: must be at least 0")
    lengths = check_lengths(lengths, check_capacity(capacity))
    method = _METHODS[algorithm]
    order = method.order(lengths, seed)
    return group_by_bin(order, method.place(lengths[order], capacity))


def _keep_order(lengths: Int64, _seed: int) -> Int64:
    return np.arange(lengths.size, dtype=np.int64)


def _sort_decreasing(lengths: Int64, _seed: int) -> Int64:
    falling = lengths.max(initial=0) - lengths
    # Use the smallest dtype, because NumPy's stable sort uses the fast radix sort only for integers of at most 16 bits.
    return np.argsort(falling.astype(np.min_scalar_type(falling.max(initial=0))), kind="stable")


def _shuffle(lengths: Int64, seed: int) -> Int64:
    # Sort raw numbers from PCG64 instead of calling `Generator.permutation`, because NumPy guarantees that the raw
    # numbers of a seed never change, but does not guarantee this for permutations.
    return np.argsort(np.random.PCG64(seed).random_raw(lengths.size), kind="stable")


def _pack_first_fit(lengths: Int64, capacity: int) -> Int64:
    """Return each item's bin, int64, shape ``(items,)``; ``lengths`` (1 to ``capacity``) are in placement order."""
    # First fit leaves at most one bin that is half full or less, because the items of a second such bin would have fit
    # into the first. So the number of bins is at most twice the total length divided by the capacity, rounded up.
    max_bins = -(-2 * int(lengths.sum()) // capacity)
    leaves = 1
    while leaves < min(max_bins, lengths.size):
        leaves *= 2
    # `room` is a binary tree in a list: node i has the children 2i and 2i + 1, and the leaves are the bins. The value
    # of a node is the largest remaining capacity of all bins below the node.
    room = [capacity] * (2 * leaves)
    nodes = []
    for length in lengths.tolist():
        node = 1
        while node < leaves:
            # Descend to the left child if it has room, because first fit needs the first bin with room. Otherwise the
            # right child has room, because the parent's value is the larger of its children's values.
            node += node
            if room[node] < length:
                node += 1
        nodes.append(node)
        old_room = room[node]
        largest_room = room[node] = old_room - length
        while node > 1:
            sibling = room[node ^ 1]
            if sibling >= old_room:
                break  # the sibling has at least as much room as this node had, so no ancestor changes
            node >>= 1
            if sibling > largest_room:
                largest_room = sibling
            room[node] = largest_room
    return np.array(nodes, np.int64) - leaves


def _pack_first_fit_decreasing(lengths: Int64, capacity: int) -> Int64:
    """Return each item's bin, int64, shape ``(items,)``; ``lengths`` (1 to ``capacity``) never increase."""
    bins, takes = _fill_by_length(_find_equal_runs(lengths), capacity)
    return np.repeat(np.array(bins, np.int64), takes)


def _fill_by_length(runs: Iterable[tuple[int, int]], capacity: int) -> tuple[list[int], list[int]]:
    """Return the bins in the order in which they get items, and the number of equal items that each gets at a time.

    A bin that is too full for one length may have room for a shorter one. Such a bin is kept under its remaining
    capacity, and returns to the heap of fitting bins when the lengths are short enough.
    """
    room: list[int] = []  # number of tokens that still fit into each bin
    fitting: list[int] = []  # a heap of the bins with room for the current length
    waiting: dict[int, list[int]] = {}  # the other bins that are not full, keyed by their remaining capacity
    rooms: list[int] = []  # a heap of the keys of `waiting`, negated so that the largest comes first
    bins, takes = [], []
    for length, count in runs:
        while rooms and -rooms[0] >= length:
            for bin_ in waiting.pop(-heappop(rooms)):
                heappush(fitting, bin_)
        while count:
            if not fitting:
                # Append the bin without `heappush`, because a list with a single item is a valid heap.
                fitting.append(len(room))
                room.append(capacity)
            bin_ = fitting[0]
            take = min(room[bin_] // length, count)
            bins.append(bin_)
            takes.append(take)
            count -= take
            remaining = room[bin_] = room[bin_] - take * length
            if remaining < length:
                heappop(fitting)
                if remaining in waiting:
                    waiting[remaining].append(bin_)
                elif remaining:  # a full bin is never used again
                    waiting[remaining] = [bin_]
                    heappush(rooms, -remaining)
    return bins, takes


def _pack_best_fit(lengths: Int64, capacity: int) -> Int64:
    """Return each item's bin, int64, shape ``(items,)``; ``lengths`` (1 to ``capacity``) are in placement order."""
    # `rooms` lists the remaining capacities of the non-empty buckets in ascending order, so that a binary search finds
    # the tightest fit.
    rooms: list[int] = []
    buckets: dict[int, list[int]] = {}  # remaining capacity → heap of the bins with this capacity
    bin_count = 0
    bins: list[int] = []
    takes: list[int] = []
    for length, count in _find_equal_runs(lengths):
        while count:
            index = bisect_left(rooms, length)
            if index < len(rooms):
                room = rooms[index]
                bucket = buckets[room]
                bin_ = heappop(bucket)
                if not bucket:
                    del rooms[index]
            else:
                room, bin_ = capacity, bin_count
                bin_count += 1
            # Place as many of the equal items as possible into this bin, because after each placement it is still the
            # tightest fit for the next item.
            take = room // length
            if take > count:
                take = count
            bins.append(bin_)
            takes.append(take)
            count -= take
            room -= take * length
            if room:
                bucket = buckets.setdefault(room, [])
                # `rooms` lists only non-empty buckets, so add the room when its bucket gets its first bin.
                if not bucket:
                    insort(rooms, room)
                heappush(bucket, bin_)
    return np.repeat(np.array(bins, np.int64), takes)


def _find_equal_runs(lengths: Int64) -> list[tuple[int, int]]:
    """Return `(length, items)` of each run, in order; ``lengths`` are at least 1, shape ``(items,)``."""
    # Prepend 0, which differs from every length, so that the first item also begins a run.
    firsts = np.flatnonzero(np.diff(lengths, prepend=0))
    counts = np.diff(firsts, append=lengths.size)
    return list(zip(lengths[firsts].tolist(), counts.tolist(), strict=True))


@dataclass(frozen=True)
class _Method:
    """An algorithm: the order in which items are placed, and the choice of a bin for each."""

    order: Callable[[Int64, int], Int64]
    place: Callable[[Int64, int], Int64]


_METHODS: dict[Algorithm, _Method] = {
    "concatenative": _Method(_keep_order, assign_next_fit),
    "first_fit": _Method(_keep_order, _pack_first_fit),
    "first_fit_shuffle": _Method(_shuffle, _pack_first_fit),
    "first_fit_decreasing": _Method(_sort_decreasing, _pack_first_fit_decreasing),
    "best_fit": _Method(_keep_order, _pack_best_fit),
    "best_fit_decreasing": _Method(_sort_decreasing, _pack_best_fit),
}
