"""A seeded generator of the sentences of the sample corpus."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import TypeVar

from dataprep_assets_tests.tools.sample.english import (
    FAMILY_END,
    GENUS_END,
    NAME_MIDDLE,
    NAME_START,
    PERSON_END,
    PLACE_END,
    WORDS,
)

Item = TypeVar("Item")

_SLOT = re.compile(r"\{([a-z_]+)\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")


class Voice:
    """A seeded speaker: draws words, keeps what has been bound, and fills ``{slot}`` templates.

    ``voice.say("{place} is {adjective}.")`` expands every slot, recursively; a slot that names no word list, no
    computed word and no bound name raises ``KeyError``, so a misspelt template cannot reach the corpus. ``{slot_up}``
    is the slot with a capital first letter.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(seed).random
        self._bound: dict[str, str | Sequence[str]] = {}
        self._computed: Mapping[str, Callable[[], str]] = {
            "place": self.place,
            "other": self.place,
            "person": self.person,
            "family": lambda: self._join(NAME_START, NAME_MIDDLE, FAMILY_END),
            "genus": lambda: self._join(NAME_START, NAME_MIDDLE, GENUS_END),
            "epithet": lambda: self._join(NAME_START, NAME_MIDDLE, ("ensis", "oides", "atus", "ana", "icola")).lower(),
            "handle": lambda: self._join(NAME_START, NAME_MIDDLE).lower() + str(self.between(1, 99)),
            "place_slug": lambda: self.place().lower(),
            "class_name": lambda: self.pick(WORDS["material"]).title() + self.pick(WORDS["thing"]).title(),
            "span": self.span,
            "year": lambda: str(self.between(1180, 2020)),
            "digit": lambda: str(self.between(1, 9)),
            "small": lambda: str(self.between(2, 40)),
            "medium": lambda: str(self.between(41, 990)),
            "large": lambda: str(self.between(1000, 98000)),
            "percent": lambda: f"{self.between(2, 98)}.{self.between(0, 9)}",
            "oven": lambda: str(5 * self.between(28, 46)),
            "two": lambda: f"{self.between(0, 59):02d}",
            "two_month": lambda: f"{self.between(1, 12):02d}",
            "two_day": lambda: f"{self.between(1, 28):02d}",
        }

    def between(self, low: int, high: int) -> int:
        """Return an integer from ``low`` to ``high``, both included."""
        return low + int(self._random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def log_between(self, low: int, high: int) -> int:
        """Return an integer whose logarithm is uniform: many short lengths, a few long ones."""
        return int(math.exp(math.log(low) + self._random() * (math.log(high) - math.log(low))))

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self._random() * len(items))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        dealt = list(items)
        for last in range(len(dealt) - 1, 0, -1):
            other = self.between(0, last)
            dealt[last], dealt[other] = dealt[other], dealt[last]
        return dealt

    def deal(self, items: Sequence[Item]) -> Iterator[Item]:
        """Yield endless draws in which no item repeats before every other has been drawn."""
        while True:
            yield from self.shuffled(items)

    def place(self) -> str:
        return self._join(NAME_START, NAME_MIDDLE, PLACE_END)

    def person(self) -> str:
        return self._join(NAME_START, NAME_MIDDLE, PERSON_END) + " " + self._join(NAME_START, NAME_MIDDLE, FAMILY_END)

    def span(self) -> str:
        start = self.between(1180, 1980)
        return f"{start}–{start + self.between(2, 40)}"

    def bind(self, **names: str | Sequence[str]) -> None:
        """Fix slots for the current document, to one value or to a word list, and forget those of the last document."""
        self._bound = names

    def say(self, template: str) -> str:
        text = _SLOT.sub(lambda match: self._word(match[1]), template)
        return _ARTICLE.sub(r"\1n ", text)

    def _word(self, slot: str) -> str:
        if slot.endswith("_up"):
            word = self._word(slot.removesuffix("_up"))
            return word[0].upper() + word[1:]
        if slot in self._bound:
            bound = self._bound[slot]
            return bound if isinstance(bound, str) else self.say(self.pick(bound))
        if slot in self._computed:
            return self._computed[slot]()
        return self.pick(WORDS[slot])

    def _join(self, *parts: Sequence[str]) -> str:
        return "".join(self.pick(part) for part in parts)
