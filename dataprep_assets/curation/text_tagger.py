"""Definition of a named tagger: columns, a version, and a function from texts to columns.

The built-in taggers measure normalized text, which is independent of how it was typed. Line endings, white space,
invisible characters and the Unicode form depend on the program that wrote a file, so decisions about documents must not
depend on them. A normalized text has:

- Unicode's composed form (NFC);
- `\\n` as its only line ending;
- one blank between the words of a line, and no blanks at its ends;
- at most one empty line in a row, and none at the ends of the text;
- no byte order mark and no other character that only controls layout.

The zero-width joiner and non-joiner are kept, because they are spelling in Persian, in Indic scripts and in emoji.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from dataprep_assets.curation.planted import PlantedCase
from dataprep_assets.curation.table import Columns

VERSION = f"text 1, Unicode {unicodedata.unidata_version}"
"""Part of the version of every tagger that measures normalized texts."""

_DIRECTIONS = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""Soft hyphen, direction marks, zero-width space, word joiner, byte order mark."""
_EMPTY_LINES = re.compile(r"\n{3,}")


def normalize_text(text: str) -> str:
    """Return the text in its normalized form; a text in this form is returned unchanged."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", _DIRECTIONS.sub("", text))
    lines = "\n".join([" ".join(line.split()) for line in text.splitlines()])
    return _EMPTY_LINES.sub("\n\n", lines).strip()


@dataclass(frozen=True, kw_only=True)
class TextTagger:
    """A tagger that only uses texts.

    A tagger built by `with_measure`, like all built-in ones, measures normalized texts (`normalize_text`). A tagger
    with its own `tag` function gets the unchanged texts.

    Attributes:
        columns: Name → type of its columns.
        tag: Returns column → a value for each of the given texts; None for a missing value.
        version: Returns the version of its output: a number that increases with every change to a value, and a
            library's version if it uses one.
        planted: Returns planted cases with known results; None if there are no such cases.
    """

    columns: Columns
    tag: Callable[[Sequence[str]], Mapping[str, Sequence[Any]]]
    version: Callable[[], str]
    planted: Callable[[], Iterable[PlantedCase]] | None = None

    @classmethod
    def with_measure(
        cls,
        columns: Columns,
        measure: Callable[[str], Sequence[Any]],
        version: Callable[[], str],
        planted: Callable[[], Iterable[PlantedCase]] | None = None,
    ) -> Self:
        """Return a tagger that calls `measure` for the values of each normalized text, in column order.

        The version of the normalization is part of its version.
        """

        def tag(texts: Sequence[str]) -> Mapping[str, Sequence[Any]]:
            # Without texts, `zip` would return no columns, but every column must exist.
            values = (
                zip(*(measure(normalize_text(text)) for text in texts), strict=True) if texts else [()] * len(columns)
            )
            return dict(zip(columns, map(list, values), strict=True))

        return cls(columns=columns, tag=tag, version=lambda: f"{version()}, {VERSION}", planted=planted)
