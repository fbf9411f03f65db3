"""What mkdocs asks while it builds the site (`hooks:` of mkdocs.yml): which pages there are, and under which paths.

Pages link to each other, and to pictures, by their paths in the repository, so that a code host shows them as well.
mkdocs takes files below `docs/` alone: here it gets each file under its path from the root of the repository.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\]\(([^)#\s`]+)")
_CELL = re.compile(r"<t[dh]\b.*?</t[dh]>", re.DOTALL)
_NOT_RUN = re.compile(r"^(```\w+) no-run$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def pages() -> list[Path]:
    """Every page of the site, in no order."""
    front = [ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")]
    return [*front, ROOT / "deploy" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def linked_files() -> Iterator[Path]:
    """What pages link to and is no page itself: pictures, an example of a configuration."""
    known, found = set(pages()), set()
    for page in pages():
        for target in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
            path = Path(os.path.normpath(page.parent / target))
            if ":" not in target and path.is_file() and path not in known | found:
                found.add(path)
                yield path


def on_config(config: Any) -> Any:
    """Headings get the anchors that a code host gives them: spaces become hyphens, which are not folded."""
    from pymdownx.slugs import slugify

    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Any, config: Any) -> Any:
    """The files of the site: pages and what they link to, and those of the theme."""
    from mkdocs.structure.files import File, Files

    ours = [
        File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
        for path in (*pages(), *linked_files())
    ]
    below = str(ROOT / "docs")
    return Files([*(file for file in files if not str(file.abs_src_path).startswith(below)), *ours])


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Without the word that marks blocks for the tests, because the site's Markdown takes such a fence for text."""
    return _NOT_RUN.sub(r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """In code in a table a code host wants `\\|` for a bar and shows the bar; Markdown of Python shows both."""
    return _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)
