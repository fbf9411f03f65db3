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
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from dataprep_assets.curation.planted import PlantedCase
from dataprep_assets.curation.table import Columns

if TYPE_CHECKING:
    from dataprep_assets.curation.text_arrays.split_texts import SplitTexts

VERSION = f"text 1, Unicode {unicodedata.unidata_version}"
"""Part of the version of every tagger that measures normalized texts."""

_DIRECTIONS = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
"""Soft hyphen, direction marks, zero-width space, word joiner, byte order mark."""
_EMPTY_LINES = re.compile(r"\n{3,}")


def normalize_text(text: str) -> str:
    """Return the text in its normalized form; a text in this form is returned unchanged."""
    lines = "\n".join([" ".join(line.split()) for line in compose_text(text).splitlines()])
    return _EMPTY_LINES.sub("\n\n", lines).strip()


def compose_text(text: str) -> str:
    """Return the text in its normalized form except for white space."""
    return text if text.isascii() else unicodedata.normalize("NFC", _DIRECTIONS.sub("", text))


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
        configure: Returns the tagger with the settings of a declaration; None if it has no settings.
        descriptions: Column → a sentence about it.
    """

    columns: Columns
    tag: Callable[[Sequence[str]], Mapping[str, Sequence[Any]]]
    version: Callable[[], str]
    planted: Callable[[], Iterable[PlantedCase]] | None = None
    configure: "Callable[..., TextTagger] | None" = None
    descriptions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def with_measure(
        cls,
        columns: Columns,
        measure: Callable[[str], Sequence[Any]],
        version: Callable[[], str],
        planted: Callable[[], Iterable[PlantedCase]] | None = None,
        descriptions: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Return a tagger that calls `measure` for the values of each normalized text, in column order.

        The version of the normalization is part of its version.
        """

        def measure_each(split: "SplitTexts") -> Sequence[Sequence[Any]]:
            return [*zip(*map(measure, split.texts), strict=True)]

        return cls.with_measures(columns, measure_each, version, planted, descriptions=descriptions)

    @classmethod
    def with_measures(
        cls,
        columns: Columns,
        measure: Callable[["SplitTexts"], Sequence[Sequence[Any]]],
        version: Callable[[], str],
        planted: Callable[[], Iterable[PlantedCase]] | None = None,
        configure: "Callable[..., TextTagger] | None" = None,
        descriptions: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Return a tagger that calls `measure` for the columns of some normalized texts, in column order.

        The taggers of a batch share the work of normalizing and splitting its texts.
        """

        def tag(texts: Sequence[str]) -> Mapping[str, Sequence[Any]]:
            # Import NumPy here, because commands that only read the columns need no NumPy.
            from dataprep_assets.curation.text_arrays.split_texts import split_batch

            values: dict[str, list[Any]] = {name: [None] * len(texts) for name in columns}
            for indices, split in split_batch(texts, compose_text):
                for column, new_values in zip(values.values(), measure(split), strict=True):
                    for index, value in zip(indices, new_values, strict=True):
                        column[index] = value
            return values

        return cls(
            columns=columns,
            tag=tag,
            version=lambda: f"{version()}, {VERSION}",
            planted=planted,
            configure=configure,
            descriptions=descriptions,
        )
