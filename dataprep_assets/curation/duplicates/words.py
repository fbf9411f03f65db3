"""Words of a text and hashes of their shingles, for finding duplicates and benchmark items.

A word is a run of letters, marks and digits, in one Unicode form (NFKC) and one case. In scripts without spaces between
words, each letter is a word. Duplicates are compared by words and signs, because `a + b` differs from `a - b`: each
punctuation sign and each symbol is also a word. Benchmark items are searched for without signs, because quotations
often change them. A text without words counts as one word, so that it only equals itself.

Entry points: `split_words`, `split_compared_words`, `ShingleHashes`.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.choices import Normalization
from dataprep_assets.tokenization.document_ids import hash_id

WORDS = 2
"""Version of the definition of a word."""
UNICODE = unicodedata.unidata_version
"""The Unicode version, which determines the words of texts beyond ASCII."""

_WORD = re.compile(r"[a-z0-9]+")
_WORD_OR_SIGN = re.compile(r"[a-z0-9]+|[!-/:-@\[-`{-~]")
_RAISED = re.compile("[\u00b2\u00b3\u00b9\u2070\u2071\u2074-\u207f]")
_LOWERED = re.compile("[\u2080-\u208e]")
"""Digits and signs that NFKC would join to the previous word: `10²` is not 102."""
_KNOWN_WORDS = 1 << 20
"""Number of words whose hashes are cached: at most 150 MB."""
_UNSPACED_RANGES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x4DBF),  # CJK ideographs, extension A
    (0x4E00, 0x9FFF),  # CJK ideographs
    (0xF900, 0xFAFF),  # CJK compatibility ideographs
    (0x20000, 0x323AF),  # CJK ideographs, extensions B to H
)
_MAY_BE_UNSPACED = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _UNSPACED_RANGES) + "]")


class _LetterTable(dict[int, str]):
    """Table for `str.translate` of the replacements of characters beyond ASCII, filled on first use."""

    def __init__(self, *, signs: bool) -> None:
        super().__init__()
        self._signs = signs

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        # Remove invisible characters (direction marks, joiners, soft hyphens and variation selectors), because texts
        # that differ only in these look the same.
        if category == "Cf" or 0xFE00 <= code <= 0xFE0F:
            replacement = ""
        elif category[0] in "PS" and self._signs:
            replacement = f" {_TYPED_SIGNS.get(character) or ('-' if category == 'Pd' else character)} "
        elif category[0] in "ZPSC":
            replacement = " "
        elif is_unspaced(character):
            replacement = f" {character}"
        else:
            replacement = character
        self[code] = replacement
        return replacement


_TYPED_SIGNS = (
    dict.fromkeys("\u2018\u2019\u201a\u201b", "'") | dict.fromkeys("\u201c\u201d\u201e\u201f", '"') | {"\u2212": "-"}
)
"""Replacements for typographic signs that editors insert; all dashes are equal."""
_LETTERS, _LETTERS_AND_SIGNS = _LetterTable(signs=False), _LetterTable(signs=True)


def is_unspaced(character: str) -> bool:
    """Return whether a character is a letter of a script without spaces between words."""
    code = ord(character)
    return (
        code >= 0x0E00 and any(a <= code <= b for a, b in _UNSPACED_RANGES) and unicodedata.category(character) == "Lo"
    )


def has_unspaced(text: str) -> bool:
    """Return whether a text may contain a letter of a script without spaces between words."""
    return _MAY_BE_UNSPACED.search(text) is not None


def split_words(text: str, *, signs: bool = False) -> list[str]:
    """Return the words of a text; an empty list for an empty text.

    Args:
        text: The text.
        signs: Whether each punctuation sign and each symbol is also a word.
    """
    if text.isascii():
        words = (_WORD_OR_SIGN if signs else _WORD).findall(text.lower())
    else:
        if signs:
            text = _LOWERED.sub(r"_\g<0>", _RAISED.sub(r"^\g<0>", text))
        # Normalize twice, because case folding may produce text that is not normalized.
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        words = folded.translate(_LETTERS_AND_SIGNS if signs else _LETTERS).split()
    if words:
        return words
    word = " ".join(unicodedata.normalize("NFKC", text).split())
    return [word] if word else []


def split_compared_words(text: str, normalization: Normalization) -> list[str]:
    """Return the pieces of a text that are compared for duplicates; an empty list for an empty text."""
    if normalization == "words":
        return split_words(text, signs=True)
    if normalization == "space":
        return unicodedata.normalize("NFC", text).split()
    # Split at every single space, so that joining the pieces with spaces restores every character.
    return normalize_text(text).split(" ") if text else []


def normalize_text(text: str) -> str:
    """Return a text with `\\n` as its only line ending, in one Unicode form (NFC)."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))


