"""Return the decisions of the filters that a published recipe runs, from a separate process with datatrove:
`python -m …parity.datatrove_recipes ANSWER`.

It reads a JSON list of jobs from standard input: the recipe, the texts, the settings of the language, and which of our
definitions the filters use. The answer has datatrove's version, and for each job a list: the reason for dropping each
text, or null.
"""

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    gopher_quality_filter,
)
from datatrove.utils.word_tokenizers import KiwiTokenizer

from dataprep_assets.curation.text_tagger import normalize_text

# Use Kiwi's default model, because the model that datatrove names is no longer part of Kiwi's packages.
KiwiTokenizer.__init__.__defaults__ = (None,)
PUNCTUATION = gopher_quality_filter.PUNCTUATION_SET


class _Symbols:
    """A replacement of datatrove's list of punctuation: every character that is neither a letter nor a digit."""

    def __contains__(self, character: str) -> bool:
        return not character.isalnum()


def build_filters(recipe: str, settings: dict[str, Any]) -> list[Any]:
    """Return the filters of a published pipeline, in its order, with its settings."""
    name, _, language = recipe.partition("/")
    if name == "gopher":
        return [GopherRepetitionFilter(), GopherQualityFilter()]
    if name == "c4":
        return [C4QualityFilter(min_num_sentences=3, min_words_per_line=5)]
    if name == "fineweb":
        return [
            GopherRepetitionFilter(),
            GopherQualityFilter(),
            C4QualityFilter(filter_no_terminal_punct=False),
            FineWebQualityFilter(),
        ]
    return [
        GopherRepetitionFilter(
            language=language,
            dup_para_frac=0,
            dup_line_char_frac=0,
            dup_para_char_frac=0,
            dup_line_frac=settings["dup_line_frac"],
            top_n_grams=settings["top_n_grams"],
            dup_n_grams=settings["dup_n_grams"],
        ),
        FineWebQualityFilter(
            language=language,
            short_line_thr=999,
            char_duplicates_ratio=0.1,
            line_punct_thr=settings["line_punct_thr"],
            new_line_ratio=settings["new_line_ratio"],
        ),
        GopherQualityFilter(
            language=language,
            max_avg_word_length=settings["max_avg_word_length"],
            min_avg_word_length=settings["min_avg_word_length"],
            stop_words=settings["stopwords"],
            max_non_alpha_words_ratio=settings["max_non_alpha_words_ratio"],
            min_stop_words=2,
        ),
    ]


def decide(filters: Sequence[Any], text: str) -> str | None:
    """Return the reason of the first filter that drops a text; None if all keep it. A filter may rewrite the text."""
    document = Document(text=text, id="0")
    for one in filters:
        try:
            answer = one.filter(document)
        except ZeroDivisionError:  # the text has no word
            return "no_words"
        kept, reason = answer if isinstance(answer, tuple) else (answer, "dropped")
        if not kept:
            return str(reason)
    return None


def main(answer: Path) -> None:
    """Filter the texts of each job, and write the answer."""
    decisions = []
    for job in json.load(sys.stdin):
        filters, ours = build_filters(job["recipe"], job["settings"]), set(job["ours"])
        gopher_quality_filter.PUNCTUATION_SET = _Symbols() if "symbols" in ours else PUNCTUATION
        texts = [normalize_text(text) if "normalized text" in ours else text for text in job["texts"]]

        decisions.append([decide(filters, text) for text in texts])
    answer.write_text(json.dumps({"version": version("datatrove"), "decisions": decisions}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
