"""Print the test files for everything changed since a commit: `python -m dataprep_assets_tests.tools.changed_tests`.

Changed test files come first, then those named after a changed module, then those that import one directly, then those
that import it through one other module; a changed page selects the tests of pages. Files are printed until the stored
durations of their fast tests reach the budget (`durations.json`). `make test-quick` passes them to pytest.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grimp

from dataprep_assets_tests.tools.durations import read_durations

PACKAGES = ("dataprep_assets", "dataprep_assets_tests")
PAGES = tuple(
    Path("dataprep_assets_tests", name)
    for name in ("test_citations.py", "docs/test_pages.py", "docs/test_shell_blocks.py")
)
BUDGET = 150.0
"""The budget in seconds of tests, which two cores run in a minute and a half, after another minute of start-up."""


def changed_files(since: str) -> list[Path]:
    """Return the files that differ from a commit, and those that Git does not know, as relative paths."""
    names = set[str]()
    for command in (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"]):
        names.update(subprocess.check_output(["git", *command], text=True).splitlines())
    return sorted(path for path in map(Path, names) if path.is_file())


def select_files(
    changed: Sequence[Path], seconds: Mapping[str, float], budget: float = BUDGET
) -> tuple[list[Path], int]:
    """Return the test files of changed files within a budget, nearest first, and how many are left out.

    Changed test files and those with a changed module's name are always selected.
    """
    rings = list(_rings(changed))
    usual = statistics.mean(seconds.values()) if seconds else 0.0
    chosen = {path: None for ring in rings[:2] for path in ring}
    left = budget - sum(seconds.get(path.as_posix(), usual) for path in chosen)
    found = dict.fromkeys(chosen)
    for ring in rings[2:]:
        # Take short files first, because more of them fit.
        for path in sorted(ring - found.keys(), key=lambda path: (seconds.get(path.as_posix(), usual), path)):
            found[path] = None
            left -= seconds.get(path.as_posix(), usual)
            if left >= 0:
                chosen[path] = None
    return list(chosen), len(found) - len(chosen)


def _rings(changed: Sequence[Path]) -> Iterator[set[Path]]:
    """Yield the test files that changed, that are named after a changed file, that import one, and that do so
    indirectly.
    """
    modules = {".".join(path.with_suffix("").parts) for path in changed if path.suffix == ".py"}
    graph = grimp.build_graph(*PACKAGES)
    modules &= graph.modules
    pages = set(PAGES) if any(path.suffix == ".md" for path in changed) else set()
    yield _test_files(modules)
    names = {f"test_{module.rpartition('.')[2]}.py" for module in modules}
    direct = _importers(graph, modules)
    wide = direct | _importers(graph, direct)
    yield {path for path in _test_files(wide) if path.name in names} | pages
    yield _test_files(direct)
    yield _test_files(wide)


def _importers(graph: grimp.ImportGraph, modules: set[str]) -> set[str]:
    return set().union(*map(graph.find_modules_that_directly_import, modules))


def _test_files(modules: set[str]) -> set[Path]:
    paths = (Path(*module.split(".")).with_suffix(".py") for module in modules)
    return {path for path in paths if path.name.startswith("test_")}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the files, one per line."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.changed_tests", description=__doc__)
    parser.add_argument("--since", default="HEAD", help="commit to compare with [HEAD]")
    arguments = parser.parse_args(argv)
    files, left_out = select_files(changed_files(arguments.since), read_durations()["fast"])
    print(*files, sep="\n")
    if left_out:
        print(f"Left out {left_out} test files beyond {BUDGET:.0f} s; `make test` runs all.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
