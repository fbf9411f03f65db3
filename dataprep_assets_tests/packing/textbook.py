"""Packing as in textbooks: a scan over all bins for each item, which is slow but obviously right."""

from collections.abc import Callable, Sequence


def next_fit(items: Sequence[int], lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Put each item into the last bin or a new one."""
    return _packed(items, lengths, capacity, lambda rooms, length: [len(rooms) - 1] if rooms[-1] >= length else [])


def first_fit(items: Sequence[int], lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Put each item into the earliest bin with enough space."""
    return _packed(
        items, lengths, capacity, lambda rooms, length: [b for b, room in enumerate(rooms) if room >= length]
    )


def best_fit(items: Sequence[int], lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Put each item into the bin with the least space that is enough; of several, into the earliest."""
    return _packed(
        items,
        lengths,
        capacity,
        lambda rooms, length: sorted((b for b, room in enumerate(rooms) if room >= length), key=lambda b: rooms[b]),
    )


def sort_decreasing(lengths: Sequence[int]) -> list[int]:
    """Return indexes from long to short; equal lengths stay in order."""
    return sorted(range(len(lengths)), key=lambda i: -lengths[i])


def _packed(
    items: Sequence[int], lengths: Sequence[int], capacity: int, choices: Callable[[list[int], int], list[int]]
) -> list[list[int]]:
    bins: list[list[int]] = []
    rooms: list[int] = []
    for item in items:
        length = lengths[item]
        found = choices(rooms, length)[:1] if rooms else []
        if not found:
            bins.append([])
            rooms.append(capacity)
            found = [len(bins) - 1]
        bins[found[0]].append(item)
        rooms[found[0]] -= length
    return bins
