"""The quality heuristics of FineWeb (Penedo et al. 2024, section 3.6).

A punctuated line ends with a mark that ends a sentence. A short line has at most 30 characters. Lines with only white
space do not count. Words are separated by white space, unless the setting `words` names a language. A text without
lines has null shares.

With the setting `c4`, only the lines that C4 keeps are measured, as in FineWeb's pipeline, where C4's filter removes
the other lines first.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.languages.word_splitter import describe_words, find_splitter
from dataprep_assets.curation.taggers.c4 import VERSION as C4_VERSION
from dataprep_assets.curation.taggers.c4 import find_kept_lines, write_kept_texts
from dataprep_assets.curation.text_tagger import TextTagger

if TYPE_CHECKING:
    from dataprep_assets.curation.languages.word_splitter import WordSplitter
    from dataprep_assets.curation.text_arrays.split_texts import Flags, SplitTexts

SHORT_LINE = 30
"""Maximum number of characters of a short line."""
_MARKS = """
    21 2e 3f 589 61d-61f 6d4 700-702 7f9 837 839 83d-83e 964-965 104a-104b 1362 1367-1368 166e 1735-1736
    17d4-17d6 17d9-17da 1803 1809 1944-1945 1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e 1c3b-1c3c 1c7e-1c7f 203c-203d
    2047-2049 2e2e 2e3c 2e53-2e54 3002 a4ff a60e-a60f a6f3 a6f7 a876-a877 a8ce-a8cf a92f a9c8-a9c9 aa5d-aa5f
    aaf0-aaf1 abeb fe52 fe56-fe57 ff01 ff0e ff1f ff61 10a56-10a57 10f55-10f59 10f86-10f89 11047-11048 110be-110c1
    11141-11143 111c5-111c6 111cd 111de-111df 11238-11239 1123b-1123c 112a9 1144b-1144c 115c2-115c3 115c9-115d7
    11641-11642 1173c-1173e 11944 11946 11a42-11a43 11a9b-11a9c 11c41-11c42 11ef7-11ef8 11f43-11f44 16a6e-16a6f
    16af5 16b37-16b38 16b44 16e98 1bc9f 1da88
"""
TERMINAL = frozenset(
    chr(mark)
    for first, _, last in (word.partition("-") for word in _MARKS.split())
    for mark in range(int(first, 16), int(last or first, 16) + 1)
)
"""Marks that end a sentence, in the scripts that FineWeb covers."""

_DESCRIPTIONS = {
    "punctuated_lines": "Share of lines that end with a mark that ends a sentence.",
    "short_lines": f"Share of lines with at most {SHORT_LINE} characters.",
    "duplicate_line_characters": "Share of characters in lines that occur earlier in the text.",
    "newlines_per_word": "Number of line ends per word.",
}


@cache
def _build_terminal_table() -> "Flags":
    from dataprep_assets.curation.text_arrays.split_texts import build_table

    return build_table("".join(TERMINAL))


def measure_texts(
    split: "SplitTexts", splitter: "WordSplitter | None" = None, c4: Mapping[str, Any] | None = None
) -> Sequence[Sequence[Any]]:
    """Return the columns of some texts, in column order."""
    import numpy as np

    from dataprep_assets.curation.text_arrays.split_texts import SplitTexts, divide

    if c4 is not None:
        split = SplitTexts(write_kept_texts(split, find_kept_lines(split, **c4)), split.compose)
    sizes = split.line_ends - split.line_starts
    is_filled = sizes > 0
    lines = split.sum_lines(is_filled)
    is_punctuated = is_filled & _build_terminal_table()[split.codes[split.line_ends - 1]]
    line_ends = np.maximum(split.line_counts - 1, 0)
    return (
        divide(split.sum_lines(is_punctuated), lines),
        divide(split.sum_lines(is_filled & (sizes <= SHORT_LINE)), lines),
        divide(split.repeated_lines[1], split.sum_lines(sizes)),
        divide(line_ends, split.split_words(splitter).word_counts),
    )


def build_tagger(*, words: str | None = None, c4: Mapping[str, Any] | None = None) -> TextTagger:
    """Return the tagger with its settings."""
    return TextTagger.with_measures(
        columns={
            "punctuated_lines": "number",
            "short_lines": "number",
            "duplicate_line_characters": "number",
            "newlines_per_word": "number",
        },
        measure=partial(measure_texts, splitter=find_splitter(words), c4=c4),
        version=lambda: f"2{describe_words(words)}{'' if c4 is None else f', c4 {C4_VERSION}'}",
        configure=build_tagger,
        descriptions=_DESCRIPTIONS,
    )


TAGGER = build_tagger()
