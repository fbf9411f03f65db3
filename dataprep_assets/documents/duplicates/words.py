"""The words of a text, by which texts are compared, and the hashes of their shingles.

A word is what is left between white space, punctuation and symbols, in one Unicode form and one case. Scripts that put
no space between words give a word for each letter. A text without any word, such as one of signs alone, counts as one
word, so that it equals nothing but itself.

Entry points: `words_of`, `ShingleHashes`.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.tokenization.document_ids import hash_id

Normalization = Literal["words", "space", "none"]
"""What makes two texts equal: their words; their text but for white space and Unicode's forms; every byte."""

UNICODE = unicodedata.unidata_version
"""The Unicode version that decides the words of texts beyond ASCII."""

_WORD = re.compile(r"[a-z0-9]+")
_KNOWN_WORDS = 1 << 20
"""Words whose hashes are remembered: 150 MB at most."""
_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x323AF),
)


class _Letters(dict[int, str]):
    """For `str.translate`: what stands for a character beyond ASCII; found out when it is first met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Cf":  # marks of direction, joiners, soft hyphens: nobody sees them
            found = ""
        elif category[0] in "ZPSC":
            found = " "
        elif category == "Lo" and any(first <= code <= last for first, last in _UNSPACED):
            found = f" {character}"
        else:
            found = character
        self[code] = found
        return found


_LETTERS = _Letters()


def words_of(text: str, normalization: Normalization = "words") -> list[str]:
    """The words of a text; none of an empty one."""
    if normalization == "none":
        # at every single blank: joined by blanks the words are the text again, so every character counts
        return text.split(" ") if text else []
    if normalization == "space":
        return unicodedata.normalize("NFC", text).split()
    if text.isascii():
        found = _WORD.findall(text.lower())
    else:
        # a second time, because folding may take a text out of its form
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        found = folded.translate(_LETTERS).split()
    if found:
        return found
    whole = " ".join(unicodedata.normalize("NFKC", text).split())
    return [whole] if whole else []


class _WordHashes(dict[str, int]):
    """Word → its 64-bit hash, keyed if there is a key."""

    def __init__(self, key: bytes | None) -> None:
        super().__init__()
        self._key = key

    def __missing__(self, word: str) -> int:
        if len(self) >= _KNOWN_WORDS:
            self.clear()
        found = self[word] = hash_id(word, self._key)
        return found


_ODD = np.uint64(0x9E3779B97F4A7C15)


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each value with its bits mixed (the finalizer of SplitMix64, a bijection)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class ShingleHashes:
    """Hashes the shingles of texts: every run of so many words, or all words of a text that has fewer."""

    def __init__(self, words: int, key: bytes | None = None) -> None:
        """Take what decides the hashes.

        Args:
            words: Words of a shingle.
            key: The secret of a keyed hash; anybody could guess at unkeyed ones.
        """
        self._words = words
        self._known = _WordHashes(key)

    def of(self, texts: Sequence[Sequence[str]]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """The sets of shingles of texts, given as words.

        Returns:
            The hashes of all, uint64, of each text sorted and each once; and where each text's end: ``(texts,)``.
        """
        counts = np.fromiter(map(len, texts), np.int64, len(texts))
        # without a Python frame a word: this is most of what signatures cost
        words = chain.from_iterable(texts)
        flat = np.fromiter(map(self._known.__getitem__, words), np.uint64, int(counts.sum()))
        size = self._words
        # a short text is one shingle: its words in the places of the last ones
        windows = np.where(counts == 0, 0, np.maximum(counts - size + 1, 1))
        first_word = np.cumsum(counts) - counts
        ends = np.cumsum(windows)
        text_of = np.repeat(np.arange(len(texts)), windows)
        at = first_word[text_of] + np.arange(len(text_of)) - (ends - windows)[text_of]
        stop = (first_word + counts)[text_of]
        hashes = np.zeros(len(at), np.uint64)
        # A polynomial of each window's words, one more word in each round, for all windows at once.
        for _ in range(size):
            inside = at < stop
            if inside.all():
                hashes = hashes * _ODD + flat[at]
            else:
                hashes[inside] = hashes[inside] * _ODD + flat[at[inside]]
            at += 1
        return _sets(mixed(hashes), ends)


def _sets(hashes: NDArray[np.uint64], ends: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Sort the hashes of each text in place and leave out what is there twice."""
    start = 0
    for end in ends.tolist():
        hashes[start:end].sort()
        start = end
    first = np.ones(len(hashes), np.bool_)
    first[1:] = hashes[1:] != hashes[:-1]
    # A text's first shingle counts even if it equals the last one of the text before. Texts at the end may have none.
    begins = ends[:-1][ends[:-1] < len(hashes)]
    first[begins] = True
    kept = np.concatenate([[0], np.cumsum(first)])
    return hashes[first], kept[ends].astype(np.int64)
