"""Hashes of runs of words, for all texts at once. From each word on, the shortest run of a given weight is hashed.

A word weighs 1. A letter of a script without spaces weighs less, because several letters form a word. It weighs two
thirds in Chinese and Japanese, and one third in Thai, Lao, Burmese and Khmer. Runs of a weight thus have similar
content in all scripts.

The hash of a run is a sum of its words' hashes times powers of an odd number, modulo 2^64. All sums of a text are
differences of one running sum, so the cost does not depend on the length of runs.

Entry points: `hash_texts`, `hash_split_texts`, `WordRuns`, `KnownHashes`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.words import has_unspaced, is_unspaced
from dataprep_assets.curation.text_arrays.word_hashes import hash_pieces, hash_words

WORD = 6
"""Weight of a word, in a unit in which all weights are integers."""
_LETTER, _ALPHABETIC_LETTER = 4, 2
_FIRST_KANA = 0x3040
_FIRST_KANA_BYTE = 0xE3
"""First byte of kana and of all later letters of these scripts in UTF-8."""
_BASE = 0x9E3779B97F4A7C15
_HALF = np.uint64(32)
_BLOCK_WORDS = 1 << 15
"""Words whose runs are searched for at once, so that the arrays fit in the processor's cache."""
_CACHED_POWERS = 1 << 20
"""Number of cached powers: 8 MB for the powers, and 8 MB for their inverses."""


