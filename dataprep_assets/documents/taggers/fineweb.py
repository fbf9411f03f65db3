"""The quality heuristics of FineWeb (Penedo et al. 2024, section 3.6), as numbers that rules compare.

Lines without anything but white space do not count. A text without a line has no shares: null.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dataprep_assets.documents.taggers.repetition import repeated
from dataprep_assets.documents.text_tagger import TextTagger

SHORT_LINE = 30
"""Characters of a line that is still short."""
TERMINAL = tuple(".!?…。！？｡．؟۔।॥։።፧")
"""Marks that end a sentence, of the scripts with most text on the web."""


def measured(text: str) -> tuple[float | None, float | None, float | None, float | None]:
    """What the columns say of one text, in their order."""
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return None, None, None, None
    characters = len(text) - text.count("\n")
    return (
        sum(line.endswith(TERMINAL) for line in lines) / len(lines),
        sum(len(line) <= SHORT_LINE for line in lines) / len(lines),
        repeated(lines)[1] / characters,
        text.count("\n") / len(text.split()),
    )


def _tag(texts: Sequence[str]) -> Mapping[str, Sequence[Any]]:
    columns = zip(*map(measured, texts), strict=True) if texts else [()] * len(TAGGER.columns)
    return dict(zip(TAGGER.columns, map(list, columns), strict=True))


TAGGER = TextTagger(
    columns={
        "punctuated_lines": "number",
        "short_lines": "number",
        "duplicate_line_characters": "number",
        "newlines_per_word": "number",
    },
    tag=_tag,
    version=lambda: "1",
)
