"""Planted cases: known positives and hard negatives in a corpus's own documents, to measure recall and precision.

A built-in tagger declares its cases (`TextTagger.planted`). Each case is inserted into a document of the dataset, so
that its context is realistic. The tagger processes the document with and without the case. Recall is the share of cases
that are found. Hard negatives are texts that only look like a case. Precision is the share of true cases among all
texts that the tagger takes for a case. The cases are the same in every run.

Entry points: `PlantedCase`, `count_found`, `sum_by_kind`, `PlantedCounts`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

Values = Mapping[str, Any]
"""Column → value, for one text."""
Look = Callable[[Sequence[str]], Mapping[str, Sequence[Any]]]
_CARRIER = (
    "The harbour was quiet on that morning, and the keeper of the lighthouse wrote a long letter to his sister about "
    "the weather, the price of rope and the two dogs that slept beside the stove."
)
"""Used if no document of the dataset can be read."""
MAX_CHARACTERS = 2_000
"""Maximum number of characters of a document that serve as the context of a case."""


@dataclass(frozen=True, kw_only=True)
class PlantedCase:
    """A text with a known result.

    Attributes:
        kind: Kind and form of the case: `phones, German`.
        text: The text.
        is_found: Returns whether the tagger found the case, given the document's columns without and with it.
        datum: The part of the text that the tagger must find, if it finds parts.
        positive: Whether it is a true case; false for a hard negative.
        alone: Whether it is a whole document, instead of a part of a document.
    """

    kind: str
    text: str
    is_found: Callable[[Values, Values], bool]
    datum: str = ""
    positive: bool = True
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class PlantedCounts:
    """Counts of planted and found cases, and of hard negatives in total and mistaken for a case."""

    planted: int = 0
    found: int = 0
    negatives: int = 0
    mistaken: int = 0

    def add_case(self, case: PlantedCase, is_found: bool) -> Self:
        """Return the counts with one more case."""
        if case.positive:
            return replace(self, planted=self.planted + 1, found=self.found + is_found)
        return replace(self, negatives=self.negatives + 1, mistaken=self.mistaken + is_found)

    def __add__(self, other: Self) -> Self:
        return replace(self, **{name: value + getattr(other, name) for name, value in vars(self).items()})

    @property
    def recall(self) -> float:
        """Share of the cases that were found; 1 without cases."""
        return self.found / self.planted if self.planted else 1.0

    @property
    def precision(self) -> float:
        """Share of true cases among all findings; 1 without findings."""
        total = self.found + self.mistaken
        return self.found / total if total else 1.0


def count_found(cases: Sequence[PlantedCase], tag_texts: Look, documents: Sequence[str]) -> dict[str, PlantedCounts]:
    """Return the counts of each kind of case, as found by a tagger.

    Args:
        cases: The cases.
        tag_texts: The tagger: texts → column → values.
        documents: Texts of the dataset, into which cases are inserted in turn; may be empty.
    """
    values_before = choose_carriers(documents, len(cases))
    values_after = [
        case.text if case.alone else plant(carrier, case.text)
        for carrier, case in zip(values_before, cases, strict=True)
    ]
    tags_before, tags_after = tag_texts(values_before), tag_texts(values_after)
    counts: dict[str, PlantedCounts] = {}
    for index, case in enumerate(cases):
        is_found = case.is_found(
            *({name: values[index] for name, values in tags.items()} for tags in (tags_before, tags_after))
        )
        counts[case.kind] = counts.get(case.kind, PlantedCounts()).add_case(case, is_found)
    return counts


def sum_by_kind(counts: Mapping[str, PlantedCounts]) -> dict[str, PlantedCounts]:
    """Return the counts by kind, summed over forms, such as `phones, German` and `phones, French`."""
    kind_counts: dict[str, PlantedCounts] = {}
    for name, form_counts in counts.items():
        kind = name.partition(",")[0]
        kind_counts[kind] = kind_counts.get(kind, PlantedCounts()) + form_counts
    return kind_counts


def choose_carriers(documents: Sequence[str], count: int) -> list[str]:
    """Return the texts into which a number of cases are inserted: the documents in turn, or a text of this package."""
    around = [text[:MAX_CHARACTERS] for text in documents if text.strip()] or [_CARRIER]
    return [around[number % len(around)] for number in range(count)]


def plant(carrier: str, text: str) -> str:
    """Insert a text as a separate paragraph, at the first line end after the middle of a document."""
    offset = carrier.find("\n", len(carrier) // 2)
    offset = len(carrier) if offset < 0 else offset
    return f"{carrier[:offset]}\n\n{text}\n\n{carrier[offset:].lstrip(chr(10))}"
