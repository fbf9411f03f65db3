"""Hooks of mkdocs (`hooks:` in mkdocs.yml) that list the site's pages and their paths.

Pages link to each other, and to pictures, by their paths in the repository, so that a code host also shows them. mkdocs
accepts only files below `docs/`, so the hook gives it each file under its path from the root of the repository.
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


def list_pages() -> list[Path]:
    """Return every page of the site, unordered."""
    front = [ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")]
    return [*front, ROOT / "deploy" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def list_linked_files() -> Iterator[Path]:
    """Return the files that pages link to and that are not pages: pictures, an example of a configuration."""
    known, found = set(list_pages()), set()
    for page in list_pages():
        for target in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
            path = Path(os.path.normpath(page.parent / target))
            if ":" not in target and path.is_file() and path not in known | found:
                found.add(path)
                yield path


def on_config(config: Any) -> Any:
    """Give headings the anchors of a code host, in which each space becomes a hyphen and hyphens are not merged."""
    from pymdownx.slugs import slugify

    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Any, config: Any) -> Any:
    """Return the files of the site: pages, linked files, and the files of the theme."""
    from mkdocs.structure.files import File, Files

    ours = [
        File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
        for path in (*list_pages(), *list_linked_files())
    ]
    below = str(ROOT / "docs")
    return Files([*(file for file in files if not str(file.abs_src_path).startswith(below)), *ours])


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Remove the word that marks blocks for the tests, because the site's Markdown treats such a fence as text."""
    return _NOT_RUN.sub(r"\1", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Replace `\\|` by `|` in code in tables, because a code host shows only the bar but Python's Markdown
    shows both.
    """
    return _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)
