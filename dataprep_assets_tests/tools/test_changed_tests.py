"""Which test files belong to a changed module."""

from pathlib import Path

from dataprep_assets_tests.tools.changed_tests import select_files


def test_a_module_selects_the_tests_that_import_it() -> None:
    assert Path("dataprep_assets_tests/formats/test_megatron.py") in select_files(["dataprep_assets.formats.megatron"])


def test_a_module_of_nearly_all_tests_selects_the_tests_with_its_name() -> None:
    assert select_files(["dataprep_assets.errors"]) == [Path("dataprep_assets_tests/test_errors.py")]


def test_a_test_file_selects_itself() -> None:
    assert select_files(["dataprep_assets_tests.tools.test_changed_tests"]) == [
        Path("dataprep_assets_tests/tools/test_changed_tests.py")
    ]
