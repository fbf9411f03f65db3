"""For every line of the pages' shell blocks: the test that runs it, or the reason why none does."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = "dataprep_assets_tests"


@dataclass(frozen=True)
class Lines:
    """Lines of pages that match a pattern, run by a `file` that contains `proof`, or `not_run` for a reason."""

    pattern: str
    pages: str = ".*"
    file: str | None = None
    proof: str = ""
    not_run: str = ""


CLUSTER = "needs a cluster; the files that it applies are held by dataprep_assets_tests/deploy"
READERS_OWN = "names a dataset of the reader's own"
LINES = (
    Lines(r"make demo", file=".ci/run", proof="make PYTHON="),
    Lines(r"make test", file=".ci/run", proof=" test"),
    Lines(
        r"python -m venv .*|pip install (dataprep-assets|'dataprep-assets\[.*|torch)",
        not_run="it would come from a network",
    ),
    Lines(
        r"pip install ('numpy.*|--no-deps dataprep-assets)",
        "docs/pipelines/release.md",
        f"{TESTS}/serving/test_beside_a_trainer.py",
        '"--no-deps", "dataprep-assets"',
    ),
    Lines(r"dataprep init my-data", file=f"{TESTS}/cli/test_installed.py", proof='"init", "my-data"'),
    Lines(r"cd my-data", file=f"{TESTS}/cli/test_installed.py", proof='folder / "my-data"'),
    Lines(r"dataprep run sample_corpus", file=f"{TESTS}/cli/test_installed.py", proof='"run", "sample_corpus"'),
    Lines(
        r"mkdir -p .*|cp ~/train.jsonl .*|dataprep (check|run|verify|documents) my_corpus",
        "README.md",
        f"{TESTS}/docs/test_readme.py",
        "shell_lines(README",
    ),
    Lines(
        r"dataprep (check|run|show|status|verify|trace) my_corpus.*|dataprep verify"
        r"|python (make_\w+|bigram|gpt|by_step)\.py.*",
        file=f"{TESTS}/cli/test_installed.py",
        proof='"quickstart.md", "train.md"',
    ),
    Lines(
        r"dataprep (list|preflight|verify|lock|trace|prune).*",
        "docs/concepts.md",
        f"{TESTS}/cli/test_installed.py",
        '"concepts.md"',
    ),
    Lines(r"dataprep .*", "docs/commands.md", f"{TESTS}/cli/test_examples.py", "EXAMPLES["),
    Lines(r"dataprep ui", file=f"{TESTS}/ui/site.py", proof='"ui", "--port"'),
    Lines(
        r"dataprep (schedule|seen|run) my_run.*|dataprep retract my_corpus .*",
        "docs/train.md",
        f"{TESTS}/cli/test_installed.py",
        "compare_with_the_loop",
    ),
    Lines(r"dataprep .* my_notes.*", not_run=f"{READERS_OWN}; pipelines/notes/test_retract.py retracts and runs one"),
    Lines(r"export my_notes_patient_key=.*", not_run=READERS_OWN),
    Lines(r"dataprep release adopt .*", file=f"{TESTS}/cli/test_release_of_others.py", proof='"release", "adopt"'),
    Lines(r"python tools/preprocess_data.py .*|--tokenizer-model .*", not_run="the original, which is not ours"),
    Lines(r"dataprep preflight", file=f"{TESTS}/cli/test_cli.py", proof='"preflight"'),
    Lines(
        r"python -m dataprep_assets_tests.tools.drill.*",
        "docs/drill.md",
        not_run="minutes; dataprep_assets_tests/tools/drill/test_drill.py runs a seeded part of it",
    ),
    Lines(
        r"dataprep init . --deploy compose",
        file=f"{TESTS}/deploy/test_own_project.py",
        proof='"init", ".", "--deploy", "compose"',
    ),
    Lines(r"kubectl .*", "deploy/README.md", not_run=CLUSTER),
)


@cache
def read_shell_lines() -> list[tuple[str, str]]:
    """Return the page and line of every shell block, without comments; test_how_to.py runs the lines of guides."""
    found = []
    for page in (ROOT / "README.md", ROOT / "deploy" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        if page.parent.name == "how-to":
            continue
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^ *```bash\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
            lines = (line.partition("  #")[0].strip() for line in block.splitlines())
            found += [(page.relative_to(ROOT).as_posix(), line) for line in lines if line]
    return found


def matches(lines: Lines, page: str, line: str) -> bool:
    """Return whether an entry applies to a line."""
    return bool(re.fullmatch(lines.pages, page) and re.fullmatch(lines.pattern, line))


def test_every_line_has_an_entry_that_names_its_test() -> None:
    assert [
        (page, line) for page, line in read_shell_lines() if not any(matches(one, page, line) for one in LINES)
    ] == []


def test_every_entry_matches_a_line_and_its_test_exists() -> None:
    for one in LINES:
        assert any(matches(one, page, line) for page, line in read_shell_lines()), one
        assert (one.file is None) != (one.not_run == ""), one
        if one.file is not None:
            assert one.proof in (ROOT / one.file).read_text(encoding="utf-8"), one
