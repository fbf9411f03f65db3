"""The longest rising subsequence of pairs of numbers, which aligns two sequences by the elements that they share."""

from bisect import bisect_left
from collections.abc import Sequence


def find_longest_rising_pairs(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest subsequence of the pairs, sorted by their first numbers, whose second numbers also rise."""
    # Use patience sorting: for each length, `lows` has the smallest last target of a rising subsequence of that length,
    # and `tails` has the index of the pair with this target.
    lows: list[int] = []
    tails: list[int] = []
    earlier = []
    for number, (_, target) in enumerate(pairs):
        length = bisect_left(lows, target)
        earlier.append(tails[length - 1] if length else -1)
        lows[length : length + 1], tails[length : length + 1] = [target], [number]
    chain, number = [], tails[-1] if tails else -1
    while number >= 0:
        chain.append(pairs[number])
        number = earlier[number]
    return chain[::-1]
