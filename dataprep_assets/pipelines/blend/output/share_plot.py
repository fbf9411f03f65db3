"""Plot of shares for Dagster's UI: horizontal bars with only the names of datasets and splits, and numbers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from dataprep_assets.engine.artifact.metadata_values import Markdown, render_picture

_COLORS = ("#9db4d6", "#1f4e9c")
_BAR, _GAP, _MARGIN, _WIDTH, _CHARACTER = 14, 12, 16, 420, 7.3
"""Pixels: thickness of a bar, gap between groups, margin, length of the longest bar, width of a character at 12 px."""


@dataclass(frozen=True, kw_only=True)
class ShareBar:
    """Two shares of a dataset, each from 0 to 1."""

    name: str
    first: float
    second: float


_SHOWN_COLUMNS = {"realised": "realized", "realisable": "realizable"}
"""Column name in receipts, which must not change → displayed name."""


def rename_columns(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table with the column names that the UI shows, instead of the names in receipts."""
    return [{_SHOWN_COLUMNS.get(name, name): value for name, value in row.items()} for row in rows]


def plot_shares(rows: Sequence[Mapping[str, Any]], other_column: str) -> Markdown:
    """Plot the `requested` share of each `name` and `split`, and the share in `other_column` of the same row."""
    bars = [
        ShareBar(name=f"{row['split']} {row['name']}", first=row["requested"], second=row[other_column]) for row in rows
    ]
    return render_picture(f"requested and {other_column} shares", draw_shares(bars, "requested", other_column))


def draw_shares(bars: Sequence[ShareBar], first_name: str, second_name: str) -> str:
    """Return an SVG image with a legend and, below it, a pair of labeled bars per dataset."""
    left_edge = _MARGIN + _CHARACTER * max((len(bar.name) for bar in bars), default=0) + _GAP
    longest = max((share for bar in bars for share in (bar.first, bar.second)), default=0.0)
    scale = _WIDTH / longest if longest else 0.0
    width = round(left_edge + _WIDTH + 8 * _CHARACTER + _MARGIN)
    group = 2 * _BAR + _GAP
    height = 2 * _MARGIN + 2 * _GAP + group * len(bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="monospace" font-size="12">',
        # Draw a white background, because the dark text would be unreadable in the UI's dark theme.
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *_draw_legend(left_edge, (first_name, second_name)),
    ]
    for index, bar in enumerate(bars):
        lines += _draw_pair(bar, left_edge, _MARGIN + 2 * _GAP + index * group, scale)
    return "\n".join([*lines, "</svg>"])


def _draw_legend(left_edge: float, names: tuple[str, str]) -> Iterator[str]:
    x = left_edge
    for name, color in zip(names, _COLORS, strict=True):
        yield f'<rect x="{x:.0f}" y="{_MARGIN - 6}" width="{_BAR}" height="{_BAR}" fill="{color}"/>'
        yield _draw_text(x + 1.5 * _BAR, _MARGIN + 5, name)
        x += 3 * _BAR + _CHARACTER * len(name)


def _draw_pair(bar: ShareBar, left_edge: float, top: float, scale: float) -> Iterator[str]:
    yield _draw_text(left_edge - _GAP, top + _BAR + 3, bar.name, anchor="end")
    for index, (share, color) in enumerate(zip((bar.first, bar.second), _COLORS, strict=True)):
        y = top + index * _BAR
        yield f'<rect x="{left_edge:.0f}" y="{y:.0f}" width="{share * scale:.1f}" height="{_BAR - 1}" fill="{color}"/>'
        yield _draw_text(left_edge + share * scale + 4, y + _BAR - 3, f"{share:.4f}")


def _draw_text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="#1a1a1a">{escape(text)}</text>'
