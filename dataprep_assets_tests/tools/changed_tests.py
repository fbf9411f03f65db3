"""`python -m dataprep_assets_tests.tools.changed_tests`: print the test files of what changed since a commit.

These are changed test files, and those that import a changed module, directly or through one other module. Of a module
that selects more than 25 files, only those that import it directly are printed, or only the file with its name. `make
test-quick` gives them to pytest.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import grimp

PACKAGES = ("dataprep_assets", "dataprep_assets_tests")
_MOST = 25
"""Test files per changed module: two cores pass them in about three minutes, without slow tests."""


def changed_files(since: str) -> list[Path]:
    """Return the Python files that differ from a commit, and those that Git does not know, as relative paths."""
    names = set[str]()
    for command in (["diff", "--name-only", since], ["ls-files", "--others", "--exclude-standard"]):
        names.update(subprocess.check_output(["git", *command], text=True).splitlines())
    return sorted(path for path in map(Path, names) if path.suffix == ".py" and path.is_file())


def select_files(modules: Sequence[str]) -> list[Path]:
    """Return the test files of these modules, sorted."""
    graph = grimp.build_graph(*PACKAGES)
    return sorted({path for module in modules if module in graph.modules for path in _select_for(module, graph)})


def _select_for(module: str, graph: grimp.ImportGraph) -> set[Path]:
    importers = graph.find_modules_that_directly_import(module)
    wide = importers.union(*map(graph.find_modules_that_directly_import, importers))
    for near in (wide, importers):
        if len(paths := _test_files({module, *near})) <= _MOST:
            return paths
    return {path for path in paths if path.stem == f"test_{module.rpartition('.')[2]}"}


def _test_files(modules: set[str]) -> set[Path]:
    paths = (Path(*module.split(".")).with_suffix(".py") for module in modules)
    return {path for path in paths if path.name.startswith("test_")}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the files, one per line."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.changed_tests", description=__doc__)
    parser.add_argument("--since", default="HEAD", help="commit to compare with [HEAD]")
    arguments = parser.parse_args(argv)
    modules = [".".join(path.with_suffix("").parts) for path in changed_files(arguments.since)]
    for path in select_files([module for module in modules if module.partition(".")[0] in PACKAGES]):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
