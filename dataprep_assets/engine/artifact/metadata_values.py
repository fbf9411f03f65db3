"""Metadata values other than numbers and strings, without Dagster. `orchestration.metadata` renders them."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table whose rows map columns to values. Columns are in the order of their first appearance."""

    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Markdown:
    """Text in Markdown. If `ready`, it contains nothing that must stay private (`privacy`)."""

    text: str
    ready: bool = False


@dataclass(frozen=True)
class Location:
    """A path or a URL."""

    text: str


ShownValue = int | float | str | bool | Table | Markdown | Location
"""A metadata value."""


def render_picture(name: str, svg: str) -> Markdown:
    """Return an SVG as a Markdown image, which Dagster's UI displays.

    The UI's sanitizer allows `data:` URLs as the source of an image. The browser draws the SVG without running scripts
    in it.

    Args:
        name: Alternative text, shown where images are not displayed.
        svg: The picture.
    """
    return Markdown(f"![{name}](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})")
