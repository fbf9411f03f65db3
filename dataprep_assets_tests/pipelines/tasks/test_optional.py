"""Optional tasks: a missing task is skipped and listed with its reason, and an invalid one only warns."""

import shutil
from pathlib import Path

import pytest

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.tasks.checks import FILES, ROWS
from dataprep_assets.pipelines.tasks.declaration import TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.routes import list_partitions, list_skipped_partitions
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.tasks.migrations import Migration, evaluations, migration
from dataprep_assets_tests.pipelines.tasks.trees import TRAIN, edit, project, put

OPTIONAL = {"optional": True}
TASKS = {"CB": {}, "Copa": OPTIONAL}


def skipped(one: Migration) -> dict[str, str]:
    """Return the losses of optional tasks, as the end of a run lists them."""
    spec = one.component.specs[0]
    receipts = [one.store.receipt(one.declaration.artifact(spec.name, p)) for p in one.partitions]
    whole: list[Receipt] = [receipt for receipt in receipts if receipt is not None]
    return {loss.part: loss.kind for loss in spec.losses(one.store, whole) if loss.reason == "optional"}


@pytest.mark.parametrize(
    ("declared", "missing", "reason"),
    [
        (OPTIONAL, "Copa", "no such folder"),
        (OPTIONAL, f"Copa/{TRAIN}", "no train file"),
        ({**OPTIONAL, "version": "version_99"}, None, "no such version"),
        ({**OPTIONAL, "version": "latest", "versions_in": "nowhere"}, None, "no such version"),
    ],
)
def test_a_missing_task_is_skipped_with_its_reason(
    declared: dict[str, object], missing: str | None, reason: str, tmp_path: Path
) -> None:
    tree = project(tmp_path)
    if missing is not None:
        path = tree.old / missing
        (shutil.rmtree if path.is_dir() else Path.unlink)(path)
    with migration(tmp_path, {"CB": {}, "Copa": declared}) as one:
        outcome = one.run()
        assert outcome.success
        assert one.materialized() == {"CB"}
        assert all(evaluation.passed for evaluation in evaluations(outcome).values())
        assert skipped(one) == {"Copa": reason}
        (remark,) = one.component.remarks()
        assert (remark.keys, remark.hint) == (("tasks", "Copa"), True)
    assert not (tree.new / "Copa").exists()


def test_a_task_that_is_added_later_is_built(tmp_path: Path) -> None:
    tree = project(tmp_path)
    away = tree.old.parent / "away"
    (tree.old / "Copa").rename(away)
    declared = tree.declared(TASKS)
    assert [*list_skipped_partitions(declared)] == ["Copa"]
    away.rename(tree.old / "Copa")
    assert list_skipped_partitions(declared) == {}
    assert list_partitions(declared) == ["CB", "Copa"]


@pytest.mark.parametrize("optional", [True, False])
def test_invalid_rows_only_warn(optional: bool, tmp_path: Path) -> None:
    tree = project(tmp_path)
    edit(tree.old / "Copa" / TRAIN, put(3, label="wrong"))
    with migration(tmp_path, {"CB": {}, "Copa": {"optional": optional}}) as one:
        found = evaluations(one.run())
        assert not found[ROWS].passed
        assert (found[ROWS].severity.value == "WARN") is optional
        assert found[FILES].passed


def test_a_required_task_fails_as_before(tmp_path: Path) -> None:
    tree = project(tmp_path)
    shutil.rmtree(tree.old / "Copa")
    with migration(tmp_path, {"CB": {}, "Copa": {}}) as one:
        assert not evaluations(one.run())[FILES].passed
        assert skipped(one) == {}


def test_a_single_task_is_not_optional(tmp_path: Path) -> None:
    attributes = {"dataset": "tasks", "old_root": "old", "new_root": "new", "tasks": {"Copa": OPTIONAL}}
    with raises(ConfigError, "optional"):
        validate_declaration(TaskMigrationDeclaration, attributes, tmp_path / "defs.yaml")
