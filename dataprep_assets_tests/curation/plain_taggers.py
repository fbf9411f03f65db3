"""Plain implementations of the built-in taggers of repetition and quality, as references for the fast ones.

Each function measures one normalized text, line by line and word by word, with Python's own strings.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dataprep_assets.curation.taggers.c4 import count_sentences
from dataprep_assets.curation.taggers.fineweb import SHORT_LINE, TERMINAL
from dataprep_assets.curation.taggers.gopher import STOP_WORDS

_POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


def _divide(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


def _count_repeated(parts: Sequence[str]) -> tuple[int, int]:
    repeated = [part for index, part in enumerate(parts) if part in set(parts[:index])]
    return len(repeated), sum(map(len, repeated))


def measure_gopher(text: str) -> Sequence[Any]:
    """Return the columns of `gopher`."""
    all_words, lines = text.split(), text.splitlines()
    words = [word for word in all_words if any(map(str.isalnum, word))]
    return (
        len(words),
        _divide(sum(map(len, words)), len(words)),
        _divide(text.count("#"), len(all_words)),
        _divide(text.count("...") + text.count("…"), len(all_words)),
        _divide(sum(line.startswith(("•", "-")) for line in lines), len(lines)),
        _divide(sum(line.endswith(("...", "…")) for line in lines), len(lines)),
        _divide(sum(any(map(str.isalpha, word)) for word in words), len(all_words)),
        len(STOP_WORDS & set(all_words)),
    )


def measure_fineweb(text: str) -> Sequence[Any]:
    """Return the columns of `fineweb`."""
    lines = [line for line in text.split("\n") if line]
    if not lines:
        return None, None, None, None
    return (
        sum(line[-1] in TERMINAL for line in lines) / len(lines),
        sum(len(line) <= SHORT_LINE for line in lines) / len(lines),
        _count_repeated(lines)[1] / sum(map(len, lines)),
        text.count("\n") / len(text.split()),
    )


def measure_c4(text: str) -> Sequence[Any]:
    """Return the columns of `c4`."""
    line_count = sentence_count = 0
    lorem = curly = False
    for full_line in text.splitlines():
        words = full_line.split()
        if len(words) < 3 or max(map(len, words)) > 1000:
            continue
        line = re.sub(r"\[(?:\d*|edit|citation needed)\]", "", full_line)
        if not line.endswith((".", "?", "!", '"', "'")) or line.endswith("..."):
            continue
        lower = line.lower()
        lorem = lorem or "lorem ipsum" in lower
        if "javascript" in lower:
            continue
        curly = curly or "{" in line
        if any(phrase in lower for phrase in _POLICIES):
            continue
        line_count, sentence_count = line_count + 1, sentence_count + count_sentences(line)
    return line_count, sentence_count, lorem, curly


def measure_repetition(text: str) -> Sequence[Any]:
    """Return the columns of `repetition`."""
    if not text:
        return [None] * 13
    values: list[float] = []
    for parts in (re.split(r"\n+", text), text.split("\n\n")):
        count, characters = _count_repeated(parts)
        values += [count / len(parts), characters / len(text)]
    words = text.split()
    for n in range(2, 11):
        grams = [tuple(words[index : index + n]) for index in range(len(words) - n + 1)]
        characters = 0
        if n <= 4:
            # `most_common` keeps the order of first occurrences among equal counts.
            for gram, count in Counter(grams).most_common(1):
                characters = len(" ".join(gram)) * count
        else:
            characters = _count_repeated_grams(grams)
        values.append(characters / len(text))
    return values


def _count_repeated_grams(grams: Sequence[tuple[str, ...]]) -> int:
    earlier_grams = set()
    index = characters = 0
    while index < len(grams):
        if grams[index] in earlier_grams:
            characters += len("".join(grams[index]))
            index += len(grams[index])
        else:
            earlier_grams.add(grams[index])
            index += 1
    return characters


MEASURES: Mapping[str, Callable[[str], Sequence[Any]]] = {
    "gopher": measure_gopher,
    "fineweb": measure_fineweb,
    "c4": measure_c4,
    "repetition": measure_repetition,
}
"""Tagger → its plain implementation."""

PATTERNS = {
    "_IBAN": r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?=[ A-Z0-9])",
    "_CARD": (
        r"(?<![\dA-Za-z_./-])(?<![\dA-F]{4} )(?:\d{13,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?(?!\1\d(?!\d?/\d))"
        r"|3\d{3}([ -])\d{6}\2\d{4,5}(?!\2\d(?!\d?/\d)))(?![.]\d|[\dA-Za-z_])"
    ),
    "_V4": r"(?<![\w.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\w]|\.\d)",
    "_V6": r"(?:(?<![\w:.])|(?<=IPv6:))[0-9A-Fa-f]{1,4}:[0-9A-Fa-f:]{3,35}[0-9A-Fa-f](?![\w:])",
    "_RUN": (
        r"(?<!\d)(?=[+(（\d][\d ()（）./+-]{7})(?:[(（]\+?\d+|\+[(（]?\d+|\d+)"
        r"(?:(?: ?[/-] ?|[ .]|[)）] ?-? ?| ?[(（])\d+)*"
    ),
}
"""Name of a pattern of `personal` → its form that tests the character before a match first."""
