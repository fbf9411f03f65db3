"""The definition of a fault, and the table of faults: (pipeline, artifact, kind, function), expanded by seeded
places.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from dataprep_assets_tests.tools.drill.box import Box, Target
from dataprep_assets_tests.tools.drill.judge import Notice

Apply = Callable[[Box, Target, Random], str | None]
"""A function that damages the target of a box at a random place, which it may return."""


class InapplicableError(Exception):
    """The fault would change nothing here, such as in an empty file or in a shard without a neighbor."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of an artifact.

    Attributes:
        kind: Its kind, which is a row of the table.
        name: A description for users.
        target: The damaged artifact, which should be reported.
        apply: The function that applies it.
        place: Distinguishes faults of one function, and seeds its random numbers.
        examined: The partitions of the checks' run; None means that of the target.
        happens: Applies it during a build, and returns what detected it; replaces `apply`.
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
        """Its name with the artifact and the place."""
        return f"{self.kind}: {self.name}: {self.target} #{self.place}"

    def random(self, seed: int) -> Random:
        """Return its own random numbers, which do not depend on the other selected faults."""
        return Random(f"{seed} {self.label}")


def chosen(faults: Iterator[Fault], count: int | None, seed: int) -> list[Fault]:
    """Return some of the faults, spread over the kinds; all of them without a count."""
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
