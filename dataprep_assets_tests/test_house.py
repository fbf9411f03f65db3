"""Rules for the structure of the code, tested for every module, so that readers can rely on them."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

REPOSITORY = Path(__file__).parents[1]
PRODUCT = [*sorted((REPOSITORY / "dataprep_assets").rglob("*.py")), *sorted((REPOSITORY / "resources").rglob("*.py"))]
TESTS = sorted((REPOSITORY / "dataprep_assets_tests").rglob("*.py"))
LONGEST, MAX_MODULES, MAX_EQUAL_NAMES = 800, 20, 5


def name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Return every module, or name of a module, that a file imports."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_a_module_of_the_product_has_one_subject() -> None:
    lengths = {name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PRODUCT}
    assert {path: length for path, length in lengths.items() if length > LONGEST} == {}


def test_a_folder_of_the_product_has_few_modules() -> None:
    counts = Counter(name(path.parent) for path in PRODUCT)
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}


def test_a_name_of_a_class_means_one_class() -> None:
    names = Counter(node.name for path in PRODUCT for node in tree(path).body if isinstance(node, ast.ClassDef))
    repeated_names = sorted(class_name for class_name, count in names.items() if count > 1)
    assert len(repeated_names) <= MAX_EQUAL_NAMES, repeated_names


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count. Imports that only type checkers see do not."""
    graph = grimp.build_graph("dataprep_assets", exclude_type_checking_imports=True)
    try:
        TopologicalSorter(
            {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        ).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_every_module_has_a_description() -> None:
    assert [name(path) for path in PRODUCT if not ast.get_docstring(tree(path))] == []


def test_text_is_never_written_in_the_encoding_of_the_locale() -> None:
    calls = [(path, node) for path in PRODUCT for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    written = [(path, call) for path, call in calls if getattr(call.func, "attr", "") == "write_text"]
    assert written
    assert [
        name(path)
        for path, call in written
        if "ensure_ascii=False" in ast.unparse(call) and all(word.arg != "encoding" for word in call.keywords)
    ] == []


INSIDE_DAGSTER = re.compile(r"\bdagster\._|\bdagster_shared\b|\bdagster\.\w+\.core\b")


def test_only_public_modules_of_dagster_are_imported() -> None:
    """The next minor version of Dagster may move private modules."""
    assert [name(path) for path in PRODUCT if any(map(INSIDE_DAGSTER.match, imports(path)))] == []


def test_settings_name_no_internals_of_dagster_if_there_is_another_way() -> None:
    """A `dagster.yaml` may name classes by the modules in Dagster's own documentation of that file."""
    settings = [path for folder in ("dataprep_assets", "deploy") for path in (REPOSITORY / folder).rglob("*.yaml")]
    lines = {
        line.strip()
        for path in settings
        for line in path.read_text(encoding="utf-8").splitlines()
        if INSIDE_DAGSTER.search(line)
    }
    assert lines == {
        "module: dagster._core.storage.root",  # this module contains LocalArtifactStorage
        "module: dagster._core.storage.local_compute_log_manager",
    }


def test_no_environment_variable_passes_data_within_a_process() -> None:
    """The environment is only set for libraries that read it, and for the instance of Dagster."""
    writers = {
        name(path)
        for path in PRODUCT
        if re.search(r"os\.environ(\[[^\]]+\]\s*=|\.update\(|\.setdefault\()", path.read_text(encoding="utf-8"))
    }
    # Each comment names the variables that the module sets.
    assert writers <= {
        "dataprep_assets/cli/__init__.py",  # the numbers of threads of NumPy and of the fast engine
        "dataprep_assets/project.py",  # the `.env` of a project, as Dagster's commands read it
        "dataprep_assets/library/project.py",  # DAGSTER_HOME, which Dagster and its settings read
        "dataprep_assets/library/instance.py",  # the size of event batches, which Dagster reads
        # This module sets variables of workers, and the modules that the fork server must load.
        "dataprep_assets/execution/processes.py",
        "dataprep_assets/execution/pool.py",  # variables that Ray and libraries in its workers read
        "dataprep_assets/pipelines/notes/tfds/directory_checks.py",  # TensorFlow's own variables, in a separate process
        "dataprep_assets/stores/gcs.py",  # google-cloud-storage's only switch for its bucket requests
    }


def test_one_module_decides_what_is_public_of_a_sensitive_dataset() -> None:
    """Messages are plain text everywhere; no marks in them state which parts are public."""
    marked = {"small_cells", "sentences", "safe_number_of", "number_of"}
    assert [name(path) for path in PRODUCT for found in imports(path) if found.rpartition(".")[2] in marked] == []


COUNTED = re.compile(
    r" (?:[a-z-]+ )?(?:artifacts|bytes|characters|checks|columns|conversations|datasets|documents|entries|fields|files|"
    r"ids|items|lines|months|notes|objects|patients|records|rows|runs|samples|segments|sequences|shards|sources|splits|steps|"
    r"tasks|texts|times|tokens|values|words)\b"
)


def test_a_count_is_written_with_its_noun_in_the_right_number() -> None:
    """`count_of` writes `1 row`; a constant, which is a limit, may come before a plural."""

    def is_count(value: ast.expr) -> bool:
        return isinstance(value, ast.FormattedValue) and ast.unparse(value.value).startswith("len(")

    strings = [(path, node) for path in PRODUCT for node in ast.walk(tree(path)) if isinstance(node, ast.JoinedStr)]
    pairs = [(path, *pair) for path, node in strings for pair in zip(node.values, node.values[1:], strict=False)]
    assert [
        f"{name(path)}:{value.lineno}"
        for path, value, text in pairs
        if is_count(value) and isinstance(text, ast.Constant) and COUNTED.match(text.value)
    ] == []


def test_no_class_is_called_work() -> None:
    """A result has its own name: a token shard, a cohort, a route of a task's files."""
    classes = {node.name for path in PRODUCT for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)}
    assert "Work" not in classes


def test_no_test_module_imports_from_another() -> None:
    """Helpers of several tests are in modules without tests."""
    found = {
        name(path): sorted({module for module in imports(path) if re.search(r"(^|\.)test_\w+", module)})
        for path in TESTS
        if path.name != "test_house.py"
    }
    assert {path: modules for path, modules in found.items() if modules} == {}


@pytest.mark.parametrize("wing", ["corpus", "notes", "release", "schedule", "tasks", "blend"])
def test_a_pipeline_has_a_declaration_and_a_component(wing: str) -> None:
    folder = REPOSITORY / "dataprep_assets" / "pipelines" / wing
    assert (folder / "declaration.py").exists()
    assert (folder / "component.py").exists()
