"""Helpers that several test files share are in modules without tests: no test module imports from another."""

import ast

from dataprep_assets_tests.session.subsession import CHECKOUT

TESTS = CHECKOUT / "dataprep_assets_tests"


def test_no_test_module_is_imported_by_another() -> None:
    imported = {
        node.module.removeprefix("dataprep_assets_tests.")
        for path in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and ".test_" in node.module
    }
    assert imported == set()
