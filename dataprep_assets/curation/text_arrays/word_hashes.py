"""Hashes of the words of texts, for all texts of a batch at once, in NumPy arrays of bytes.

The words are the words of `words.split_words`. Splitting each text into Python strings, and hashing every word
separately, took most of the time of signatures and of the search for benchmark items.

A batch is encoded in UTF-8, and its words are found among the bytes. Characters beyond ASCII, which are few in most
texts, are looked up in a table. A text is folded as a string only if its characters do not fold one by one.

Entry points: `hash_words`, `hash_pieces`.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.words import LETTERS, LETTERS_AND_SIGNS, fold_text, split_words
from dataprep_assets.curation.text_arrays.split_texts import Numbers, find_first_indices, group_texts, number_values
from dataprep_assets.tokenization.document_ids import hash_encoded, hash_texts
from dataprep_assets.tokenization.short_hashes import hash_slices

Hashes = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

_CODE_POINTS = 0x110000
_TEXT_END, _REMOVED = 0xFE, 0xFF
"""Bytes that UTF-8 does not use: the end of a text, and a byte without effect."""
_OF_WORD, _BEGINS, _ENDS, _IS_CONTEXTUAL, _IS_REPLACED, _IS_NEW = 1, 2, 4, 8, 16, 32
"""Flags of bytes (of a word, begins a word, ends a word), and of characters (see `_CharacterTable`)."""
_ASCII_AND_TEXT_END = bytes([*range(128), _TEXT_END])
_JAMO_THAT_COMPOSE = range(0x1160, 0x1200)


class HashedWords(NamedTuple):
    """The words of texts, one text after the other.

    Attributes:
        hashes: Hash of each word: ``(words,)``, uint64.
        counts: Number of words of each text: ``(texts,)``.
        letters: First byte in UTF-8 of each word that is a sign or begins with a letter of a script without spaces; 0
            for all other words: ``(words,)``, uint8.
    """

    hashes: Hashes
    counts: Numbers
    letters: Bytes


class _TextWords(NamedTuple):
    """The words of a text, and whether the text has a contextual character."""

    hashes: Hashes
    letters: Bytes
    is_contextual: bool


class _CharacterTable:
    """Flags and folded bytes of characters, for texts as words, or as words and signs. It is filled on first use.

    A character is contextual if its folded form depends on its neighbors, or does not fit in the place of its bytes.
    """

    def __init__(self, *, signs: bool) -> None:
        self._signs, self._replacements = signs, LETTERS_AND_SIGNS if signs else LETTERS
        self._flags = np.full(_CODE_POINTS, _IS_NEW, np.uint8)
        self._folded = np.zeros((_CODE_POINTS, 4), np.uint8)
        ascii_flags = bytes(self._find_flags(character) for character in map(chr, range(128)))
        # All other bytes belong to words at first, because the flags of other characters are set in addition.
        self.byte_flags = ascii_flags + bytes([_OF_WORD]) * 126 + bytes([0, _REMOVED])

    def find_flags(self, codes: NDArray[np.uint32]) -> Bytes:
        """Return the flags of characters beyond ASCII."""
        flags: Bytes = np.take(self._flags, codes)
        if (is_new := flags == _IS_NEW).any():
            for code in np.unique(codes[is_new]).tolist():
                self._fill(code)
            flags = np.take(self._flags, codes)
        return flags

    def get_folded(self, codes: NDArray[np.uint32]) -> Bytes:
        """Return the bytes that replace each character with the flag `_IS_REPLACED`: ``(characters, 4)``."""
        return self._folded[codes]

    def _find_flags(self, character: str) -> int:
        """Return the flags of a character that is its own folded form."""
        # The replacements surround a sign with blanks, and put one before a letter of a script without spaces.
        replacement = self._replacements[ord(character)]
        if not replacement.strip(" "):
            return 0
        if not replacement.startswith(" "):
            return _OF_WORD
        return _OF_WORD | _BEGINS | (_ENDS if replacement.endswith(" ") else 0)

    def _fill(self, code: int) -> None:
        character = chr(code)
        size, flags = len(_encode(character)), _IS_REPLACED
        folded = fold_text(character, signs=self._signs)
        replacement = folded.translate(self._replacements)
        if len(folded) == 1:
            folded = replacement.strip(" ")
        encoded = _encode(folded)
        padding = _REMOVED
        if not replacement:
            encoded = b""
        elif replacement.isspace():
            encoded, padding = b"", ord(" ")
        elif _is_contextual(character) or len(encoded) > size or (len(folded) > 1 and not folded.isascii()):
            flags = _IS_CONTEXTUAL | self._find_flags(character)
        elif folded.isascii():
            # Any sign ends a word, so a blank can follow it. A letter must be next to the following letter.
            padding = ord(" ") if replacement.endswith(" ") else _REMOVED
        else:
            flags = self._find_flags(folded) | (_IS_REPLACED if folded != character else 0)
            if flags & _ENDS and len(encoded) < size:
                flags = _IS_CONTEXTUAL | self._find_flags(character)
        self._flags[code] = flags
        self._folded[code, :size] = list(encoded.ljust(size, bytes([padding]))[:size])


_NO_WORDS = _TextWords(np.zeros(0, np.uint64), np.zeros(0, np.uint8), is_contextual=False)


@cache
def _get_table(signs: bool) -> _CharacterTable:
    return _CharacterTable(signs=signs)


def hash_words(texts: Sequence[str], *, signs: bool, key: bytes | None = None) -> HashedWords:
    """Return the hashed words of texts, as `split_words` splits them. With `key`, the hashes are keyed."""
    table = _get_table(signs)
    words = dict(_hash_groups(texts, table, key))
    contextual = [index for index, text_words in words.items() if text_words.is_contextual]
    # Fold these texts as strings. In a folded text, each character is its own folded form.
    folded_texts = [fold_text(texts[index], signs=signs) for index in contextual]
    for index, text_words in _hash_groups(folded_texts, table, key):
        words[contextual[index]] = text_words
    for index, text_words in words.items():
        # A text without words is one word, unless it is empty.
        if not len(text_words.hashes) and (piece := split_words(texts[index], signs=signs)):
            words[index] = _TextWords(hash_texts(piece, key), np.zeros(1, np.uint8), is_contextual=False)
    ordered_words = [_NO_WORDS, *(words[index] for index in range(len(texts)))]
    hashes, letters, _ = zip(*ordered_words, strict=True)
    counts = np.fromiter(map(len, hashes[1:]), np.int64, len(texts))
    return HashedWords(np.concatenate(hashes), counts, np.concatenate(letters))


def hash_pieces(pieces: Sequence[bytes], key: bytes | None) -> Hashes:
    """Return the hash of each piece, which is encoded in UTF-8. With `key`, the hashes are keyed."""
    import pyarrow as pa

    encoded = pa.array(pieces, pa.large_binary()).dictionary_encode()
    # Hash equal pieces once, because a keyed hash takes longer than finding equal pieces.
    hashes: Hashes = hash_encoded(encoded.dictionary.to_pylist(), key)[encoded.indices.to_numpy()]
    return hashes


def _hash_groups(texts: Sequence[str], table: _CharacterTable, key: bytes | None) -> Iterator[tuple[int, _TextWords]]:
    """Yield the index of each text and its words."""
    for indices in group_texts(texts):
        # Begin with the end of a text, so that each word has a byte before it and after it.
        data = bytes([_TEXT_END]).join([b"", *(_encode(texts[index]) for index in indices), b""]).lower()
        is_contextual = np.zeros(len(indices), np.bool_)
        if texts[indices[0]].isascii():
            flags = np.frombuffer(data.translate(table.byte_flags), np.uint8)
        else:
            data, flags, contextual_texts = _fold_characters(data, table)
            is_contextual[contextual_texts] = True
        starts, ends = _find_words(flags)
        hashes = hash_slices(data, starts, ends)
        if key is not None:
            # Compute a keyed hash once per distinct word, because it takes much longer.
            numbers = number_values(hashes)
            firsts = find_first_indices(numbers)
            slices = zip(starts[firsts].tolist(), ends[firsts].tolist(), strict=True)
            hashes = hash_encoded([data[start:end] for start, end in slices], key)[numbers]
        characters = np.frombuffer(data, np.uint8)
        letters = characters[starts] * (flags[starts] & _BEGINS > 0)
        bounds = np.searchsorted(starts, np.flatnonzero(characters == _TEXT_END)).tolist()
        for index, (start, end), is_text_contextual in zip(
            indices, pairwise(bounds), is_contextual.tolist(), strict=True
        ):
            yield index, _TextWords(hashes[start:end], letters[start:end], is_text_contextual)


def _find_words(flags: Bytes) -> tuple[Numbers, Numbers]:
    """Return the start and the end of each word, given the flags of each byte."""
    is_of_word = flags & _OF_WORD > 0
    is_boundary = is_of_word[1:] != is_of_word[:-1]
    if (flags <= _OF_WORD).all():
        boundaries = np.flatnonzero(is_boundary) + 1
        return boundaries[::2], boundaries[1::2]
    # A boundary is also before a byte that begins a word, and after one that ends a word.
    is_boundary |= (flags[1:] & _BEGINS > 0) | (flags[:-1] & _ENDS > 0)
    return np.flatnonzero(is_boundary & is_of_word[1:]) + 1, np.flatnonzero(is_boundary & is_of_word[:-1]) + 1


def _fold_characters(data: bytes, table: _CharacterTable) -> tuple[bytes, Bytes, Numbers]:
    """Fold the characters beyond ASCII one by one.

    Returns:
        The data; the flags of each byte; the indices of the texts with a contextual character.
    """
    raw = np.frombuffer(bytearray(data), np.uint8)
    leads = np.flatnonzero((raw >= 0xC0) & (raw != _TEXT_END))
    characters = data.translate(None, _ASCII_AND_TEXT_END).decode("utf-8", "surrogatepass")
    codes = np.frombuffer(characters.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.uint32, copy=False)
    flags = table.find_flags(codes)
    sizes = 2 + (codes >= 0x800).astype(np.int64) + (codes >= 0x10000)
    text_ends = np.flatnonzero(raw == _TEXT_END)
    contextual_texts = np.searchsorted(text_ends, leads[flags & _IS_CONTEXTUAL > 0]) - 1
    replaced = np.flatnonzero(flags & _IS_REPLACED)
    folded = table.get_folded(codes[replaced])
    for offset in range(4):
        is_long = sizes[replaced] > offset
        raw[leads[replaced][is_long] + offset] = folded[is_long, offset]
    data = raw.tobytes()
    byte_flags = np.frombuffer(bytearray(data.translate(table.byte_flags)), np.uint8)
    begins = np.flatnonzero(flags & _BEGINS)
    byte_flags[leads[begins]] |= _BEGINS
    ends = np.flatnonzero(flags & _ENDS)
    byte_flags[leads[ends] + sizes[ends] - 1] |= _ENDS
    if (folded == _REMOVED).any():
        data = data.translate(None, bytes([_REMOVED]))
        byte_flags = np.frombuffer(byte_flags.tobytes().translate(None, bytes([_REMOVED])), np.uint8)
    return data, byte_flags, contextual_texts


def _is_contextual(character: str) -> bool:
    """Return whether a character, or its case-folded form, may be joined with or ordered before the previous one."""
    for form in (character, unicodedata.normalize("NFKC", character).casefold()):
        lead = unicodedata.normalize("NFKD", form)[0]
        if unicodedata.category(lead)[0] == "M" or ord(lead) in _JAMO_THAT_COMPOSE:
            return True
    return False


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
