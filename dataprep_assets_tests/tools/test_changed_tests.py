"""Selection of the test files for a changed file, within a budget."""

from collections.abc import Mapping
from pathlib import Path

from dataprep_assets_tests.tools.changed_tests import PAGES, select_files

TESTS = Path("dataprep_assets_tests")


def select(changed: str, seconds: Mapping[str, float], budget: float = 100) -> list[Path]:
    return select_files([Path(changed)], seconds, budget)[0]


def test_a_module_selects_the_tests_that_import_it_until_the_budget_is_used() -> None:
    changed, own = "dataprep_assets/formats/megatron.py", TESTS / "formats/test_megatron.py"
    everything = select(changed, {})
    assert everything[0] == own
    assert len(everything) > 5
    few, left_out = select_files([Path(changed)], {path.as_posix(): 30 for path in everything}, 100)
    assert few == [own, *few[1:]]
    assert (len(few), left_out) == (3, len(everything) - 3)
    assert select(changed, {own.as_posix(): 1000}) == [own], "its own test file whatever it takes"


def test_a_module_that_nearly_all_tests_import_keeps_to_the_budget() -> None:
    files, left_out = select_files([Path("dataprep_assets/errors.py")], {"any": 1.0}, 50)
    assert files[0] == TESTS / "test_errors.py"
    assert len(files) == 50
    assert left_out > 50


def test_a_test_file_selects_itself_and_a_page_the_tests_of_pages() -> None:
    assert select("dataprep_assets_tests/tools/test_changed_tests.py", {}) == [TESTS / "tools/test_changed_tests.py"]
    assert set(select("docs/drill.md", {})) == set(PAGES)
