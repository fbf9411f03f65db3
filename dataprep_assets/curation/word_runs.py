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
from dataprep_assets.curation.word_hashes import hash_pieces, hash_words
from dataprep_assets.tokenization.document_ids import mix_bits

WORD = 6
"""Weight of a word, in a unit in which all weights are integers."""
_LETTER, _ALPHABETIC_LETTER = 4, 2
_FIRST_KANA = 0x3040
_BASE = 0x9E3779B97F4A7C15
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
        weights = np.where(words.letters >= 0xE3, _LETTER, _ALPHABETIC_LETTER)
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
        if not len(starts):
            return np.empty(0, np.uint64)
        inverse = _compute_powers(len(self.hashes))[1]
        return mix_bits((self._sums[stops] - self._sums[starts]) * inverse[starts])

    def find_runs_of_weight(self, weight: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the start and stop of the shortest run of this weight from each word on; runs do not cross texts."""
        words = len(self.hashes)
        if self.weights is None:
            stops = np.arange(words) + count_words(weight)
        else:
            weights_before = self.weight_before
            stops = np.searchsorted(weights_before, weights_before[:-1] + weight)
        starts = np.flatnonzero(stops <= np.repeat(self.ends, np.diff(self.ends, prepend=0)))
        return starts, stops[starts]

    def find_known_runs(self, weight: int, known_hashes: "KnownHashes") -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Return the starts and hashes of the runs of this weight whose hashes are known."""
        if self.weights is not None:
            starts, stops = self.find_runs_of_weight(weight)
            hashes = self.hash_runs(starts, stops)
            indices = known_hashes.find_candidates(hashes)
            return starts[indices], hashes[indices]
        # This code returns the same runs as `find_runs_of_weight` with `hash_runs`. It is faster, because it checks
        # only the few known runs for crossing the end of a text.
        length, words = count_words(weight), len(self.hashes)
        if words < length:
            return np.empty(0, np.int64), np.empty(0, np.uint64)
        count = words - length + 1
        hashes = mix_bits((self._sums[length:] - self._sums[:count]) * _compute_powers(words)[1][:count])
        starts = known_hashes.find_candidates(hashes)
        starts = starts[starts + length <= self.ends[self.find_texts(starts)]]
        return starts, hashes[starts]

    def find_texts(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the text of each word position."""
        return np.searchsorted(self.ends, positions, side="right")


class KnownHashes:
    """A set of hashes, with a table of their lowest bits that excludes most other hashes without a search."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        """Store hashes, which must be in increasing order."""
        self._hashes = hashes
        self._is_present = np.zeros(1 << max(16, min(27, len(hashes).bit_length() + 4)), np.bool_)
        self._mask = np.uint64(len(self._is_present) - 1)
        self._is_present[hashes & self._mask] = True

    def find_candidates(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the positions of the hashes that are known."""
        candidates = np.flatnonzero(self._is_present[hashes & self._mask])
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
