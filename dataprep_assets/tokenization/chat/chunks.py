"""A rendered conversation: text cut where answers begin and end."""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Chunk", "Rendered"]


class Chunk(NamedTuple):
    """Rendered text between two cuts, and whether its tokens are trained."""

    text: str
    trained: bool


@dataclass(frozen=True, slots=True)
class Rendered:
    """One conversation: the chunks of each of its sequences.

    `mark` is None, or the character around placeholders: `mark + str(i) + mark` stands for special token `i`.
    """

    sequences: tuple[tuple[Chunk, ...], ...]
    mark: str | None = None
