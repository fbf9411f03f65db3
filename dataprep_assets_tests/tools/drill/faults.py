"""What a fault is, and the table of them: (pipeline, artifact, kind, function), expanded by seeded places."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from dataprep_assets_tests.tools.drill.box import Box, Target
from dataprep_assets_tests.tools.drill.judge import Notice

Apply = Callable[[Box, Target, Random], str | None]
"""Damages the target of a box, at a place drawn from the random numbers; may say where."""


class InapplicableError(Exception):
    """The fault would change nothing here: a file without bytes, a shard without a neighbor."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        kind: Of what kind it is, a row of the table.
        name: What it does, for a person.
        target: The artifact that is damaged, and should be named.
        apply: Does it.
        place: Tells faults of one function apart, and seeds its random numbers.
        examined: The partitions of the checks' run; None: that of the target.
        happens: Does it while something is built, and says who noticed; instead of `apply`.
    """

    kind: str
    name: str
    target: Target
    apply: Apply = field(repr=False, default=lambda box, target, random: None)
    place: int = 0
    examined: Sequence[str] | None = None
    happens: Callable[[Box, Target, Random], Notice] | None = field(repr=False, default=None)

    @property
    def label(self) -> str:
        """Its name, the artifact and the place."""
        return f"{self.kind}: {self.name}: {self.target} #{self.place}"

    def random(self, seed: int) -> Random:
        """Its own random numbers: which other faults are tried changes nothing."""
        return Random(f"{seed} {self.label}")


def chosen(faults: Iterator[Fault], count: int | None, seed: int) -> list[Fault]:
    """Some of the faults, spread over the kinds; all of them without a count."""
    every = list(faults)
    if count is None or count >= len(every):
        return every
    by_kind: dict[str, list[Fault]] = {}
    for fault in sorted(every, key=lambda f: Random(f"{seed} {f.label}").random()):
        by_kind.setdefault(fault.kind, []).append(fault)
    picked: list[Fault] = []
    while len(picked) < count:
        for kind in sorted(by_kind):
            if by_kind[kind] and len(picked) < count:
                picked.append(by_kind[kind].pop())
    return picked
