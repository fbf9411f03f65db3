"""An old project with all six tasks, its declaration, and functions that read and damage migrated files."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.engine.staleness.decide import Decision
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.tasks.checks import check_task
from dataprep_assets.pipelines.tasks.contract import Split, load_shipped_contracts
from dataprep_assets.pipelines.tasks.dataset import build_task_folder_spec
from dataprep_assets.pipelines.tasks.declaration import TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.migration import MigrationResult, migrate_task
from dataprep_assets.pipelines.tasks.routes import list_partitions
from dataprep_assets_tests.tools.sample.make_sample_tasks import DISCARDED, LAYOUT, VERSIONS, jsonl, write_tree

TASKS = tuple(load_shipped_contracts())
TRAIN = "copa_train.jsonl"
"""Copa's train file, which most tests of a migration use."""
COUNTS: Mapping[Split, int] = {"train": 12, "validation": 6, "test": 5}


def small(task: str, **changes: Any) -> dict[str, Any]:
    """Return the contract of a task, with the row counts of these trees."""
    splits = load_shipped_contracts()[task].splits
    return {"like": task, "files": {s: {"rows": COUNTS[s]} for s in splits}, **changes}


@dataclass(frozen=True)
class Project:
    """An old project, the original data, and a new project, below one folder."""

    home: Path

    @property
    def old(self) -> Path:
        return self.home / "old" / LAYOUT

    @property
    def new(self) -> Path:
        return self.home / "new" / LAYOUT

    @property
    def store(self) -> LocalArtifacts:
        return LocalArtifacts(self.home / "artifacts")

    def declared(self, tasks: Mapping[str, Mapping[str, Any]] | None = None, **more: Any) -> TaskMigrationDeclaration:
        """Return the migration of these tasks (by default all of them, at their base)."""
        wanted = {task: {} for task in TASKS} if tasks is None else tasks
        return TaskMigrationDeclaration.model_validate(
            {
                "dataset": "tasks",
                "old_root": "old",
                "new_root": "new",
                "original": "original",
                "tasks": wanted,
                "contracts": {task: small(task) for task in TASKS},
                **more,
            }
        ).resolve_paths(self.home)

    def migrate(self, declaration: TaskMigrationDeclaration) -> dict[str, MigrationResult]:
        """Migrate every partition of a declaration."""
        return {p: migrate_task(declaration, self.store, p) for p in list_partitions(declaration)}

    def stale(self, declaration: TaskMigrationDeclaration) -> dict[str, Decision]:
        """Return the pending parts of a migration, by partition."""
        found = find_stale([build_task_folder_spec(declaration)], self.store)
        return {one.name.removeprefix(f"{declaration.dataset}/task_folder/"): one for one in found}

    def is_current(self, declaration: TaskMigrationDeclaration, partition: str) -> bool:
        """Return whether a run would leave a partition unchanged."""
        return partition not in self.stale(declaration)

    def faults(self, declaration: TaskMigrationDeclaration, partition: str) -> dict[str, list[str]]:
        """Return the faults of a partition's folder by check, without checks that pass."""
        found = check_task(declaration, self.store, partition)
        return {check: [fault.text for fault in faults] for check, faults in found.items() if faults}


def project(home: Path, tasks: Sequence[str] = TASKS) -> Project:
    """Write an old project with these tasks, with three versions of Copa and a discarded one."""
    counts = {task: {split: COUNTS[split] for split in load_shipped_contracts()[task].splits} for task in tasks}
    write_tree(home, counts, {"Copa": (*VERSIONS, DISCARDED)})
    return Project(home)


def foreign(tree: Project, data: bytes = b'{"mine": 1}\n') -> Path:
    """Write a user's file in the new project, in place of Copa's train file."""
    path = tree.new / "Copa" / TRAIN
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def snapshot(folder: Path) -> dict[str, tuple[str, bytes | str, int]]:
    """Return the kind, content or link text, and permissions of every entry of a folder except folders."""
    found: dict[str, tuple[str, bytes | str, int]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = ("link", path.readlink().as_posix(), 0)
        elif path.is_file():
            found[name] = ("file", path.read_bytes(), path.stat().st_mode & 0o777)
    return found


def edit(path: Path, change: Callable[[list[dict[str, Any]]], Sequence[Mapping[str, Any]] | None]) -> None:
    """Change the rows of a task file; `change` edits them in place or returns others."""
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    changed = change(rows)
    path.write_bytes(jsonl(rows if changed is None else changed))


def put(line: int, **values: Any) -> Callable[[list[dict[str, Any]]], None]:
    """Set keys of a row, 1-based like the lines of messages."""
    return lambda rows: rows[line - 1].update(values)


def drop(line: int, key: str) -> Callable[[list[dict[str, Any]]], None]:
    """Remove a key from a row."""

    def change(rows: list[dict[str, Any]]) -> None:
        del rows[line - 1][key]

    return change
