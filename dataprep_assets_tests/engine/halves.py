"""A search by halves for the few changes, of many, that turn a check red: one evaluation where none does."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def culprits(changes: Sequence[T], red: Callable[[Sequence[T]], set[str] | None]) -> Iterator[tuple[T, set[str]]]:
    """Yield each change that turns checks red by itself, with their names.

    Args:
        changes: They are made together first, then in halves.
        red: Makes some changes and returns the checks that fail; None where it cannot tell, because the changes are not
            allowed together or make the artifact out of date.
    """
    names = red(changes) if changes else set()
    if names == set():
        return
    if len(changes) > 1:
        middle = len(changes) // 2
        yield from culprits(changes[:middle], red)
        yield from culprits(changes[middle:], red)
    elif names:
        yield changes[0], names
