"""Draw diagrams and recordings of a terminal as SVG: `framed` and `terminal`.

A drawing has its own background. Diagrams have the colors of both schemes, so a reader sees them on a light or a dark
page.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
_LINE = 16
_STYLE = """\
  text { font: 13px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; text-anchor: middle }
  .artifact { font: 600 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
  .title { font-weight: 600 }
  .page { fill: #ffffff; stroke: #d1d9e0 }
  .box { fill: #ddf4ff; stroke: #0969da }
  .outside { fill: #f6f8fa; stroke: #59636e }
  .group { fill: none; stroke: #59636e; stroke-dasharray: 4 3 }
  .evidence { fill: #dafbe1; stroke: #1a7f37 }
  .missing { fill: #ffebe9; stroke: #cf222e; stroke-dasharray: 4 3 }
  .arrow { fill: none; stroke: #59636e; stroke-width: 1.5; marker-end: url(#head) }
  #head path { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .page { fill: #0d1117; stroke: #3d444d }
    .box { fill: #0c2d6b; stroke: #58a6ff }
    .outside { fill: #212830; stroke: #9198a1 }
    .group { stroke: #9198a1 }
    .evidence { fill: #033a16; stroke: #3fb950 }
    .missing { fill: #490202; stroke: #f85149 }
    .arrow { stroke: #9198a1 }
    #head path { fill: #9198a1 }
  }
"""


_TERMINAL = """\
  text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #d1d7e0; white-space: pre }
  .page { fill: #151b23; stroke: #3d444d }
  .prompt { fill: #ffffff; font-weight: 600 }
  .passed { fill: #3fb950 }
  .failed { fill: #f85149 }
  .omitted { fill: #9198a1 }
"""
_COLUMNS, _CHARACTER, _ROW = 96, 7.85, 19


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and lines of text, colored by its kind."""

    title: str
    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...] = ()
    kind: str = "box"

    def draw(self) -> Iterator[str]:
        """Yield the elements. A group has its title at its top edge, every other box in its middle."""
        middle = self.x + self.width // 2
        first = self.y + (self.height - _LINE * len(self.lines)) // 2 + 5 if self.kind != "group" else self.y + 18
        style = "artifact" if self.kind in ("box", "missing") else "title"
        yield (
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6"/>'
        )
        yield f'<text class="{style}" x="{middle}" y="{first}">{escape(self.title)}</text>'
        for number, line in enumerate(self.lines, 1):
            yield f'<text x="{middle}" y="{first + number * _LINE}">{escape(line)}</text>'


def arrows(paths: Iterable[str]) -> Iterator[str]:
    """Yield an arrow along each path."""
    return (f'<path class="arrow" d="{path}"/>' for path in paths)


def framed(title: str, heading: str, width: int, height: int, body: Iterable[str]) -> str:
    """Return the whole text of a diagram: its elements on a page with a heading."""
    marker = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z"/></marker>'
    )
    first = f'<text class="title" x="{width // 2}" y="30">{escape(heading)}</text>'
    return _svg(title, width, height, _STYLE, (marker, _page(width, height), first, *body))


def terminal(title: str, lines: Sequence[str]) -> str:
    """Return the whole text of a recording: commands begin with `$ `, steps with their mark."""
    rows = [row for line in lines for row in _wrapped(line)]
    width, height = round(_COLUMNS * _CHARACTER) + 32, len(rows) * _ROW + 28
    body = [
        f'<text{_style(row)} x="16" y="{number * _ROW + 12}">{escape(row)}</text>'
        for number, row in enumerate(rows, 1)
        if row
    ]
    return _svg(title, width, height, _TERMINAL, (_page(width, height), *body))


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, _COLUMNS, subsequent_indent=indent, break_on_hyphens=False) or [""]


def _style(row: str) -> str:
    marks = {"$ ": "prompt", "✓ ": "passed", "✗ ": "failed", "…": "omitted"}
    return next((f' class="{name}"' for mark, name in marks.items() if row.startswith(mark)), "")


def _page(width: int, height: int) -> str:
    return f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>'


def _svg(title: str, width: int, height: int, style: str, body: Iterable[str]) -> str:
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<!-- drawn by dataprep_assets_tests/docs/pictures.py: `make docs-reference` -->",
            f"<title>{escape(title)}</title>",
            f"<style>\n{style}</style>",
            *body,
            "</svg>\n",
        )
    )