def count_words(weight: int) -> int:
    """Return the number of words for a weight, rounded up."""
    return -(-weight // WORD)


def weigh_word(word: str) -> int:
    """Return the weight of a word."""
    if not is_unspaced(word[0]):
        return WORD
    # In scripts from kana (U+3040) on, a letter is a syllable or a word. In Thai, Lao, Burmese and Khmer, a letter is a
    # single sound, so it weighs less.
    return _LETTER if ord(word[0]) >= _FIRST_KANA else _ALPHABETIC_LETTER


def hash_texts(texts: Sequence[str]) -> "WordRuns":
    """Return the runs of the words of texts."""
    words = hash_words(texts, signs=False)
    weights = None
    if words.letters.any():
        weights = np.where(words.letters >= _FIRST_KANA_BYTE, _LETTER, _ALPHABETIC_LETTER)
        weights[words.letters == 0] = WORD
    return WordRuns(np.cumsum(words.counts), words.hashes, weights)


def hash_split_texts(texts: Sequence[Sequence[str]]) -> "WordRuns":
    """Return the runs of texts that are given as words."""
    counts = np.fromiter(map(len, texts), np.int64, len(texts))
    ends, weights = np.cumsum(counts), None
    # To save time, check each text as a whole first, because most texts have no letter of a script without spaces.
    for words, end in zip(texts, ends.tolist(), strict=True):
        if has_unspaced(" ".join(words)):
            weights = np.full(int(counts.sum()), WORD, np.int64) if weights is None else weights
            weights[end - len(words) : end] = list(map(weigh_word, words))
    return WordRuns(ends, hash_pieces([word.encode() for word in chain.from_iterable(texts)], None), weights)


def join_ranges(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all numbers of the ranges from `starts` to `stops`, exclusive, one range after the other."""
    sizes = stops - starts
    numbers: NDArray[np.int64] = np.arange(int(sizes.sum())) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    return numbers


@dataclass(frozen=True, eq=False)
class WordRuns:
    """The words of texts, one text after the other, and the hashes of their runs.

    Attributes:
        ends: End of each text: ``(texts,)``.
        hashes: Hash of each word: ``(words,)``, uint64.
        weights: Weight of each word: ``(words,)``; None if each weighs `WORD`.
    """

    ends: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    weights: NDArray[np.int64] | None

    @cached_property
    def _sums(self) -> NDArray[np.uint64]:
        sums = np.zeros(len(self.hashes) + 1, np.uint64)
        np.cumsum(self.hashes * _compute_powers(len(self.hashes))[0], out=sums[1:])
        return sums

    @cached_property
    def weight_before(self) -> NDArray[np.int64]:
        """The total weight before each word, and of all words: ``(words + 1,)``."""
        if self.weights is None:
            return np.arange(len(self.hashes) + 1) * WORD
        return np.concatenate([[0], np.cumsum(self.weights)])

    def hash_runs(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the hashes of the runs from `starts` to `stops`, exclusive."""
        hashes: NDArray[np.uint64] = self._sums[stops] - self._sums[starts]
        hashes *= _compute_powers(len(self.hashes))[1][starts]
        return hashes

    def find_runs_of_weight(self, weight: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the start and stop of the shortest run of this weight from each word on; runs do not cross texts."""
        return self._find_runs(np.arange(len(self.hashes)), weight)

    def _find_runs(self, starts: NDArray[np.int64], weight: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the start and stop of the shortest run of this weight from each of these words on."""
        if self.weights is None:
            stops = starts + count_words(weight)
        else:
            stops = np.searchsorted(self.weight_before, self.weight_before[starts] + weight)
        is_run = stops <= np.repeat(self.ends, np.diff(self.ends, prepend=0))[starts]
        return starts[is_run], stops[is_run]

    def find_known_runs(self, weight: int, known_hashes: "KnownHashes") -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Return the starts and hashes of the runs of this weight whose hashes are known, in increasing order."""
        # This code returns the same runs as `find_runs_of_weight` with `hash_runs`. It is faster, because it checks
        # only the few known runs for crossing the end of a text, and because its arrays fit in the processor's cache.
        length, words = count_words(weight), len(self.hashes)
        inverse = _compute_powers(words)[1]
        parts = [(np.empty(0, np.int64), np.empty(0, np.uint64))]
        for begin in range(0, words - length + 1, _BLOCK_WORDS):
            end = min(begin + _BLOCK_WORDS, words - length + 1)
            hashes = self._sums[begin + length : end + length] - self._sums[begin:end]
            hashes *= inverse[begin:end]
            indices = known_hashes.find_candidates(hashes)
            parts.append((indices + begin, hashes[indices]))
        starts, hashes = map(np.concatenate, zip(*parts, strict=True))
        texts = self.find_texts(starts)
        is_run = starts + length <= self.ends[texts]
        if self.weights is None:
            return starts[is_run], hashes[is_run]
        # In texts with lighter words, runs differ in length.
        is_weighted = np.zeros(len(self.ends), np.bool_)
        is_weighted[self.find_texts(np.flatnonzero(self.weights < WORD))] = True
        is_run &= ~is_weighted[texts]
        weighted_words = np.flatnonzero(np.repeat(is_weighted, np.diff(self.ends, prepend=0)))
        weighted_starts, stops = self._find_runs(weighted_words, weight)
        weighted_hashes = self.hash_runs(weighted_starts, stops)
        indices = known_hashes.find_candidates(weighted_hashes)
        starts = np.concatenate([starts[is_run], weighted_starts[indices]])
        order = np.argsort(starts)
        return starts[order], np.concatenate([hashes[is_run], weighted_hashes[indices]])[order]

    def find_texts(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the text of each word position."""
        return np.searchsorted(self.ends, positions, side="right")


class KnownHashes:
    """A set of hashes, with a table of some of their bits that excludes most other hashes without a search."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        """Store hashes, which must be in increasing order."""
        self._hashes = hashes
        self._is_present = np.zeros(1 << max(16, min(27, len(hashes).bit_length() + 4)), np.bool_)
        self._mask = np.uint64(len(self._is_present) - 1)
        self._is_present[hashes & self._mask] = True
        self._is_present[hashes >> _HALF & self._mask] = True

    def find_candidates(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the positions of the hashes that are known."""
        candidates: NDArray[np.int64] = np.flatnonzero(np.take(self._is_present, (hashes & self._mask).view(np.int64)))
        # A second look at the table takes less time than a search, which only few other hashes now need.
        candidates = candidates[self._is_present[hashes[candidates] >> _HALF & self._mask]]
        if not len(self._hashes):
            return candidates[:0]
        indices = np.minimum(np.searchsorted(self._hashes, hashes[candidates]), len(self._hashes) - 1)
        matches: NDArray[np.int64] = candidates[self._hashes[indices] == hashes[candidates]]
        return matches


def _compute_powers(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the first powers of the base, and their inverses modulo 2^64."""
    if count > _CACHED_POWERS:
        return _compute_powers_up_to(count)
    base, inverse = _compute_first_powers()
    return base[:count], inverse[:count]


@lru_cache(maxsize=1)
def _compute_first_powers() -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    return _compute_powers_up_to(_CACHED_POWERS)


def _compute_powers_up_to(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    all_powers = []
    for base in (_BASE, pow(_BASE, -1, 1 << 64)):
        powers = np.full(count, base, np.uint64)
        powers[:1] = 1
        all_powers.append(np.cumprod(powers, dtype=np.uint64))
    return all_powers[0], all_powers[1]
