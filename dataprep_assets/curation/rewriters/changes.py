"""The number of characters by which two texts differ.

Lines that occur once in both texts and in the same order are equal places, and within the lines between them words are.
What lies between two equal places was changed. The time is nearly linear in the length of any texts, unlike that of the
smallest difference, so the number is an upper bound of it; for single changed places both are the same.

Entry point: `count_changed_characters`.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
Gap = tuple[str, str]
"""A part of the source text and the part of the rewritten text that replaces it."""


def count_changed_characters(source: str, rewritten: str) -> int:
    """Return how many characters were replaced, removed or added.

    A place counts as the longer of its two texts: a removed word as its length, and a replaced one as the longer of
    the two words.
    """
    if source == rewritten:
        return 0
    return sum(
        max(map(len, _trim(gap)))
        for lines in _find_gaps(source.splitlines(keepends=True), rewritten.splitlines(keepends=True))
        for gap in _find_gaps(_WORDS.findall(lines[0]), _WORDS.findall(lines[1]))
    )


def _find_gaps(source: Sequence[str], rewritten: Sequence[str]) -> Iterator[Gap]:
    """Yield the different parts of two sequences of pieces, without pieces that are equal at the ends of a part."""
    anchors = [(-1, -1), *_find_anchors(source, rewritten), (len(source), len(rewritten))]
    for (first, other_first), (last, other_last) in pairwise(anchors):
        start, other_start, stop, other_stop = first + 1, other_first + 1, last, other_last
        while start < stop and other_start < other_stop and source[start] == rewritten[other_start]:
            start, other_start = start + 1, other_start + 1
        while start < stop and other_start < other_stop and source[stop - 1] == rewritten[other_stop - 1]:
            stop, other_stop = stop - 1, other_stop - 1
        if start < stop or other_start < other_stop:
            yield "".join(source[start:stop]), "".join(rewritten[other_start:other_stop])


def _find_anchors(source: Sequence[str], rewritten: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of the longest series of pieces that are unique in both sequences, in the same order."""
    counts, other_counts = Counter(source), Counter(rewritten)
    positions = {piece: number for number, piece in enumerate(rewritten) if other_counts[piece] == 1}
    pairs = [
        (number, positions[piece]) for number, piece in enumerate(source) if counts[piece] == 1 and piece in positions
    ]
    # Find the longest increasing subsequence by patience sorting: `tops` are the smallest last positions of the series
    # of each length, `holders` the pairs with these positions, and `previous` each pair's predecessor in its series.
    tops: list[int] = []
    holders: list[int] = []
    previous: list[int] = []
    for index, (_, position) in enumerate(pairs):
        length = bisect_left(tops, position)
        previous.append(holders[length - 1] if length else -1)
        tops[length : length + 1], holders[length : length + 1] = [position], [index]
    series, index = [], holders[-1] if holders else -1
    while index >= 0:
        series.append(pairs[index])
        index = previous[index]
    return series[::-1]


def _trim(gap: Gap) -> Gap:
    """Return the two parts without their common beginning and end."""
    source, rewritten = gap
    start = _count_equal(source, rewritten)
    source, rewritten = source[start:], rewritten[start:]
    stop = _count_equal(source[::-1], rewritten[::-1])
    return source[: len(source) - stop], rewritten[: len(rewritten) - stop]


def _count_equal(text: str, other_text: str) -> int:
    """Return the number of equal characters at the beginning of two texts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other_text, strict=False)))
