"""Differences of two texts, word by word."""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from dataprep_assets.site.samples.facts import Run

_WORD = re.compile(r"\s+|\w+|[^\w\s]")


def mark_differences(first: str, second: str) -> tuple[list[Run], list[Run]]:
    """Return both texts as runs: `same` in both, `removed` only in the first, `added` only in the second.

    The texts should be short (`cut_text`), because the time grows with the product of their lengths.
    """
    words, other_words = _WORD.findall(first), _WORD.findall(second)
    # Compare only the parts between the common beginning and end, because near-duplicates mostly differ in few places.
    head = _count_common(words, other_words)
    tail = _count_common(words[head:][::-1], other_words[head:][::-1])
    stop, other_stop = len(words) - tail, len(other_words) - tail
    middle, other_middle = words[head:stop], other_words[head:other_stop]
    runs, other_runs = [Run("".join(words[:head]), "same")], [Run("".join(other_words[:head]), "same")]
    for tag, i, j, k, m in SequenceMatcher(None, middle, other_middle, autojunk=False).get_opcodes():
        runs.append(Run("".join(middle[i:j]), "same" if tag == "equal" else "removed"))
        other_runs.append(Run("".join(other_middle[k:m]), "same" if tag == "equal" else "added"))
    runs.append(Run("".join(words[stop:]), "same"))
    other_runs.append(Run("".join(other_words[other_stop:]), "same"))
    return [run for run in runs if run.text], [run for run in other_runs if run.text]


def _count_common(words: Sequence[str], other_words: Sequence[str]) -> int:
    return next(
        (number for number, (one, other) in enumerate(zip(words, other_words, strict=False)) if one != other),
        min(len(words), len(other_words)),
    )