class WordHashes(dict[str, int]):
    """Cache of the 64-bit hash of each word. The hashes are keyed if there is a key."""

    def __init__(self, key: bytes | None) -> None:
        super().__init__()
        self._key = key

    def __missing__(self, word: str) -> int:
        if len(self) >= _KNOWN_WORDS:
            self.clear()
        word_hash = self[word] = hash_id(word, self._key)
        return word_hash


_ODD = np.uint64(0x9E3779B97F4A7C15)


def mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of each value (the finalizer of SplitMix64, a bijection)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class ShingleHashes:
    """Hashes of the shingles of texts: every run of `words` words, or all words of a shorter text."""

    def __init__(self, words: int, key: bytes | None = None) -> None:
        """Store the settings.

        Args:
            words: Words per shingle.
            key: The secret of a keyed hash, because unkeyed hashes can be guessed.
        """
        self._words = words
        self._known = WordHashes(key)

    def hash_texts(self, texts: Sequence[Sequence[str]]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the shingle sets of texts, given as words.

        Returns:
            All hashes, uint64, sorted and unique per text; and the end of each text's hashes: ``(texts,)``.
        """
        counts = np.fromiter(map(len, texts), np.int64, len(texts))
        # Map the dictionary's `__getitem__` directly, because a Python function call per word would dominate the run
        # time.
        words = chain.from_iterable(texts)
        flat = np.fromiter(map(self._known.__getitem__, words), np.uint64, int(counts.sum()))
        size = self._words
        # Give a text with fewer words than a shingle a single shingle of all its words, so that short texts can be
        # compared.
        windows = np.where(counts == 0, 0, np.maximum(counts - size + 1, 1))
        first_word = np.cumsum(counts) - counts
        ends = np.cumsum(windows)
        text_of = np.repeat(np.arange(len(texts)), windows)
        positions = first_word[text_of] + np.arange(len(text_of)) - (ends - windows)[text_of]
        stop = (first_word + counts)[text_of]
        hashes = np.zeros(len(positions), np.uint64)
        # Combine the words of each window into a polynomial hash. Each step adds one word to every window, so that
        # NumPy does the work.
        for _ in range(size):
            is_inside = positions < stop
            if is_inside.all():
                hashes = hashes * _ODD + flat[positions]
            else:
                hashes[is_inside] = hashes[is_inside] * _ODD + flat[positions[is_inside]]
            positions += 1
        return _sort_sets(mix_bits(hashes), ends)


def _sort_sets(hashes: NDArray[np.uint64], ends: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Sort the hashes of each text in place and remove repetitions."""
    start = 0
    for end in ends.tolist():
        hashes[start:end].sort()
        start = end
    is_first = np.ones(len(hashes), np.bool_)
    is_first[1:] = hashes[1:] != hashes[:-1]
    # Always keep each text's first shingle, because it may equal the last shingle of the previous text. Exclude
    # positions beyond the end, because the last texts may have no shingles.
    begins = ends[:-1][ends[:-1] < len(hashes)]
    is_first[begins] = True
    firsts_before = np.concatenate([[0], np.cumsum(is_first)])
    return hashes[is_first], firsts_before[ends].astype(np.int64)
