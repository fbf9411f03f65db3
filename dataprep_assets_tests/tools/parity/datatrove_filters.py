"""Return the decisions of datatrove's own filters, from a separate process: `python -m …parity.datatrove_filters
ANSWER`.

It reads a JSON list of texts from standard input. Each filter reads each text twice: as installed, with the words and
sentences of spaCy; and in the form that our taggers measure, with their words, symbols and sentences. The answer has
both lists for each filter: the reason for dropping a text, or null.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    c4_filters,
    fineweb_quality_filter,
    gopher_quality_filter,
    gopher_repetition_filter,
)

from dataprep_assets.curation.taggers.c4 import count_sentences
from dataprep_assets.curation.text_tagger import normalize_text

FILTERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "gopher": (GopherQualityFilter, gopher_quality_filter),
    "repetition": (GopherRepetitionFilter, gopher_repetition_filter),
    "c4": (C4QualityFilter, c4_filters),
    "fineweb": (FineWebQualityFilter, fineweb_quality_filter),
}
"""Name → the filter with its own defaults, and its module."""


class _Symbols:
    """A replacement of datatrove's list of punctuation: every character that is neither a letter nor a digit."""

    def __contains__(self, character: str) -> bool:
        return not character.isalnum()


def _as_ours(module: Any) -> None:
    """Make a filter's module use our words, symbols and sentences."""
    if hasattr(module, "split_into_words"):
        module.split_into_words = lambda text, _: text.split()
    if hasattr(module, "split_into_sentences"):
        module.split_into_sentences = lambda line, _: [line] * count_sentences(line)
    if hasattr(module, "PUNCTUATION_SET"):
        module.PUNCTUATION_SET = _Symbols()


def _said(made: Any, text: str) -> str | None:
    try:
        found = made.filter(Document(text=text, id="0"))
    except ZeroDivisionError:  # the text has no word
        return "no_words"
    kept, reason = found if isinstance(found, tuple) else (found, "dropped")
    return None if kept else str(reason)


def main(answer: Path) -> None:
    """Filter the texts, and write the answer."""
    texts = json.load(sys.stdin)
    found: dict[str, list[list[str | None]]] = {}
    for name, (make, module) in FILTERS.items():
        made = make()
        as_installed = [_said(made, text) for text in texts]
        _as_ours(module)
        found[name] = [as_installed, [_said(made, normalize_text(text)) for text in texts]]
    answer.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
