"""The number of characters by which two texts differ.

Texts are aligned by lines, and the lines that differ by words. First, pieces that occur once in both texts are aligned,
which takes nearly linear time. The parts between two such pieces are aligned by a longest common subsequence. A part
that is too long for this counts as changed as a whole.

Entry point: `count_changed_characters`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, takewhile

from dataprep_assets.subsequence import find_longest_rising_pairs

_WORD = re.compile(r"\w+\s*|[^\w\s]\s*|\s+")
_MAX_CELLS = 1 << 26
"""Maximum product of the lengths of two sequences that are aligned exactly; they take 8 MiB and 20 ms."""
Pieces = Sequence[str]
Positions = list[tuple[int, int]]
"""Positions of equal pieces in two sequences, in order."""


def count_changed_characters(source: str, rewritten: str) -> int:
    """Return how many characters were replaced, removed or added.

    A place counts as the longer of its two texts: a removed word as its length, and a replaced one as the longer of
    the two words.
    """
    if source == rewritten:
        return 0
    return sum(
        max(map(len, _trim("".join(words), "".join(other_words))))
        for lines, other_lines in _find_gaps(source.splitlines(keepends=True), rewritten.splitlines(keepends=True))
        for words, other_words in _find_gaps(_WORD.findall("".join(lines)), _WORD.findall("".join(other_lines)))
    )


def _find_gaps(source: Pieces, rewritten: Pieces) -> Iterator[tuple[Pieces, Pieces]]:
    """Yield the parts of two sequences that differ."""
    for part, other_part in _split(source, rewritten, _align_unique):
        yield from _split(part, other_part, _align_all)


def _split(
    source: Pieces, rewritten: Pieces, align: Callable[[Pieces, Pieces], Positions]
) -> Iterator[tuple[Pieces, Pieces]]:
    """Yield the parts between aligned pieces, without pieces that are equal at the ends of a part."""
    aligned = [(-1, -1), *align(source, rewritten), (len(source), len(rewritten))]
    for (number, other_number), (stop, other_stop) in pairwise(aligned):
        start, other_start = number + 1, other_number + 1
        while start < stop and other_start < other_stop and source[start] == rewritten[other_start]:
            start, other_start = start + 1, other_start + 1
        while start < stop and other_start < other_stop and source[stop - 1] == rewritten[other_stop - 1]:
            stop, other_stop = stop - 1, other_stop - 1
        if start < stop or other_start < other_stop:
            yield source[start:stop], rewritten[other_start:other_stop]


def _align_unique(source: Pieces, rewritten: Pieces) -> Positions:
    """Return the longest series of pieces that occur once in both sequences."""
    counts, other_counts = Counter(source), Counter(rewritten)
    positions = {piece: number for number, piece in enumerate(rewritten) if other_counts[piece] == 1}
    pairs = [
        (number, positions[piece]) for number, piece in enumerate(source) if counts[piece] == 1 and piece in positions
    ]
    return find_longest_rising_pairs(pairs)


def _align_all(source: Pieces, rewritten: Pieces) -> Positions:
    """Return a longest common subsequence; nothing if the sequences are too long."""
    if len(source) * len(rewritten) > _MAX_CELLS:
        return []
    # Compute each row of the table of lengths as the bits of an integer (Hyyrö, 2004): a bit is 0 where the length
    # increases.
    masks: dict[str, int] = {}
    for number, piece in enumerate(rewritten):
        masks[piece] = masks.get(piece, 0) | 1 << number
    row = full = (1 << len(rewritten)) - 1
    rows = []
    for piece in source:
        common = row & masks.get(piece, 0)
        row = ((row + common) | (row - common)) & full
        rows.append(row)
    series, stop, other_stop = [], len(source), len(rewritten)
    while stop and other_stop:
        if rows[stop - 1] >> (other_stop - 1) & 1:
            other_stop -= 1
        elif source[stop - 1] == rewritten[other_stop - 1]:
            stop, other_stop = stop - 1, other_stop - 1
            series.append((stop, other_stop))
        else:
            stop -= 1
    return series[::-1]


def _trim(text: str, other_text: str) -> tuple[str, str]:
    """Return two texts without their common beginning and end."""
    start = _count_equal(text, other_text)
    text, other_text = text[start:], other_text[start:]
    stop = _count_equal(text[::-1], other_text[::-1])
    return text[: len(text) - stop], other_text[: len(other_text) - stop]


def _count_equal(text: str, other_text: str) -> int:
    """Return the number of equal characters at the beginning of two texts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other_text, strict=False)))
