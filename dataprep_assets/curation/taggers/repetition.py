"""Repetition within a document, as in Gopher (Rae et al. 2021, table A1): lines, paragraphs and word n-grams.

Each value is a share of the text's characters, or of its lines or paragraphs. For 2, 3 and 4 words, it is the share of
the most frequent n-gram, including blanks between words. For 5 to 10 words, it is the share of all n-grams that occur
earlier in the text, read from its beginning without overlap. A text without characters has null shares.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.planted.repetition import yield_cases
from dataprep_assets.curation.text_tagger import TextTagger

TOP, REPEATED = (2, 3, 4), (5, 6, 7, 8, 9, 10)
_LINES = re.compile(r"\n+")
Grams = NDArray[np.int64]


def count_repeated(parts: Sequence[str]) -> tuple[int, int]:
    """Return the number of parts that occur earlier in the sequence, and their characters."""
    count = characters = 0
    for part, times in Counter(parts).items():
        if times > 1:
            count, characters = count + times - 1, characters + (times - 1) * len(part)
    return count, characters


def measure_text(text: str) -> list[float | None]:
    """Return the values of the columns for one text, in column order."""
    if not text:
        return [None] * len(TAGGER.columns)
    shares: list[float | None] = []
    for parts in (_LINES.split(text), text.split("\n\n")):
        count, characters = count_repeated(parts)
        shares += [count / len(parts), characters / len(text)]
    words = text.split()
    return shares + [characters / len(text) for characters in _count_ngram_characters(words)]


def _count_ngram_characters(words: Sequence[str]) -> list[int]:
    """Return the characters of the most frequent 2-, 3- and 4-gram, then of the repeated 5- to 10-grams."""
    number: dict[str, int] = {}
    ids = np.fromiter((number.setdefault(word, len(number)) for word in words), np.int64, len(words))
    # Compute each word's position in the joined words, because the number of characters in consecutive words is the
    # difference of two positions.
    starts = np.concatenate([[0], np.cumsum(np.fromiter(map(len, words), np.int64, len(words)))])
    grams, lengths, all_differ = ids, [], False
    for n in range(2, REPEATED[-1] + 1):
        if len(words) < n:
            lengths += [0] * (n in TOP or n in REPEATED)
            continue
        if not all_differ:
            grams, firsts, counts = _extend_grams(grams, ids[n - 1 :], len(number))
            # If all n-grams differ, all longer n-grams also differ and need no counting.
            all_differ = len(counts) == len(grams)
        if n in TOP:
            # Break ties by position, because equally frequent n-grams may have different lengths.
            index, frequency = (0, 1) if all_differ else _find_most_frequent(firsts, counts)
            lengths.append(int(starts[index + n] - starts[index] + n - 1) * frequency)
        elif n in REPEATED:
            lengths.append(0 if all_differ else _count_repeated_characters(grams, starts, n))
    return lengths


def _extend_grams(grams: Grams, next_grams: Grams, words: int) -> tuple[Grams, Grams, Grams]:
    """Return the n-grams that are one word longer, as numbers per position, with their first positions and counts."""
    # Combine two numbers into one. Both are below the number of words in the text, so the result is far below 2**63.
    pairs = grams[: len(next_grams)] * words + next_grams
    _, firsts, numbers, counts = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
    return numbers, firsts, counts


def _find_most_frequent(firsts: Grams, counts: Grams) -> tuple[int, int]:
    frequency = int(counts.max())
    return int(firsts[counts == frequency].min()), frequency


def _count_repeated_characters(grams: Grams, starts: Grams, n: int) -> int:
    earlier_grams: set[int] = set()
    index = characters = 0
    count, numbers = len(grams), grams.tolist()
    while index < count:
        if numbers[index] in earlier_grams:
            # Skip the whole repeated n-gram, so that n-grams that overlap it do not count.
            characters += int(starts[index + n] - starts[index])
            index += n
        else:
            earlier_grams.add(numbers[index])
            index += 1
    return characters


TAGGER = TextTagger.with_measure(
    columns={
        "repeated_lines": "number",
        "repeated_line_characters": "number",
        "repeated_paragraphs": "number",
        "repeated_paragraph_characters": "number",
        **{f"top_{n}gram": "number" for n in TOP},
        **{f"repeated_{n}grams": "number" for n in REPEATED},
    },
    measure=measure_text,
    version=lambda: "1",
    planted=yield_cases,
)
