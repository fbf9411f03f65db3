"""Hashes of the shingles of texts. A shingle is a run of words.

Entry point: `ShingleHashes`.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from dataprep_assets.curation.duplicates.kinds import Normalization
from dataprep_assets.curation.duplicates.words import split_compared_words
from dataprep_assets.curation.text_arrays.split_texts import Flags, Numbers
from dataprep_assets.curation.text_arrays.word_hashes import Hashes, hash_pieces, hash_words
from dataprep_assets.tokenization.document_ids import mix_bits

_ODD = np.uint64(0x9E3779B97F4A7C15)
_BLOCK_WINDOWS = 1 << 14


class ShingleHashes:
    """Hashes of the shingles of texts: every run of `words` words, or all words of a shorter text."""

    def __init__(self, words: int, normalization: Normalization, key: bytes | None = None) -> None:
        """Store the settings.

        Args:
            words: Words per shingle.
            normalization: Normalization before texts are compared.
            key: The secret of a keyed hash, because unkeyed hashes can be guessed.
        """
        self._words, self._normalization, self._key = words, normalization, key

    def hash_texts(self, texts: Sequence[str]) -> tuple[Hashes, Numbers]:
        """Return the shingle sets of texts.

        Returns:
            All hashes, uint64, sorted and unique per text; and the end of each text's hashes: ``(texts,)``.
        """
        if self._normalization == "words":
            hashes, counts, _ = hash_words(texts, signs=True, key=self._key)
        else:
            pieces = [split_compared_words(text, self._normalization) for text in texts]
            counts = np.fromiter(map(len, pieces), np.int64, len(pieces))
            hashes = hash_pieces([piece.encode() for piece in chain.from_iterable(pieces)], self._key)
        return self._combine(hashes, counts)

    def _combine(self, words: Hashes, counts: Numbers) -> tuple[Hashes, Numbers]:
        """Return the shingle sets of texts, given the hash of each word and the number of words of each text."""
        size, ends = self._words, np.cumsum(counts)
        # Combine the words of each window into a polynomial hash. Each step adds one word to every window of a block,
        # so that NumPy does the work in the processor's cache.
        hashes = words.copy()
        for begin in range(0, len(words) - size + 1, _BLOCK_WINDOWS):
            block = hashes[begin : min(begin + _BLOCK_WINDOWS, len(words) - size + 1)]
            for offset in range(begin + 1, begin + size):
                block *= _ODD
                block += words[offset : offset + len(block)]
            block[:] = mix_bits(block)
        # The last words of a text begin no window.
        begins_window = np.ones(len(words), np.bool_)
        for back in range(1, size):
            begins_window[(ends - back)[counts >= back]] = False
        # Give a text with fewer words than a shingle a single shingle of all its words, so that short texts can be
        # compared.
        for count in range(1, size):
            firsts = (ends - count)[counts == count]
            begins_window[firsts], hashes[firsts] = True, 0
            for offset in range(count):
                hashes[firsts] = hashes[firsts] * _ODD + words[firsts + offset]
            hashes[firsts] = mix_bits(hashes[firsts])
        windows = np.where(counts == 0, 0, np.maximum(counts - size + 1, 1))
        return _sort_sets(hashes[begins_window], np.cumsum(windows))


def _sort_sets(hashes: Hashes, ends: Numbers) -> tuple[Hashes, Numbers]:
    """Sort the hashes of each text in place and remove repetitions."""
    start = 0
    for end in ends.tolist():
        hashes[start:end].sort()
        start = end
    is_first: Flags = np.ones(len(hashes), np.bool_)
    is_first[1:] = hashes[1:] != hashes[:-1]
    # Always keep each text's first shingle, because it may equal the last shingle of the previous text. Exclude
    # positions beyond the end, because the last texts may have no shingles.
    begins = ends[:-1][ends[:-1] < len(hashes)]
    is_first[begins] = True
    firsts_before = np.concatenate([[0], np.cumsum(is_first)])
    return hashes[is_first], firsts_before[ends].astype(np.int64)
