"""Hashes of the shingles of texts, for all texts of a batch at once, in NumPy arrays of code points.

A shingle is a run of words, which are the words of `words.split_words` with signs. Splitting each text into Python
strings, and hashing every word separately, took most of the time of signatures. Equal words are hashed only once.

Entry point: `ShingleHashes`.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.choices import Normalization
from dataprep_assets.curation.duplicates.words import LETTERS_AND_SIGNS, fold_text, mix_bits, split_compared_words
from dataprep_assets.curation.split_texts import Codes, Flags, Numbers, group_texts, look_up
from dataprep_assets.tokenization.document_ids import hash_encoded, hash_texts

if TYPE_CHECKING:
    import pyarrow as pa

Hashes = NDArray[np.uint64]
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SEPARATOR, _LETTER, _UNSPACED, _SIGN, _REMOVED, _NEW = range(6)
"""Kinds of characters: between words, of a word, the first of a word, a word of its own, without effect."""
_CODE_POINTS = 0x110000


class _CharacterTable:
    """Kind of every character, and the replacement of signs. It is filled on first use."""

    def __init__(self) -> None:
        self.signs = np.arange(_CODE_POINTS, dtype=np.uint32)
        self._kinds = np.full(_CODE_POINTS, _NEW, np.uint8)
        self._fill(range(128))

    def find_kinds(self, codes: Codes) -> NDArray[np.uint8]:
        """Return the kind of each code point."""
        kinds = look_up(self._kinds, codes)
        if (is_new := kinds == _NEW).any():
            self._fill(np.unique(codes[is_new]).tolist())
            kinds = look_up(self._kinds, codes)
        return kinds

    def _fill(self, codes: Sequence[int]) -> None:
        for code in codes:
            # The table surrounds a sign with blanks, and puts one before a letter of a script without spaces.
            replacement = LETTERS_AND_SIGNS[code]
            character = replacement.strip(" ")
            if not character:
                kind = _SEPARATOR if replacement else _REMOVED
            elif len(replacement) > 1:
                kind = _SIGN if replacement.endswith(" ") else _UNSPACED
                self.signs[code] = ord(character)
            else:
                kind = _LETTER
            self._kinds[code] = kind


_CHARACTERS = _CharacterTable()
_ASCII_SEPARATORS = bytes(code for code in range(128) if not LETTERS_AND_SIGNS[code].strip(" "))


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
            hashes, counts = hash_words(texts, self._key)
        else:
            pieces = [split_compared_words(text, self._normalization) for text in texts]
            counts = np.fromiter(map(len, pieces), np.int64, len(pieces))
            hashes = _hash_pieces([piece.encode() for piece in chain.from_iterable(pieces)], self._key)
        return self._combine(hashes, counts)

    def _combine(self, words: Hashes, counts: Numbers) -> tuple[Hashes, Numbers]:
        """Return the shingle sets of texts, given the hash of each word and the number of words of each text."""
        size, ends = self._words, np.cumsum(counts)
        # Combine the words of each window into a polynomial hash. Each step adds one word to every window, so that
        # NumPy does the work.
        hashes = np.zeros(len(words), np.uint64)
        window_count = max(0, len(words) - size + 1)
        for offset in range(size if window_count else 0):
            hashes[:window_count] = hashes[:window_count] * _ODD + words[offset : offset + window_count]
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
        windows = np.where(counts == 0, 0, np.maximum(counts - size + 1, 1))
        return _sort_sets(mix_bits(hashes[begins_window]), np.cumsum(windows))


def hash_words(texts: Sequence[str], key: bytes | None = None) -> tuple[Hashes, Numbers]:
    """Return the hash of each word of the texts, and the number of words of each text: ``(texts,)``.

    The words are the words of `split_words` with signs. With `key`, the hashes are keyed.
    """
    parts: list[Hashes] = [np.zeros(0, np.uint64)] * len(texts)
    for indices in group_texts(texts):
        hashes, counts = _hash_group([fold_text(texts[index], signs=True) for index in indices], key)
        for index, part in zip(indices, np.split(hashes, np.cumsum(counts)[:-1]), strict=True):
            # A text without words is one word, unless it is empty.
            parts[index] = part if len(part) else hash_texts(split_compared_words(texts[index], "words"), key)
    return np.concatenate([np.zeros(0, np.uint64), *parts]), np.fromiter(map(len, parts), np.int64, len(parts))


def _hash_group(folded_texts: Sequence[str], key: bytes | None) -> tuple[Hashes, Numbers]:
    """Return the hash of each word of folded texts, at least one, and the number of words of each text."""
    joined_text = " ".join(["", *folded_texts, ""])
    text_ends = np.cumsum([len(text) + 1 for text in folded_texts])
    codes: Codes
    if joined_text.isascii():
        codes = np.frombuffer(joined_text.encode(), np.uint8)
    else:
        codes = np.frombuffer(joined_text.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _CHARACTERS.find_kinds(codes)
    if (is_removed := kinds == _REMOVED).any():
        kept_positions = np.flatnonzero(~is_removed)
        text_ends = np.searchsorted(kept_positions, text_ends)
        codes, kinds = codes[kept_positions], kinds[kept_positions]
    is_of_word, is_letter = kinds != _SEPARATOR, kinds == _LETTER
    # A letter continues a word, except after a separator or a sign.
    continues = is_letter[1:] & is_of_word[:-1] & (kinds[:-1] != _SIGN)
    starts = np.flatnonzero(is_of_word[1:] & ~continues) + 1
    ends = np.flatnonzero(is_of_word[:-1] & ~continues) + 1
    counts = np.diff(np.searchsorted(starts, text_ends), prepend=0)
    bounds = np.append(0, np.cumsum(ends - starts))
    if codes.dtype == np.uint8:
        return _hash_pieces_at(codes.tobytes().translate(None, _ASCII_SEPARATORS), bounds, key), counts
    codes = codes[is_of_word]
    signs = np.flatnonzero(kinds[is_of_word] == _SIGN)
    codes[signs] = _CHARACTERS.signs[codes[signs]]
    sizes = 1 + (codes >= 0x80).astype(np.uint8) + (codes >= 0x800) + (codes >= 0x10000)
    byte_ends = np.append(0, np.cumsum(sizes, dtype=np.int64))
    data = codes.tobytes().decode("utf-32-le", "surrogatepass").encode()
    return _hash_pieces_at(data, byte_ends[bounds], key), counts


def _hash_pieces_at(data: bytes, bounds: Numbers, key: bytes | None) -> Hashes:
    import pyarrow as pa

    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return _hash_distinct(pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers), key)


def _hash_pieces(pieces: Sequence[bytes], key: bytes | None) -> Hashes:
    import pyarrow as pa

    return _hash_distinct(pa.array(pieces, pa.large_binary()), key)


def _hash_distinct(pieces: "pa.Array", key: bytes | None) -> Hashes:
    encoded = pieces.dictionary_encode()
    hashes: Hashes = hash_encoded(encoded.dictionary.to_pylist(), key)[encoded.indices.to_numpy()]
    return hashes


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
