"""Values for display, without Dagster: metadata values beyond numbers and texts.

`orchestration.metadata` renders the values.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table: rows are mappings of column → value, and columns are in the order of their first appearance."""

    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Markdown:
    """Text in Markdown; `ready`: it has nothing that may not leave (`privacy`)."""

    text: str
    ready: bool = False


@dataclass(frozen=True)
class Location:
    """A path or a URL."""

    text: str


Shown = int | float | str | bool | Table | Markdown | Location
"""A metadata value."""


def picture(name: str, svg: str) -> Markdown:
    """An SVG as Dagster's UI shows it: inside of markdown.

    The UI's sanitizer lets `data:` through in the source of an image; its browser draws the SVG without running
    anything in it.

    Args:
        name: What is read where pictures are not shown.
        svg: The picture.
    """
    return Markdown(f"![{name}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})")
