"""No test process imports a heavy library: the session fails if one does, and no test module contains such an
import.
"""

import ast
from pathlib import Path

import pytest

from dataprep_assets_tests.readers.families import HEAVY
from dataprep_assets_tests.session.subsession import CHECKOUT, run_session

TESTS = CHECKOUT / "dataprep_assets_tests"
COMMANDS = {
    # These modules run as commands in their own processes.
    *(
        "tools/atlas/sweep.py",
        "tools/bench/contenders.py",
        "tools/bench/datatrove_tokenizer.py",
        "tools/bench/sft.py",
        "tools/bench/taggers.py",
        "tools/bench/tfrecord.py",
    ),
    *(
        "tools/bench/datatrove_filters.py",
        "tools/bench/duplicates.py",
        "tools/bench/loaders.py",
        "tools/bench/resumption.py",
    ),
    "tools/bench/their_energon.py",
    "execution/engine_wings.py",
    "execution/ray_tasks.py",
    *(
        "tools/parity/bridge.py",
        "tools/parity/datatrove_filters.py",
        "tools/parity/datatrove_recipes.py",
        "tools/parity/maxtext.py",
        "tools/parity/maxtext_sft.py",
        "tools/parity/nemotron_sft.py",
        "tools/parity/sft_views.py",
        "tools/parity/templar_rank.py",
        "tools/parity/their_sft.py",
        "tools/parity/tokenized_notes.py",
    ),
}
SKIPPERS = {"importorskip", "import_module", "__import__"}


def imported(path: Path) -> set[str]:
    """Return the top-level modules that a file imports anywhere, by a statement or by name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in SKIPPERS:
                found.add(str(node.args[0].value))
    return {name.partition(".")[0] for name in found}


def test_only_readers_and_commands_import_heavy_libraries() -> None:
    names = {path: path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py")}
    guilty = {
        name: sorted(HEAVY & imported(path))
        for path, name in names.items()
        if not name.startswith("readers/") and name not in COMMANDS and HEAVY & imported(path)
    }
    assert guilty == {}
    assert {name for name in names.values() if name in COMMANDS} == COMMANDS


def test_a_reader_imports_them_only_inside_its_functions() -> None:
    for path in sorted((TESTS / "readers").glob("*.py")):
        at_the_top = ast.Module([n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Import)], [])
        assert not {alias.name.partition(".")[0] for node in at_the_top.body for alias in node.names} & HEAVY, path
        of_names = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ImportFrom)]
        assert not {(node.module or "").partition(".")[0] for node in of_names} & HEAVY, path


# Empty modules replace the libraries, because the test only checks which imports are noticed.
FAKES = {"tensorflow.py": "", "triton.py": ""}


def test_a_test_that_imports_two_families_fails_and_is_named(tmp_path: Path) -> None:
    test = "def test_innocent(): pass\n\ndef test_guilty():\n    import tensorflow, triton\n\ndef test_late(): pass\n"
    ended = run_session(tmp_path, {**FAKES, "test_it.py": test}, "-q")
    assert ended.code == 1, ended.printed
    assert "3 passed, 1 error" in ended.printed
    assert "test_it.py::test_guilty imported tensorflow, triton into the test process" in ended.printed


@pytest.mark.parametrize("workers", [(), ("-n", "2", "--dist", "loadfile")])
def test_a_module_that_imports_one_is_refused_and_named(tmp_path: Path, workers: tuple[str, ...]) -> None:
    ended = run_session(tmp_path, {**FAKES, "test_it.py": "import triton\n\ndef test_any(): pass\n"}, "-q", *workers)
    assert ended.code != 0
    assert "test_it.py imported triton into the test process" in ended.printed
    assert "passed" not in ended.printed


def test_an_import_in_a_fixture_fails_its_test(tmp_path: Path) -> None:
    fixture = (
        "import pytest\n\n@pytest.fixture(scope='module')\ndef library():\n    return pytest.importorskip('torch')\n"
    )
    test = f"{fixture}\ndef test_uses_it(library): pass\n"
    ended = run_session(tmp_path, {"torch.py": "", "test_it.py": test}, "-q")
    assert ended.code == 1, ended.printed
    assert "test_it.py::test_uses_it imported torch" in ended.printed
