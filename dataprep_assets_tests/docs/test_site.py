"""The site of `make docs` has every page in its navigation, builds, and loads nothing from a network."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from os import environ
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataprep_assets_tests.docs.site_hook import ROOT, list_linked_files, list_pages

CONFIG = ROOT / "mkdocs.yml"
LOADED = re.compile(
    r"""<(?:script|img|iframe|link(?![^>]*rel="?canonical))[^>]*?\b(?:src|href)="?(https?:[^"\s>]+|//[^"\s>]+)"""
)


def config() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    return found


def list_paths(nav: Any) -> Iterator[str]:
    """Return the paths of a navigation, in order."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from list_paths(entry)


def test_every_page_is_in_the_navigation_once() -> None:
    paths = list(list_paths(config()["nav"]))
    assert sorted(paths) == sorted(page.relative_to(ROOT).as_posix() for page in list_pages())


def test_files_that_pages_link_to_are_part_of_the_site() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in list_linked_files()}
    assert "dataprep_assets_tests/ui/pictures/graph.png" in names
    assert not {name for name in names if name.endswith(".md")}


def test_no_configured_asset_comes_from_a_network() -> None:
    declared = config()
    assert declared["theme"]["font"] is False
    assert declared["plugins"] == ["search"]
    assert "http" not in CONFIG.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_its_pages_load_nothing_external(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="no mkdocs: pip install mkdocs-material")
    pytest.importorskip("material", reason="no theme: pip install mkdocs-material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(CONFIG)]
    # Use an unreachable proxy, so that every download fails.
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    environment = {**environ, **nowhere}
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    built = {page: page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    assert len(built) >= len(list_pages())
    assert {(page.name, url) for page, text in built.items() for url in LOADED.findall(text)} == set()
    assert [page.name for page, text in built.items() if "```" in text] == [], "a fence is not taken for one"
    corpus = built[tmp_path / "docs" / "pipelines" / "corpus.html"]
    assert 'src="../../dataprep_assets_tests/ui/pictures/eye_test.png"' in corpus
    assert "<code>&lt;|im_end|&gt;</code>" in built[tmp_path / "docs" / "migration" / "slimpajama-scripts.html"]
    found = json.loads((tmp_path / "search" / "search_index.json").read_bytes())["docs"]
    assert "docs/how-to/remove-documents.html#ways-to-name-documents" in {entry["location"] for entry in found}
