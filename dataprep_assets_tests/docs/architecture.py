"""Draw `docs/pictures/architecture.svg`, how a corpus is built: `make docs-reference`.

The drawing has its own background and the colors of both schemes, so a reader sees it on a light or a dark page.
Entry points: `drawing` (the whole text), and `python -m dataprep_assets_tests.docs.architecture`, which writes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
WIDTH, HEIGHT = 940, 452
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
  .arrow { fill: none; stroke: #59636e; stroke-width: 1.5; marker-end: url(#head) }
  #head path { fill: #59636e }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .page { fill: #0d1117; stroke: #3d444d }
    .box { fill: #0c2d6b; stroke: #58a6ff }
    .outside { fill: #212830; stroke: #9198a1 }
    .group { stroke: #9198a1 }
    .evidence { fill: #033a16; stroke: #3fb950 }
    .arrow { stroke: #9198a1 }
    #head path { fill: #9198a1 }
  }
"""


@dataclass(frozen=True)
class Box:
    """A rectangle with a title and lines of text; `kind` is its class in the style."""

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
        style = "artifact" if self.kind == "box" else "title"
        yield (
            f'<rect class="{self.kind}" x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="6"/>'
        )
        yield f'<text class="{style}" x="{middle}" y="{first}">{escape(self.title)}</text>'
        for number, line in enumerate(self.lines, 1):
            yield f'<text x="{middle}" y="{first + number * _LINE}">{escape(line)}</text>'


BOXES = (
    Box("source", 20, 80, 140, 84, ("local folder,", "Hugging Face Hub,", "object storage"), "outside"),
    Box("manifest", 190, 80, 140, 84, ("every file, its split;", "the shard plan")),
    Box("snapshot", 360, 80, 140, 84, ("digests of a", "shard's files")),
    Box("filter, deduplicate, decontaminate", 530, 50, 390, 144, kind="group"),
    Box("tags", 550, 80, 110, 36),
    Box("signatures", 550, 142, 110, 36),
    Box("duplicates", 685, 142, 105, 36),
    Box("selection", 810, 110, 95, 36),
    Box("engine_certificate", 20, 250, 160, 84, ("the fast engine has", "the reference's ids")),
    Box("token_bins", 210, 250, 125, 84, ("each shard,", "tokenized once")),
    Box("combined_bins", 365, 250, 125, 84, ("a split as one", "stream of ids")),
    Box("views: one per trainer", 520, 232, 264, 120, kind="group"),
    Box("nanogpt_bins", 528, 258, 122, 26),
    Box("megatron_bins", 654, 258, 122, 26),
    Box("datatrove_bins", 528, 288, 122, 26),
    Box("olmo_bins", 654, 288, 122, 26),
    Box("mds_bins", 528, 318, 122, 26),
    Box("hf_parquet_bins", 654, 318, 122, 26),
    Box("your trainer", 814, 250, 106, 84, ("reads the files", "in place"), "outside"),
    Box(
        "receipt.json in every artifact", 20, 380, 435, 52, ("inputs, dropped rows, output files, digests",), "evidence"
    ),
    Box(
        "checks on every artifact",
        485,
        380,
        435,
        52,
        ("recomputed from its bytes; a blocking failure stops the next step",),
        "evidence",
    ),
)
_ARROWS = (
    "M160 122 H188",
    "M330 122 H358",
    "M500 122 H528",
    "M660 98 H857 V108",
    "M660 160 H683",
    "M790 160 H857 V148",
    "M725 194 V214 H272 V248",
    "M180 292 H208",
    "M335 292 H363",
    "M490 292 H518",
    "M784 292 H812",
)


def artifact_names() -> set[str]:
    """Return the names of the artifacts in the drawing."""
    return {box.title for box in BOXES if box.kind == "box"}


def drawing() -> str:
    """Return the whole text of the file."""
    body = [element for box in BOXES for element in box.draw()]
    body += [f'<path class="arrow" d="{path}"/>' for path in _ARROWS]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
            "<!-- drawn by dataprep_assets_tests/docs/architecture.py: `make docs-reference` -->",
            "<title>How dataprep builds a corpus</title>",
            f"<style>\n{_STYLE}</style>",
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0 L8 4 L0 8 z"/></marker>',
            f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
            f'<text class="title" x="{WIDTH // 2}" y="30">a corpus: text in, token files out</text>',
            *body,
            "</svg>\n",
        )
    )


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawing(), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: written")
