"""Helpers that several test files share are in modules without tests: no test module imports from another."""

import ast

from dataprep_assets_tests.session.subsession import CHECKOUT

TESTS = CHECKOUT / "dataprep_assets_tests"
REMAINING = {
    # These modules contain helpers of the pipelines, and will be moved together with the pipelines. Do not add entries
    # here.
    "pipelines.blend.rl.test_rl_jsonl",
    "pipelines.blend.sft.test_packed_sft",
    "pipelines.blend.test_blend_assets",
    "pipelines.blend.test_component",
    "pipelines.blend.test_finalize",
}


def test_no_test_module_is_imported_by_another() -> None:
    imported = {
        node.module.removeprefix("dataprep_assets_tests.")
        for path in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and ".test_" in node.module
    }
    assert imported <= REMAINING
