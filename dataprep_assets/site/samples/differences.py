"""Differences of two texts, word by word."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from dataprep_assets.site.samples.facts import Run

_WORD = re.compile(r"(?:\w+|[^\w\s])\s*|\s+")
"""A word or a sign with the white space after it."""


def mark_differences(first: str, second: str) -> tuple[list[Run], list[Run]]:
    """Return both texts as runs: `same` in both, `removed` only in the first, `added` only in the second.

    Differences in white space are not marked, because documents that differ only in it are equal for deduplication. The texts should be short (`cut_text`), because the time grows with the product of their lengths.
    """
    words, other_words = _WORD.findall(first), _WORD.findall(second)
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


def _count_common(words: Sequence[str], other_words: Sequence[str]) -> int:
    return next(
        (number for number, (one, other) in enumerate(zip(words, other_words, strict=False)) if one != other),
        min(len(words), len(other_words)),
    )
