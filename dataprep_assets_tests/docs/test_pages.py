"""The pages for newcomers are short where they promise it, listed, and their declarations are valid.

`test_citations.py` tests that every link and citation resolves.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from dataprep_assets import cli, components
from dataprep_assets.engine.yaml.mistakes import read_documents, validate_document
from dataprep_assets.pipelines.blend.rl.views import VIEWS as RECORD_VIEWS
from dataprep_assets.pipelines.blend.sft.views import VIEWS as CONVERSATION_VIEWS
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets_tests.docs.run_blocks import find_blocks

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)#\s]+)")
OWN_WORDS = {
    *(
        "cohort",
        "combined bins",
        "engine certificate",
        "ledger",
        "lock",
        "manifest",
        "preflight",
        "prune",
        "quarantine",
    ),
    *("receipt", "release", "retraction list", "revision", "shard plan", "tagger", "token bins", "trace", "view"),
}
COMMAND = re.compile(r"^ *(?:\$ )?dataprep (.+)$", re.MULTILINE)


def list_pages() -> Iterator[Path]:
    """Return the README and every page of `docs/`."""
    yield ROOT / "README.md"
    yield from sorted(DOCS.rglob("*.md"))


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = {(DOCS / target).resolve() for target in LINK.findall((DOCS / "README.md").read_text(encoding="utf-8"))}
    # Exclude the pages about formats, because they have their own index.
    expected = {path for path in DOCS.rglob("*.md") if path.parent.name != "formats"} - {DOCS / "README.md"}
    assert {path.relative_to(DOCS) for path in expected - listed} == set()


def test_every_declaration_on_a_page_is_valid(tmp_path: Path) -> None:
    found = 0
    for page in list_pages():
        for block in find_blocks(page, "yaml"):
            # Skip the blocks of `yaml-reference.md`, because they are excerpts.
            if not block.startswith("type:") or page.name == "yaml-reference.md":
                continue
            path = tmp_path / "defs.yaml"
            path.write_text(block, encoding="utf-8")
            for document in read_documents(path):
                component = getattr(components, document.type.rpartition(".")[2])
                declared = validate_document(component.model, document)
                source = getattr(declared, "source", None)
                # Require `include`, because its default matches only `.jsonl.zst` files, which few readers have.
                assert getattr(source, "kind", "") != "local" or "include" in declared.model_fields_set, page.name
                found += 1
    assert found >= 1


def test_every_troubleshooting_message_is_in_the_code() -> None:
    """Names and numbers are replaced by `…` on the page and by braces in the code."""

    def spoken_part(part: ast.expr) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        call = part.value if isinstance(part, ast.FormattedValue) else None
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "count_of":
            return "…"
        words = [ast.literal_eval(word) for word in call.args[1:] if isinstance(word, ast.Constant)]
        return f"… {words[1] if len(words) > 1 else f'{words[0]}s'}" if words else "…"

    spoken = "\n".join(
        "".join(map(spoken_part, node.values)) if isinstance(node, ast.JoinedStr) else str(node.value)
        for folder in ("dataprep_assets", "resources")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr | ast.Constant)
    ).replace("`", "")
    rows = (DOCS / "troubleshooting.md").read_text(encoding="utf-8").splitlines()
    messages = [
        message for row in rows if row.startswith("| `") for message in re.findall("`([^`]+)`", row.split(" | ")[0])
    ]
    assert len(messages) > 50
    # Split the messages at the parts that vary, because only the fixed parts are in the code.
    filled = re.compile(r"…|[;:]|dataset\.lock|receipt\.json|[\d,]{4,}|--shards|\b[A-Z]{3,}\b")
    parts = [part.strip(" .,'") for message in messages for part in filled.split(message)]
    assert [part for part in parts if len(part) > 5 and part not in spoken] == []


def test_every_view_is_on_the_page_of_corpora() -> None:
    text = (DOCS / "pipelines" / "corpus.md").read_text(encoding="utf-8")
    assert [view for view in VIEWS if f"\n| `{view}` |" not in text] == []


def test_every_view_of_a_blend_is_on_its_page() -> None:
    text = (DOCS / "pipelines" / "blends.md").read_text(encoding="utf-8")
    assert [view for view in (*CONVERSATION_VIEWS, *RECORD_VIEWS) if f"\n| `{view}` |" not in text] == []


def test_yaml_on_every_page_parses() -> None:
    for page in list_pages():
        for block in find_blocks(page, "yaml"):
            yaml.safe_load(block)


def test_lines_for_a_declaration_are_indented_like_its_keys() -> None:
    """A reader pastes them below `attributes:`, where a key without indentation is an error."""
    keys = {
        key
        for component in components.__all__
        for key in getattr(getattr(components, component), "model").model_fields  # noqa: B009
    }
    wrong = []
    for page in list_pages():
        for block in find_blocks(page, "yaml(?: no-run)?"):
            # A block for a different program begins with the program's name.
            if not re.match(r"(# \S+\n)?(type|attributes):|# [\w-]+: ", block):
                wrong += [(page.name, key) for key in re.findall(r"^(\w+):", block, re.MULTILINE) if key in keys]
    assert wrong == []


def test_every_table_row_has_as_many_cells_as_the_heading() -> None:
    """A bar in a cell, also in code, must be escaped, because a code host ends the cell there and drops the rest of the
    row.
    """
    wrong = []
    for page in list_pages():
        text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
            rows = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
            wrong += [(page.name, table.splitlines()[at][:60]) for at, bars in enumerate(rows) if bars != rows[0]]
    assert wrong == []


def find_commands() -> list[tuple[str, str]]:
    """Return the page and the words of every `dataprep …` line in the shell blocks."""
    return [
        (page.relative_to(ROOT).as_posix(), line)
        for page in list_pages()
        for language in ("bash", "")
        for block in find_blocks(page, language)
        for line in COMMAND.findall(block)
    ]


@pytest.mark.parametrize(("page", "line"), find_commands())
def test_every_option_of_a_command_on_a_page_exists(page: str, line: str) -> None:
    words = re.sub(r"  +[#→].*|  documents and.*", "", line).partition(" && ")[0].split()
    group = get_command(cli.create_app())
    command = group.commands[words[0]]  # type: ignore[attr-defined]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words[1:] if word.startswith("--")} <= known


def test_the_terms_of_this_project_are_defined_once() -> None:
    """Each has its own heading with a sentence that begins "A receipt is", and no row in the glossary."""
    page = (DOCS / "concepts.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### ([^\n]+)\n\n(.*?)(?=\n#|\Z)", page, re.DOTALL | re.MULTILINE))
    assert {word for word in OWN_WORDS if word not in {name.lower() for name in sections}} == set()
    for name, text in sections.items():
        start = rf"((An?|To) )?{name.lower()} (is|are) "
        assert re.match(start, text, re.IGNORECASE), name
        assert re.search(r"`|\|", text), f"{name}: no example"
    glossary = re.findall(r"^\| \*\*(.+?)\*\*", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(glossary) & {name.lower() for name in sections} == set()
    assert len(set(glossary)) == len(glossary)


def test_every_key_of_the_migration_pages_is_in_the_reference() -> None:
    """In the column for dataprep-assets, `key: …` and `key.key` are keys."""
    tables = [DOCS / "yaml-reference.md", *(DOCS / "components").glob("*.md")]
    # Exclude the presets, because their rows are not keys.
    reference = "\n".join(path.read_text(encoding="utf-8").partition("\n## Presets of ")[0] for path in tables)
    known = set(re.findall(r"^\| `(\w+)` \|", reference, re.MULTILINE))
    found = set()
    for page in sorted((DOCS / "migration").glob("*.md")):
        for row in re.findall(r"^\|(.*)\|$", page.read_text(encoding="utf-8"), re.MULTILINE):
            for code in re.findall(r"`([^`]+)`", re.split(r"(?<!\\)\|", row)[-1]):
                match = re.match(r"([a-z_]+(?:\.[a-z_]+)*): |([a-z_]+(?:\.[a-z_]+)+)$", code)
                if match and not code.endswith(".json"):
                    found |= {(page.name, part) for part in (match[1] or match[2]).split(".")}
    assert len(found) > 40
    assert {(page, key) for page, key in found if key not in known} == set()
