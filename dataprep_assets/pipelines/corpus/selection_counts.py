"""Counts of the documents of a shard: of each source, and what each rule drops of it."""

from collections.abc import Iterable, Sequence

Counts = tuple[int, int]
"""Documents and their bytes of text."""
NOTHING: Counts = (0, 0)


class Counted:
    """Counts of the rows of a shard, as in its facts."""

    def __init__(self) -> None:
        self.sources: dict[str, Counts] = {}
        self.by_rule: dict[str, dict[str, Counts]] = {}

    def add(self, sources: Sequence[str], sizes: Sequence[int], rules: Sequence[str | None]) -> None:
        """Count documents, each with its source, its bytes and the rule that drops it, if any."""
        for source, size, rule in zip(sources, sizes, rules, strict=True):
            self.sources[source] = added(self.sources.get(source, NOTHING), (1, size))
            if rule is not None:
                of_source = self.by_rule.setdefault(source, {})
                of_source[rule] = added(of_source.get(rule, NOTHING), (1, size))


def added(one: Counts, other: Counts) -> Counts:
    """The sum of two."""
    return one[0] + other[0], one[1] + other[1]


def folded(counts: Iterable[Counts]) -> Counts:
    """The sum of many."""
    total = NOTHING
    for one in counts:
        total = added(total, one)
    return total


def percent(part: int, whole: int) -> float:
    """A part in percent of a whole."""
    return round(100 * part / whole, 3) if whole else 0.0


def pair(part: Counts, whole: Counts, at: int) -> Counts:
    """Documents (0) or bytes (1) of two counts."""
    return part[at], whole[at]
