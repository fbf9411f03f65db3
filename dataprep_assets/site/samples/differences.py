"""Differences of two texts, word by word, and the words of a text that another text also has.

Entry points: `mark_differences`, `mark_shared`.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import groupby

from dataprep_assets.errors import count_of
from dataprep_assets.site.samples.facts import Run

_WORD = re.compile(r"\s*(?:\w+|[^\w\s])\s*|\s+")
"""A word or a sign with the white space around it."""
_LETTERS = re.compile(r"\w+")
_SHARED_WORDS = 4
"""Minimum number of consecutive words that count as shared."""


def mark_differences(text: str, other_text: str) -> tuple[list[Run], list[Run]]:
    """Return both texts as runs: `same` in both, `removed` only in the first, `added` only in the second.

    Differences in white space are not marked, because documents that differ only in it are equal for deduplication. The
    texts should be short (`cut_text`), because the time grows with the product of their lengths.
    """
    words, other_words = _WORD.findall(text), _WORD.findall(other_text)
    # Compare only the parts between the common beginning and end, because near-duplicates mostly differ in few places.
    keys, other_keys = [word.strip() for word in words], [word.strip() for word in other_words]
    head = _count_common(keys, other_keys)
    tail = _count_common(keys[head:][::-1], other_keys[head:][::-1])
    stop, other_stop = len(words) - tail, len(other_words) - tail
    matcher = SequenceMatcher(None, keys[head:stop], other_keys[head:other_stop], autojunk=False)
    runs, other_runs = [Run("".join(words[:head]), "same")], [Run("".join(other_words[:head]), "same")]
    for tag, i, j, k, m in matcher.get_opcodes():
        runs.append(Run("".join(words[head + i : head + j]), "same" if tag == "equal" else "removed"))
        other_runs.append(Run("".join(other_words[head + k : head + m]), "same" if tag == "equal" else "added"))
    runs.append(Run("".join(words[stop:]), "same"))
    other_runs.append(Run("".join(other_words[other_stop:]), "same"))
    return [run for run in runs if run.text], [run for run in other_runs if run.text]


def mark_shared(text: str, other_text: str, limit: int) -> tuple[list[Run], str]:
    """Return the part of a text around the words that another text also has, as runs in which these are `shared`.

    A word is shared if it is in a sequence of `_SHARED_WORDS` words that the other text has, in any case. The second
    value is a phrase with the number of omitted characters; empty if the whole text is returned.
    """
    words, keys = _WORD.findall(text), [word.casefold() for word in _LETTERS.findall(other_text)]
    size = min(_SHARED_WORDS, len(keys))
    known_sequences = {tuple(keys[start : start + size]) for start in range(len(keys) - size + 1)}
    # Skip signs, so that the same words with different punctuation are found.
    positions = [position for position, word in enumerate(words) if _LETTERS.search(word)]
    folded = [words[position].strip().casefold() for position in positions]
    shared = set[int]()
    for start in range(len(folded) - size + 1 if size else 0):
        if tuple(folded[start : start + size]) in known_sequences:
            shared.update(range(positions[start], positions[start + size - 1] + 1))
    first_word = _find_window(words, min(shared, default=0), limit)
    runs, length = list[Run](), 0
    for position in range(first_word, len(words)):
        if length >= limit:
            break
        kind, word = "shared" if position in shared else "", words[position][: limit - length]
        length += len(word)
        runs.append(Run(word, kind))
    omitted = len(text) - length
    return _join_runs(runs), f"{count_of(omitted, 'more character')} before and after" if omitted else ""


def _find_window(words: Sequence[str], first_shared: int, limit: int) -> int:
    """Return the first word to show: the text's first word, or one a little before the first shared word."""
    before = sum(map(len, words[:first_shared]))
    if before < limit // 2:
        return 0
    start, length = first_shared, 0
    while start and length < limit // 4:
        start -= 1
        length += len(words[start])
    return start


def _join_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the same text with one run for consecutive runs of a kind."""
    return [Run("".join(run.text for run in members), kind) for kind, members in groupby(runs, lambda run: run.kind)]


def _count_common(words: Sequence[str], other_words: Sequence[str]) -> int:
    return next(
        (number for number, (key, other_text) in enumerate(zip(words, other_words, strict=False)) if key != other_text),
        min(len(words), len(other_words)),
    )
