"""Plot of shares for Dagster's UI: a picture of horizontal bars, which contains only names and numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from dataprep_assets.engine.artifact.metadata_values import Markdown, picture

_COLOURS = ("#9db4d6", "#1f4e9c")
_BAR, _GAP, _MARGIN, _WIDTH, _CHARACTER = 14, 12, 16, 420, 7.3
"""Pixels: thickness of a bar, gap between groups, margin, length of the longest bar, width of a character at 12 px."""


@dataclass(frozen=True, kw_only=True)
class ShareBar:
    """A dataset and its two shares, from 0 to 1."""

    name: str
    first: float
    second: float


def plot_shares(rows: Sequence[Mapping[str, Any]], other: str) -> Markdown:
    """Plot the `requested` share of each `name` and `split`, and the share in the column `other` of the same row."""
    bars = [ShareBar(name=f"{row['split']} {row['name']}", first=row["requested"], second=row[other]) for row in rows]
    return picture(f"requested and {other} shares", draw_shares(bars, "requested", other))


def draw_shares(bars: Sequence[ShareBar], first: str, second: str) -> str:
    """Draw an SVG with a pair of labeled bars per dataset, below a legend."""
    left_edge = _MARGIN + _CHARACTER * max((len(bar.name) for bar in bars), default=0) + _GAP
    longest = max((share for bar in bars for share in (bar.first, bar.second)), default=0.0)
    scale = _WIDTH / longest if longest else 0.0
    width = round(left_edge + _WIDTH + 8 * _CHARACTER + _MARGIN)
    group = 2 * _BAR + _GAP
    height = 2 * _MARGIN + 2 * _GAP + group * len(bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="monospace" font-size="12">',
        # a background of its own, because the UI has a light and a dark theme
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_legend(left_edge, (first, second)),
    ]
    for index, bar in enumerate(bars):
        lines += _pair(bar, left_edge, _MARGIN + 2 * _GAP + index * group, scale)
    return "\n".join([*lines, "</svg>"])


def _legend(left: float, names: tuple[str, str]) -> Iterator[str]:
    x = left
    for name, colour in zip(names, _COLOURS, strict=True):
        yield f'<rect x="{x:.0f}" y="{_MARGIN - 6}" width="{_BAR}" height="{_BAR}" fill="{colour}"/>'
        yield _text(x + 1.5 * _BAR, _MARGIN + 5, name)
        x += 3 * _BAR + _CHARACTER * len(name)


def _pair(bar: ShareBar, left: float, top: float, scale: float) -> Iterator[str]:
    yield _text(left - _GAP, top + _BAR + 3, bar.name, anchor="end")
    for index, (share, colour) in enumerate(zip((bar.first, bar.second), _COLOURS, strict=True)):
        y = top + index * _BAR
        yield f'<rect x="{left:.0f}" y="{y:.0f}" width="{share * scale:.1f}" height="{_BAR - 1}" fill="{colour}"/>'
        yield _text(left + share * scale + 4, y + _BAR - 3, f"{share:.4f}")


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="#1a1a1a">{escape(text)}</text>'
