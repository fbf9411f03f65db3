"""All citations in code and pages exist in the repository: pages of `docs/` with their headings, and Markdown links.

A citation is a path as in `docs/formats/megatron.md#index`. Issues of other projects, as in `marin#5034`, are cited by
name and number and are not checked here.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve()
ROOT = HERE.parent.parent
FOLDERS = ("dataprep_assets", "dataprep_assets_tests", "resources", "deploy", "docs")
TEXT = {".py", ".md", ".yaml", ".yml", ".toml", ".env", ".example", ".conf", ".jinja", ""}

# This matches a path in docs/, but not the end of a longer path (`elsewhere/docs/a.md`, `https://host/docs/a.md`).
CITATION = re.compile(r"(?<![\w/.-])(docs/[\w./-]+\.md)(?:#([\w-]+))?")
# This matches sections of notes that were never part of the repository: a name in capitals, then a letter or a number,
# possibly on the next line.
ABSENT = re.compile(
    r"(?<![A-Za-z_])(?:(?:FORMATS|PAINS|FINDINGS|DESIGN|HOTPATH|TRAPS)[ ]*\n?[ #]*(?:[A-I]\b|\d)"
    r"|[A-Z]{4,}[ ]*\n?[ #]*[A-I]\.\d)"
)
# This matches names of Markdown files in capitals, which the test looks up in the repository.
CAPITALS = re.compile(r"(?<![\w/.-])([A-Z][A-Z_]{3,}\.md)\b")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
# Exclude code, because a pattern in code may look like a link.
CODE = re.compile(r"`[^`\n]+`")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)


def cited_from(root: Path) -> Iterator[Path]:
    """Return every text file in the folders that cite, and at the root, except this file, whose samples are wrong."""
    for folder in (root / name for name in FOLDERS):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts and path != HERE:
                yield path
    yield from (path for path in sorted(root.iterdir()) if path.is_file() and path.suffix in TEXT)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page; a repeated heading gets a number."""
    found: set[str] = set()
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*#*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = 0
        while (slug if number == 0 else f"{slug}-{number}") in found:
            number += 1
        found.add(slug if number == 0 else f"{slug}-{number}")
    return found


def dangling(page: Path, anchor: str | None) -> str | None:
    """Return the reason why a page with an anchor cannot be cited; None if it can."""
    if not page.exists():
        return "no such file"
    if anchor and page.suffix == ".md" and anchor not in anchors(page):
        return f"no heading {anchor!r}; there are {', '.join(sorted(anchors(page)))}"
    return None


def findings(root: Path) -> list[str]:
    """Return one sentence per citation that does not resolve, with file and line."""
    found = []
    names = {path.name for path in root.rglob("*.md")}
    for path in cited_from(root):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue

        def add(at: int, cited: str, reason: str | None, text: str = text, path: Path = path) -> None:
            if reason:
                found.append(f"{path.relative_to(root)}:{text.count(chr(10), 0, at) + 1}: {cited}: {reason}")

        for match in CITATION.finditer(text):
            add(match.start(), match[0], dangling(root / match[1], match[2]))
        for match in ABSENT.finditer(text):
            add(match.start(), " ".join(match[0].split()), "not in the repository")
        for match in CAPITALS.finditer(text):
            add(match.start(), match[1], None if match[1] in names else "not in the repository")
        if path.suffix == ".md":
            prose = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
            for match in LINK.finditer(CODE.sub(lambda code: "`" * len(code[0]), prose)):
                target, _, anchor = match[1].partition("#")
                if re.match(r"[a-z]+:", target):
                    continue
                add(match.start(), match[1], dangling(path.parent / target if target else path, anchor))
    return found


def test_every_citation_and_link_resolves() -> None:
    assert findings(ROOT) == []


def test_every_page_of_the_formats_is_in_their_index() -> None:
    folder = ROOT / "docs" / "formats"
    listed = {target for target in LINK.findall((folder / "README.md").read_text()) if "/" not in target}
    assert {path.name for path in folder.glob("*.md")} - {"README.md"} <= {
        target.partition("#")[0] for target in listed
    }


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("dataprep_assets/a.py", '"""See docs/formats/none.md."""', "no such file"),
        ("dataprep_assets/a.py", "# docs/formats/a.md#other", "no heading 'other'"),
        ("dataprep_assets_tests/a.py", '"""The row (FORMATS A.9)."""', "not in the repository"),
        ("dataprep_assets_tests/a.py", '"""Keys of the hook (FORMATS\nD.11)."""', "not in the repository"),
        ("dataprep_assets_tests/a.py", '"""As FORMATS C says."""', "not in the repository"),
        ("dataprep_assets_tests/a.py", '"""PAINS 20."""', "not in the repository"),
        ("deploy/values.yaml", "# one asset a split (" + "DAGSTER" + ".md)", "not in the repository"),
        ("README.md", "[deploy](deploy/NONE.txt)", "no such file"),
        ("docs/formats/b.md", "[its bytes](a.md#bites)", "no heading 'bites'"),
        ("docs/formats/b.md", "[above](#bites)", "no heading 'bites'"),
        ("docs/formats/b.md", "[`bytes`](none.md)", "no such file"),
    ],
)
def test_an_unresolved_citation_is_found_with_its_line(tmp_path: Path, name: str, text: str, reason: str) -> None:
    page = tmp_path / "docs" / "formats" / "a.md"
    page.parent.mkdir(parents=True)
    page.write_text("# A\n\n## The `.bin`'s bytes\n")
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n" + text)
    (finding,) = findings(tmp_path)
    assert finding.startswith(f"{name}:2: ")
    assert reason in finding


def test_a_resolved_citation_is_not_reported(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "formats" / "a.md"
    page.parent.mkdir(parents=True)
    page.write_text(
        "# A\n\n## The `.bin`'s bytes\n\n## Rows\n\n## Rows\n\n```\n## no heading [x](none.md)\n```\n[top](#a)\n"
        "`as ^[a-z](/none)` and [`code`](a.md)\n"
    )
    (tmp_path / "dataprep_assets").mkdir()
    (tmp_path / "dataprep_assets" / "a.py").write_text(
        '"""docs/formats/a.md#the-bins-bytes, docs/formats/a.md#rows-1. marin#5034; https://host/docs/none.md."""\n'
        'FORMATS = ("a", "b")\nFILE_FORMATS = FORMATS\n'
    )
    assert findings(tmp_path) == []
    assert anchors(page) == {"a", "the-bins-bytes", "rows", "rows-1"}
