"""Which test files belong to a changed module."""

from pathlib import Path

from dataprep_assets_tests.changed_tests import tests_of


def test_a_module_selects_the_tests_that_import_it() -> None:
    assert Path("dataprep_assets_tests/formats/test_megatron.py") in tests_of(["dataprep_assets.formats.megatron"])


def test_a_module_of_nearly_all_tests_selects_the_tests_with_its_name() -> None:
    assert tests_of(["dataprep_assets.errors"]) == [Path("dataprep_assets_tests/test_errors.py")]


def test_a_test_file_selects_itself() -> None:
    assert tests_of(["dataprep_assets_tests.test_changed_tests"]) == [
        Path("dataprep_assets_tests/test_changed_tests.py")
    ]
