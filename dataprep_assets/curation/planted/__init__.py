"""Cases of which the truth is known, planted into a corpus's own documents: what a tagger finds of them, and no more.

A built-in tagger names its cases (`TextTagger.planted`). Each is put into a document of the dataset, so that
what surrounds it is what the tagger sees every day; the tagger looks at the document with it and without it. Recall is
the share of cases that are found; precision that of what is found among cases and hard negatives: what only looks like
a case. The cases are the same each time.

Entry points: `Case`, `found_of`, `by_kind`, `PlantedCounts`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

Values = Mapping[str, Any]
"""Column → value, of one text."""
Look = Callable[[Sequence[str]], Mapping[str, Sequence[Any]]]
_CARRIER = (
    "The harbour was quiet on that morning, and the keeper of the lighthouse wrote a long letter to his sister about "
    "the weather, the price of rope and the two dogs that slept beside the stove."
)
"""Where no document of the dataset can be read."""
MOST_CHARACTERS = 2_000
"""Of a document into which a case is put: so many are enough around it."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A text of which the truth is known.

    Attributes:
        kind: What it is a case of, with its form: `phones, German`.
        text: The text.
        is_found: Says by the columns of the document without it and with it whether the tagger took it for a case.
        positive: Whether it is one; false for a hard negative.
        alone: Whether it is a document by itself, instead of a part of one.
    """

    kind: str
    text: str
    is_found: Callable[[Values, Values], bool]
    positive: bool = True
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class PlantedCounts:
    """Of some cases: those planted and found, and the hard negatives, with those that were taken for cases."""

    planted: int = 0
    found: int = 0
    negatives: int = 0
    mistaken: int = 0

    def with_case(self, case: Case, found: bool) -> Self:
        """With one case more."""
        if case.positive:
            return replace(self, planted=self.planted + 1, found=self.found + found)
        return replace(self, negatives=self.negatives + 1, mistaken=self.mistaken + found)

    def __add__(self, other: Self) -> Self:
        return replace(self, **{name: value + getattr(other, name) for name, value in vars(self).items()})

    @property
    def recall(self) -> float:
        """Share of the cases that were found; 1 without cases."""
        return self.found / self.planted if self.planted else 1.0

    @property
    def precision(self) -> float:
        """Share of cases among what was found; 1 if nothing was."""
        total = self.found + self.mistaken
        return self.found / total if total else 1.0


def found_of(cases: Sequence[Case], look: Look, documents: Sequence[str]) -> dict[str, PlantedCounts]:
    """Return what a tagger finds of cases: kind → counts.

    Args:
        cases: The cases.
        look: The tagger: texts → column → values.
        documents: Texts of the dataset, into which cases are put in turn; none are needed.
    """
    around = [text[:MOST_CHARACTERS] for text in documents if text.strip()] or [_CARRIER]
    before, after = [], []
    for number, case in enumerate(cases):
        carrier = around[number % len(around)]
        before.append(carrier)
        after.append(case.text if case.alone else _planted(carrier, case.text))
    tags_before, tags_after = look(before), look(after)
    counts: dict[str, PlantedCounts] = {}
    for index, case in enumerate(cases):
        is_found = case.is_found(
            *({name: values[index] for name, values in tags.items()} for tags in (tags_before, tags_after))
        )
        counts[case.kind] = counts.get(case.kind, PlantedCounts()).with_case(case, is_found)
    return counts


def by_kind(counts: Mapping[str, PlantedCounts]) -> dict[str, PlantedCounts]:
    """The same without the forms: `phones, German` and `phones, French` together."""
    kind_counts: dict[str, PlantedCounts] = {}
    for name, form_counts in counts.items():
        kind = name.partition(",")[0]
        kind_counts[kind] = kind_counts.get(kind, PlantedCounts()) + form_counts
    return kind_counts


def _planted(carrier: str, text: str) -> str:
    """A document with a text in a paragraph of its own, at the first end of a line behind its middle."""
    offset = carrier.find("\n", len(carrier) // 2)
    offset = len(carrier) if offset < 0 else offset
    return f"{carrier[:offset]}\n\n{text}\n\n{carrier[offset:].lstrip(chr(10))}"
