"""A rendered conversation: text cut where answers begin and end."""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Chunk", "Filled", "Outline", "Rendered", "Sequences"]


class Chunk(NamedTuple):
    """Rendered text between two cuts, and whether its tokens are trained."""

    text: str
    trained: bool


Sequences = tuple[tuple[Chunk, ...], ...]
"""The chunks of each sequence of a conversation."""


class Outline:
    """What the sequences of many conversations have in common: chunks with holes in their texts.

    `sequences` are those of `Rendered`, with the parts of each chunk in place of its text: a part is a text that is not
    empty, or the number of a hole. There are never two texts side by side.
    """

    def __init__(self, sequences: tuple[tuple[tuple[tuple[str | int, ...], bool], ...], ...]) -> None:
        self.sequences = sequences
        parts = [part for chunks in sequences for parts, _ in chunks for part in parts]
        self.parts = len(parts)
        self._holes = [part for part in parts if isinstance(part, int)]
        self._own_characters = sum(len(part) for part in parts if isinstance(part, str))

    def filled(self, values: list[str]) -> Sequences:
        """The sequences with `values[i]` in hole `i`."""
        return tuple(
            tuple(
                Chunk("".join([part if isinstance(part, str) else values[part] for part in parts]), trained)
                for parts, trained in chunks
            )
            for chunks in self.sequences
        )

    def characters(self, values: list[str]) -> int:
        """Characters of all chunks of `filled`."""
        return self._own_characters + sum([len(values[hole]) for hole in self._holes])


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """An outline with `values[i]` in its hole `i`. No value holds a special token."""

    outline: Outline
    values: list[str]

    @property
    def sequences(self) -> Sequences:
        """The chunks of each sequence."""
        return self.outline.filled(self.values)


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """One conversation: the chunks of each of its sequences, as they are or as the outline that they fill.

    `mark` is None, or the character around placeholders: `mark + str(i) + mark` stands for special token `i`.
    """

    given: Sequences | Filled
    mark: str | None = None

    @property
    def sequences(self) -> Sequences:
        """The chunks of each of its sequences."""
        return self.given.sequences if isinstance(self.given, Filled) else self.given

    @property
    def turns(self) -> int:
        """Number of its sequences."""
        return len(self.given.outline.sequences if isinstance(self.given, Filled) else self.given)

    @property
    def characters(self) -> int:
        """Characters of all its chunks."""
        if isinstance(self.given, Filled):
            return self.given.outline.characters(self.given.values)
        return sum(len(chunk.text) for chunks in self.given for chunk in chunks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rendered) and (self.sequences, self.mark) == (other.sequences, other.mark)

    def __hash__(self) -> int:
        return hash((self.sequences, self.mark))
