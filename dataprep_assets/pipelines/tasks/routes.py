"""Routes of a migration: its partitions, with the source and target folder of each partition.

A partition is a task (`Copa`), or a task and a version (`Copa.version_4-1`) for `version: all`. The trainer takes the
task from the last component of the path, so each version goes to `versions/<version>/<Task>/`. In a folder
`<Task>/<version>/`, the trainer would use the version's name as the task.

Entry points: `list_partitions`, `list_skipped_partitions`, `find_route`, `find_target`, `format_task_line`.
"""

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dataprep_assets.errors import ConfigError, DataprepError, SourceError
from dataprep_assets.pipelines.tasks.contract import TaskContract
from dataprep_assets.pipelines.tasks.declaration import TaskDeclaration, TaskMigrationDeclaration
from dataprep_assets.planning.task_versions import BASE, UnorderedFolder, VersionChoice, choose_versions
from dataprep_assets.stores.files import SourceDigests

Reference = Literal["original", "base"]
"""Kind of folder with which rows are compared: the declared original, else the old project's base."""


@dataclass(frozen=True, kw_only=True)
class TaskRoute:
    """Source and target of one task folder's files.

    `unordered` are folders next to the versions that `latest` and `all` skip. `digests` computes the digests of the old
    project's files for records, receipts and messages.
    """

    declaration: TaskMigrationDeclaration
    partition: str
    task: str
    version: str
    unordered: tuple[UnorderedFolder, ...]
    digests: SourceDigests

    @property
    def task_declaration(self) -> TaskDeclaration:
        """Declaration of the task."""
        return self.declaration.tasks[self.task]

    @property
    def contract(self) -> TaskContract:
        """Contract of the task."""
        return self.declaration.find_contract(self.task)

    @property
    def base(self) -> Path:
        """Folder of the task in the old project."""
        return _find_task_folder(self.declaration, self.task)

    @property
    def source(self) -> Path:
        """Folder of the version in the old project."""
        return self.base if self.version == BASE else self.base / self.task_declaration.versions_in / self.version

    @property
    def target(self) -> Path:
        """Folder of the task, or of its version, in the new project."""
        return find_target(self.declaration, self.partition)

    @property
    def reference(self) -> tuple[Reference, Path] | None:
        """Kind and path of the folder with the rows that were rewritten; None if there is none."""
        original = self.declaration.original
        if original is not None and (original / self.task).is_dir():
            return "original", original / self.task
        return ("base", self.base) if self.source != self.base and self.base.is_dir() else None


def list_partitions(declaration: TaskMigrationDeclaration) -> list[str]:
    """Return the partition keys of a declaration, in order; a task with `version: all` has one key per version.

    A task whose versions cannot be listed has one partition, which fails separately when it is migrated. An optional
    task is left out instead (`list_skipped_partitions`).
    """
    return [key for key in _list_declared_partitions(declaration) if _find_reason_to_skip(declaration, key) is None]


def list_skipped_partitions(declaration: TaskMigrationDeclaration) -> dict[str, str]:
    """Return the skipped partitions of optional tasks, with the reasons; lists folders, but reads no files."""
    reasons = {key: _find_reason_to_skip(declaration, key) for key in _list_declared_partitions(declaration)}
    return {key: reason for key, reason in reasons.items() if reason is not None}


def _find_reason_to_skip(declaration: TaskMigrationDeclaration, partition: str) -> str | None:
    """Return the reason why a partition of an optional task is skipped; None if it is not skipped."""
    if not declaration.tasks[partition.partition(".")[0]].optional:
        return None
    if not _find_task_folder(declaration, partition.partition(".")[0]).is_dir():
        return "no such folder"
    try:
        route = find_route(declaration, partition)
    except DataprepError:
        return "no such version"
    if not route.source.is_dir():
        return "no such version"
    for split in route.contract.splits:
        spec = route.contract.files[split]
        folders = [route.source, *([route.base] if split in route.task_declaration.inherit else [])]
        if spec.required and not any((folder / spec.name).is_file() for folder in folders):
            return f"no {split} file"
    return None


def _list_declared_partitions(declaration: TaskMigrationDeclaration) -> list[str]:
    """Return the partition keys of all tasks, including skipped ones."""
    keys: list[str] = []
    for task, task_spec in declaration.tasks.items():
        versions: tuple[str, ...] = ()
        if task_spec.version == "all":
            with suppress(DataprepError):
                versions = _choose_versions(declaration, task).chosen
        keys.extend([f"{task}.{version}" for version in versions] or [task])
    return keys


def find_route(declaration: TaskMigrationDeclaration, partition: str) -> TaskRoute:
    """Return the route of one partition; lists folders, but reads no files.

    Raises ConfigError or SourceError if the declared version cannot be found, and ConfigError without the declared
    `source_key`.
    """
    task, _, version = partition.partition(".")
    if task not in declaration.tasks:
        raise ConfigError(f"unknown task {partition}. Available: {', '.join(declaration.tasks)}")
    declared_version = declaration.tasks[task].version
    choice = _choose_versions(declaration, task)
    if declared_version == "all" and version not in choice.chosen:
        raise ConfigError(
            f"{partition}: unknown version of {task}. Available: {', '.join(choice.chosen)}. Reload the definitions, "
            "because each version is a partition"
        )
    return TaskRoute(
        declaration=declaration,
        partition=partition,
        task=task,
        version=version if declared_version == "all" else choice.chosen[0],
        unordered=choice.unordered if declared_version in ("latest", "all") else (),
        digests=declaration.source_digests(),
    )


def find_target(declaration: TaskMigrationDeclaration, partition: str) -> Path:
    """Return the folder of a partition in the new project, even if its version is missing in the old project."""
    task, _, version = partition.partition(".")
    parent = declaration.new_tasks / "versions" / version if version else declaration.new_tasks
    # Do not resolve links, because the last component must remain the task's name.
    return (parent / task).absolute()


def format_task_line(target: Path) -> str:
    """Return the line of a training script for a task folder, quoted for a shell if necessary."""
    return f"TASK={shlex.quote(str(target))}"


def _find_task_folder(declaration: TaskMigrationDeclaration, task: str) -> Path:
    return declaration.old_tasks / (declaration.tasks[task].old_folder or task)


def _choose_versions(declaration: TaskMigrationDeclaration, task: str) -> VersionChoice:
    """Return the versions that a task's declaration selects."""
    task_spec = declaration.tasks[task]
    folder = _find_task_folder(declaration, task) / task_spec.versions_in
    names = _list_folders(folder)
    if names is None and task_spec.version != BASE:
        folders = ", ".join(_list_folders(folder.parent) or ()) or "no folder"
        raise SourceError(
            f"tasks.{task}.version: {task_spec.version}: folder {folder} does not exist ({folder.parent} has "
            f"{folders}). Set `versions_in` to the folder that contains the versions"
        )
    try:
        return choose_versions(names or (), task_spec.version)
    except ConfigError as error:
        raise ConfigError(f"tasks.{task}.{error} (below {folder})") from error


def _list_folders(folder: Path) -> list[str] | None:
    """Return the sorted names of the folders in `folder`; None if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SourceError(f"{folder}: cannot be listed: {error.strerror}. Correct its permissions") from error
