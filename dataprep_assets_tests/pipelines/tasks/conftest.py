"""An old project for each test of migrations, and task folders of the trainer's that a test may damage."""

import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.pipelines.tasks.contract import TaskContract, contract_from
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets_tests.pipelines.tasks.trees import Project, project, small


@lru_cache
def small_contract(task: str) -> TaskContract:
    """A contract is the same in all tests, and reading its YAML takes longer than most of them."""
    return contract_from(small(task), task)


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return project(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def folder(originals: Project, tmp_path: Path) -> Callable[[str], TaskFolder]:
    """A task's folder that a test may damage, as the trainer would find it."""

    def make(task: str, **contract: Any) -> TaskFolder:
        target = tmp_path / task
        shutil.copytree(originals.old / task, target, ignore=shutil.ignore_patterns("mezo_gpt"))
        for path in target.iterdir():
            path.chmod(0o644)
        return TaskFolder(
            folder=target,
            contract=contract_from(small(task, **contract), task) if contract else small_contract(task),
            task_value=str(target),
            reference=originals.home / "original" / task,
            reference_name="original",
        )

    return make


@pytest.fixture
def tree(tmp_path: Path) -> Project:
    """An old project with all six tasks."""
    return project(tmp_path)
