"""What a person is shown, without Dagster: values of metadata that are more than a number or a text, and counts.

`orchestration.metadata` renders the values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Location", "Markdown", "Shown", "Table", "number_of"]


@dataclass(frozen=True)
class Table:
    """Rows, each a mapping of column → value; columns in the order in which they first appear."""

    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Markdown:
    """Text in Markdown."""

    text: str


@dataclass(frozen=True)
class Location:
    """A path or a URL."""

    text: str


Shown = int | float | str | bool | Table | Markdown | Location
"""A value of an entry of metadata."""


def number_of(count: int, noun: str) -> str:
    """A number of things: `1 shard`, `2 shards`, `1,000 shards`.

    Args:
        count: How many.
        noun: What one is called; its plural has an `s`.
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
