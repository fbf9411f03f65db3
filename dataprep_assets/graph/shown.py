"""Values for display, without Dagster: metadata values beyond numbers and texts, and counts with nouns.

`orchestration.metadata` renders the values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table: rows are mappings of column → value, and columns are in the order of their first appearance."""

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
"""A metadata value."""


def number_of(count: int, noun: str) -> str:
    """A count with its noun: `1 shard`, `2 shards`, `1,000 shards`.

    Args:
        count: How many.
        noun: The noun in the singular; its plural is formed with `s`.
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
