"""Values of metadata that are more than a number or a text, without Dagster: `orchestration.metadata` renders them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Location", "Markdown", "Shown", "Table"]


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
