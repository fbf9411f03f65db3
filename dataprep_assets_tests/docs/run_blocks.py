"""Run the Python of a page, and the library, in a project with a built `sample_corpus`, without importing the tests.

python run_blocks.py DOCS

Its working folder is the project; DOCS is the folder of the pages. It prints a line for each block.
"""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets import open_project


def find_blocks(page: Path, language: str = "python") -> list[str]:
    """Return the code blocks of a language on a page, without their indentation in a list."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return ["".join(line.removeprefix(indent) for line in code.splitlines(keepends=True)) for indent, code in found]


def read_block(page: Path) -> str:
    """Return the single Python block of a page."""
    (text,) = find_blocks(page)
    return text


def execute(page: Path, as_file: Path) -> dict[str, Any]:
    """Execute the block of a page as if it were a file, and return the names that it defines."""
    names: dict[str, Any] = {"__name__": "block", "__file__": str(as_file)}
    exec(compile(read_block(page), page.name, "exec"), names)
    print(f"ran {page.name}")
    return names


async def run_cell() -> None:
    """Build, read and trace in a running event loop, as a notebook cell does."""
    corpus = open_project().dataset("sample_corpus")
    assert corpus.run().ended == 0
    assert len(corpus.artifact("nanogpt_bins").tokens("train.bin")) > 0
    (trace,) = corpus.trace(token=12345, split="train")
    assert trace.text
    assert [found.location for found in corpus.verify() if found.defects] == []
    print("ran a cell")


def main(docs: Path) -> None:
    """Run all blocks and assert their promised results."""
    project = Path.cwd()
    location = execute(docs / "installation.md", project / "my_data" / "definitions.py")
    assert dg.AssetKey(["sample_corpus", "manifest"]) in location["defs"]().resolve_asset_graph().get_all_asset_keys()
    asyncio.run(run_cell())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
