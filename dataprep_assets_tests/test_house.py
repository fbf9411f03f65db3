"""The shape of the house: what a stranger may rely on when looking for a thing, held for every module."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PRODUCT = [*sorted((REPOSITORY / "dataprep_assets").rglob("*.py")), *sorted((REPOSITORY / "resources").rglob("*.py"))]
TESTS = sorted((REPOSITORY / "dataprep_assets_tests").rglob("*.py"))
LONGEST = 400


def name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Every module, or name of one, that a file imports."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_a_module_of_the_product_holds_one_subject() -> None:
    lengths = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PRODUCT}
    assert {path: length for path, length in lengths.items() if length > LONGEST} == {}


def test_every_module_says_what_it_is() -> None:
    assert [name(path) for path in PRODUCT if not ast.get_docstring(tree(path))] == []


def test_nothing_private_of_dagster_is_imported() -> None:
    users = {name(path) for path in PRODUCT for found in imports(path) if found.startswith("dagster._")}
    assert users == {  # of each there is no public way
        "dataprep_assets/cli/ui.py",  # `dagster dev` with another webserver
        "dataprep_assets/orchestration/backfill.py",  # asking for a backfill
        "dataprep_assets/orchestration/checks.py",  # naming the materialization that a sensor judges
        "dataprep_assets/orchestration/compute_logs.py",  # showing what steps write without processes
        "dataprep_assets/orchestration/overview.py",  # the latest results of all checks in one query
        "dataprep_assets/orchestration/overview_page.py",  # the graph's type
        "dataprep_assets/orchestration/runs.py",  # knowing a blocked check from an error
        "dataprep_assets/orchestration/sqlite_storage.py",  # what is done again for each event
        "dataprep_assets/orchestration/timeline.py",  # saying of which code location a run is
        "dataprep_assets/orchestration/versions.py",  # the tags of a partition's data version
    }


def test_no_variable_of_the_environment_is_a_message_to_the_same_process() -> None:
    """The environment is written for libraries that read it at their import, and for the instance of Dagster alone."""
    writers = {
        name(path)
        for path in PRODUCT
        if re.search(r"os\.environ(\[[^\]]+\]\s*=|\.update\(|\.setdefault\()", path.read_text(encoding="utf-8"))
    }
    assert writers <= {
        "dataprep_assets/cli/__init__.py",  # threads of NumPy and of the fast engine
        "dataprep_assets/cli/project.py",  # DAGSTER_HOME, which Dagster reads
        "dataprep_assets/cli/ui.py",  # PYTHONPATH of the processes that Dagster starts
        "dataprep_assets/execution/processes.py",  # a worker's own, as its parent has it now
        "dataprep_assets/execution/slurm_task.py",  # the same on a node of Slurm
        "dataprep_assets/execution/ray_pool.py",  # what a Ray worker's libraries, and Ray itself, read
        "dataprep_assets/pipelines/notes/tfds_reader.py",  # TensorFlow's own, in a process of its own
    }


def test_no_class_is_called_work() -> None:
    """What is made has a name of its own: a token shard, a cohort, a route of a task's files."""
    classes = {node.name for path in PRODUCT for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)}
    assert "Work" not in classes


def test_no_test_module_imports_from_another() -> None:
    """What several tests use lives in modules without tests."""
    found = {
        name(path): sorted({module for module in imports(path) if re.search(r"(^|\.)test_\w+", module)})
        for path in TESTS
        if path.name != "test_house.py"
    }
    assert {path: modules for path, modules in found.items() if modules} == {}


@pytest.mark.parametrize("wing", ["corpus", "notes", "release", "tasks", "blend"])
def test_a_wing_has_a_declaration_and_a_component(wing: str) -> None:
    folder = REPOSITORY / "dataprep_assets" / "pipelines" / wing
    assert (folder / "declaration.py").exists()
    assert (folder / "component.py").exists()
