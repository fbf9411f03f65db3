"""Runs the Python of some pages in a project whose `sample_corpus` is made: a program of its own, without the tests.

    python run_blocks.py DOCS

Its working folder is the project; DOCS is the folder of the pages. It prints a line for each block.
"""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import dagster as dg


def blocks(page: Path, language: str = "python") -> list[str]:
    """The code blocks of a language on a page, without their indentation in a list."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return ["".join(line.removeprefix(indent) for line in code.splitlines(keepends=True)) for indent, code in found]


def block(page: Path) -> str:
    """The one Python block of a page."""
    (text,) = blocks(page)
    return text


def executed(page: Path, as_file: Path) -> dict[str, Any]:
    """The names that the block of a page leaves, as if it stood in a file."""
    names: dict[str, Any] = {"__name__": "block", "__file__": str(as_file)}
    exec(compile(block(page), page.name, "exec"), names)
    print(f"ran {page.name}")
    return names


async def notebook(page: Path) -> dict[str, Any]:
    """The names that the blocks of a page leave, one after the other, as cells do: inside a running event loop."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in blocks(page):
        exec(compile(cell, page.name, "exec"), names)
    print(f"ran {page.name}")
    return names


def main(docs: Path) -> None:
    """Run them all; what a block promises is asserted."""
    project = Path.cwd()
    location = executed(docs / "installation.md", project / "my_data" / "definitions.py")
    assert dg.AssetKey(["sample_corpus", "manifest"]) in location["defs"]().resolve_asset_graph().get_all_asset_keys()

    elsewhere = executed(docs / "dagster.md", project / "definitions.py")
    there: dg.Definitions = elsewhere["defs"]
    read: dict[str, Any] = executed(docs / "storage.md", project / "assets.py")
    assert len(read["handle"].tokens("train.bin")) > 0
    resources = read["defs"].resources
    here = dg.Definitions(assets=[elsewhere["bins"], read["train"]], resources=resources)
    for definitions in (there, here):
        job = definitions.resolve_implicit_global_asset_job_def()
        assert job.execute_in_process(asset_selection=[dg.AssetKey("train")]).success

    executed(docs / "trace.md", project / "trace.py")

    cells = asyncio.run(notebook(docs / "python.md"))
    assert cells["result"].ended == 0
    assert cells["damaged"] == []
    assert cells["found"].text
    assert cells["again"].status().works == ()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
