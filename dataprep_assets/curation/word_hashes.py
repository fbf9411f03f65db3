"""Hashes of the words of texts, for all texts of a batch at once, in NumPy arrays of code points.

The words are the words of `words.split_words`. Splitting each text into Python strings, and hashing every word
separately, took most of the time of signatures and of the search for benchmark items. Equal words are hashed once.

Entry points: `hash_words`, `hash_pieces`.
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.words import LETTERS, LETTERS_AND_SIGNS, LetterTable, fold_text, split_words
from dataprep_assets.curation.split_texts import Codes, Numbers, group_texts, look_up
from dataprep_assets.tokenization.document_ids import hash_encoded, hash_texts

if TYPE_CHECKING:
    import pyarrow as pa

Hashes = NDArray[np.uint64]
_SEPARATOR, _LETTER, _UNSPACED, _SIGN, _REMOVED, _NEW = range(6)
"""Kinds of characters: between words, of a word, the first of a word, a word of its own, without effect."""
_CODE_POINTS = 0x110000


class HashedWords(NamedTuple):
    """The words of texts, one text after the other.

    Attributes:
        hashes: Hash of each word: ``(words,)``, uint64.
        counts: Number of words of each text: ``(texts,)``.
        letters: For each word, the code point of its first letter if its script has no spaces, otherwise 0:
            ``(words,)``; None if no word has such a letter.
    """

    hashes: Hashes
    counts: Numbers
    letters: Numbers | None


class _CharacterTable:
    """Kind of every character, and the replacement of signs. It is filled on first use."""

    def __init__(self, replacements: LetterTable) -> None:
        self.signs = np.arange(_CODE_POINTS, dtype=np.uint32)
        self._kinds, self._replacements = np.full(_CODE_POINTS, _NEW, np.uint8), replacements
        self._fill(range(128))
        self.ascii_separators = bytes(code for code in range(128) if self._kinds[code] == _SEPARATOR)

    def find_kinds(self, codes: Codes) -> NDArray[np.uint8]:
        """Return the kind of each code point."""
        kinds = look_up(self._kinds, codes)
        if (is_new := kinds == _NEW).any():
            self._fill(np.unique(codes[is_new]).tolist())
            kinds = look_up(self._kinds, codes)
        return kinds

    def _fill(self, codes: Sequence[int]) -> None:
        for code in codes:
            # The replacements surround a sign with blanks, and put one before a letter of a script without spaces.
            replacement = self._replacements[code]
            character = replacement.strip(" ")
            if not character:
                kind = _SEPARATOR if replacement else _REMOVED
            elif len(replacement) > 1:
                kind = _SIGN if replacement.endswith(" ") else _UNSPACED
                self.signs[code] = ord(character)
            else:
                kind = _LETTER
            self._kinds[code] = kind


@cache
def _get_table(signs: bool) -> _CharacterTable:
    return _CharacterTable(LETTERS_AND_SIGNS if signs else LETTERS)


def hash_words(texts: Sequence[str], *, signs: bool, key: bytes | None = None) -> HashedWords:
    """Return the hashed words of texts, as `split_words` splits them. With `key`, the hashes are keyed."""
    hashes: list[Hashes] = [np.zeros(0, np.uint64)] * (len(texts) + 1)
    letters: dict[int, Numbers] = {}
    table = _get_table(signs)
    for indices in group_texts(texts):
        group = _hash_group([fold_text(texts[index], signs=signs) for index in indices], table, key)
        bounds = np.cumsum(group.counts)[:-1]
        for index, text_hashes in zip(indices, np.split(group.hashes, bounds), strict=True):
            # A text without words is one word, unless it is empty.
            hashes[index] = text_hashes if len(text_hashes) else hash_texts(split_words(texts[index], signs=signs), key)
        if group.letters is not None:
            letters |= zip(indices, np.split(group.letters, bounds), strict=True)
    counts = np.fromiter(map(len, hashes[:-1]), np.int64, len(texts))
    joined_letters = None
    if letters:
        joined_letters = np.zeros(int(counts.sum()), np.int64)
        ends = np.cumsum(counts).tolist()
        for index, text_letters in letters.items():
            joined_letters[ends[index] - len(text_letters) : ends[index]] = text_letters
    return HashedWords(np.concatenate(hashes), counts, joined_letters)


def hash_pieces(pieces: Sequence[bytes], key: bytes | None) -> Hashes:
    """Return the hash of each piece, which is encoded in UTF-8. With `key`, the hashes are keyed."""
    import pyarrow as pa

    return _hash_distinct(pa.array(pieces, pa.large_binary()), key)


def _hash_group(folded_texts: Sequence[str], table: _CharacterTable, key: bytes | None) -> HashedWords:
    """Return the hashed words of folded texts, at least one."""
    joined_text = " ".join(["", *folded_texts, ""])
    text_ends = np.cumsum([len(text) + 1 for text in folded_texts])
    codes: Codes
    if joined_text.isascii():
        codes = np.frombuffer(joined_text.encode(), np.uint8)
    else:
        codes = np.frombuffer(joined_text.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = table.find_kinds(codes)
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
        data = codes.tobytes().translate(None, table.ascii_separators)
        return HashedWords(_hash_pieces_at(data, bounds, key), counts, None)
    letters = None
    if (is_unspaced := kinds[starts] == _UNSPACED).any():
        letters = np.where(is_unspaced, codes[starts], 0).astype(np.int64)
    codes = codes[is_of_word]
    signs = np.flatnonzero(kinds[is_of_word] == _SIGN)
    codes[signs] = table.signs[codes[signs]]
    sizes = 1 + (codes >= 0x80).astype(np.uint8) + (codes >= 0x800) + (codes >= 0x10000)
    byte_ends = np.append(0, np.cumsum(sizes, dtype=np.int64))
    data = codes.tobytes().decode("utf-32-le", "surrogatepass").encode()
    return HashedWords(_hash_pieces_at(data, byte_ends[bounds], key), counts, letters)


def _hash_pieces_at(data: bytes, bounds: Numbers, key: bytes | None) -> Hashes:
    import pyarrow as pa

    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    return _hash_distinct(pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers), key)


def _hash_distinct(pieces: "pa.Array", key: bytes | None) -> Hashes:
    encoded = pieces.dictionary_encode()
    hashes: Hashes = hash_encoded(encoded.dictionary.to_pylist(), key)[encoded.indices.to_numpy()]
    return hashes
