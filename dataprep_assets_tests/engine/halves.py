"""Find by bisection the few changes, among many, that make a check fail; if no change does, one evaluation is
enough.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def find_culprits(changes: Sequence[T], red: Callable[[Sequence[T]], set[str] | None]) -> Iterator[tuple[T, set[str]]]:
    """Yield each change that makes checks fail by itself, with the names of the checks.

    Args:
        changes: All changes, which are applied together first, then in halves.
        red: Applies some changes and returns the failing checks; None if the changes are not allowed together or
            make the artifact out of date.
    """
    names = red(changes) if changes else set()
    if names == set():
        return
    if len(changes) > 1:
        middle = len(changes) // 2
        yield from find_culprits(changes[:middle], red)
        yield from find_culprits(changes[middle:], red)
    elif names:
        yield changes[0], names
