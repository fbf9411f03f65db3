"""What a tagger that is known by its name is: columns, a version, and a function from texts to them.

The built-in taggers measure normalized text: what was written, without how it was typed. Line ends, white space,
invisible characters and the Unicode form depend on the program that wrote a file, so no decision about a document may
depend on them. A normalized text has:

- Unicode's composed form (NFC);
- `\\n` as its only line end;
- one blank between the words of a line, and none at its ends;
- at most one empty line in a row, and none at the ends of the text;
- no byte order mark and no other character that only directs how text is set.

The zero-width joiner and non-joiner stay, because they are spelling in Persian, in Indic scripts and in emoji.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from dataprep_assets.curation.planted import Case
from dataprep_assets.curation.table import Columns

VERSION = f"text 1, Unicode {unicodedata.unidata_version}"
"""Part of the version of every tagger that measures normalized texts."""

_DIRECTIONS = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""Soft hyphen, marks of direction, zero-width space, word joiner, byte order mark."""
_EMPTY_LINES = re.compile(r"\n{3,}")


def normalized(text: str) -> str:
    """Return the text in its normalized form; a text in this form is returned unchanged."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", _DIRECTIONS.sub("", text))
    lines = "\n".join([" ".join(line.split()) for line in text.splitlines()])
    return _EMPTY_LINES.sub("\n\n", lines).strip()


@dataclass(frozen=True, kw_only=True)
class TextTagger:
    """A tagger that looks at texts alone.

    One that is made by `of_each`, as all that are built in are, measures normalized texts (`normalized`). One that
    brings a `tag` of its own is given the texts as they are.

    Attributes:
        columns: Name → type of what it gives.
        tag: Column → a value for each text; None where there is none.
        version: Returns what decides its output beside the texts: a number that is increased with every change of a
            value, with the version of the library that it asks, if any.
        planted: Makes cases of which the truth is known; None where there is no truth.
    """

    columns: Columns
    tag: Callable[[Sequence[str]], Mapping[str, Sequence[Any]]]
    version: Callable[[], str]
    planted: Callable[[], Iterable[Case]] | None = None

    @classmethod
    def of_each(
        cls,
        columns: Columns,
        measured: Callable[[str], Sequence[Any]],
        version: Callable[[], str],
        planted: Callable[[], Iterable[Case]] | None = None,
    ) -> Self:
        """Return one that asks `measured` for the values of a normalized text, in the order of the columns.

        The version of the normalization becomes a part of its version.
        """

        def tag(texts: Sequence[str]) -> Mapping[str, Sequence[Any]]:
            # of no texts there are no rows to turn into columns, but every column has to be there
            values = zip(*(measured(normalized(text)) for text in texts), strict=True) if texts else [()] * len(columns)
            return dict(zip(columns, map(list, values), strict=True))

        return cls(columns=columns, tag=tag, version=lambda: f"{version()}, {VERSION}", planted=planted)
