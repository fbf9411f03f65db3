"""Words of a text, for finding duplicates and benchmark items.

A word is a run of letters, marks and digits, in one Unicode form (NFKC) and one case. In scripts without spaces between
words, each letter is a word. Duplicates are compared by words and signs, because `a + b` differs from `a - b`: each
punctuation sign and each symbol is also a word. Benchmark items are searched for without signs, because quotations
often change them. A text without words counts as one word, so that it only equals itself.

Entry points: `split_words`, `split_compared_words`, `fold_text`.
"""

import re
import unicodedata

from dataprep_assets.curation.duplicates.kinds import Normalization

WORDS = 2
"""Version of the definition of a word."""
UNICODE = unicodedata.unidata_version
"""The Unicode version, which determines the words of texts beyond ASCII."""

_WORD = re.compile(r"[a-z0-9]+")
_WORD_OR_SIGN = re.compile(r"[a-z0-9]+|[!-/:-@\[-`{-~]")
_RAISED = re.compile("[\u00b2\u00b3\u00b9\u2070\u2071\u2074-\u207f]")
_LOWERED = re.compile("[\u2080-\u208e]")
"""Digits and signs that NFKC would join to the previous word: `10²` is not 102."""
_RAISED_OR_LOWERED = re.compile(f"{_RAISED.pattern}|{_LOWERED.pattern}")
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


class LetterTable(dict[int, str]):
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
LETTERS, LETTERS_AND_SIGNS = LetterTable(signs=False), LetterTable(signs=True)


def is_unspaced(character: str) -> bool:
    """Return whether a character is a letter of a script without spaces between words."""
    code = ord(character)
    return (
        code >= 0x0E00 and any(a <= code <= b for a, b in _UNSPACED_RANGES) and unicodedata.category(character) == "Lo"
    )


def has_unspaced(text: str) -> bool:
    """Return whether a text may contain a letter of a script without spaces between words."""
    return _MAY_BE_UNSPACED.search(text) is not None


def fold_text(text: str, *, signs: bool = False) -> str:
    """Return a text in the Unicode form and case of its words. With `signs`, digits that are raised stay separate."""
    if text.isascii():
        return text.lower()
    if signs and _RAISED_OR_LOWERED.search(text):
        text = _LOWERED.sub(r"_\g<0>", _RAISED.sub(r"^\g<0>", text))
    # Normalize twice, because case folding may produce text that is not normalized.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def split_words(text: str, *, signs: bool = False) -> list[str]:
    """Return the words of a text; an empty list for an empty text.

    Args:
        text: The text.
        signs: Whether each punctuation sign and each symbol is also a word.
    """
    folded = fold_text(text, signs=signs)
    if text.isascii():
        words = (_WORD_OR_SIGN if signs else _WORD).findall(folded)
    else:
        words = folded.translate(LETTERS_AND_SIGNS if signs else LETTERS).split()
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
