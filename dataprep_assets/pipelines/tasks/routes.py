"""The routes of a migration: its partitions, and for each where its files come from and where they go.

A partition is a task (`Copa`), or a task and a version (`Copa.version_4-1`) if all versions are wanted. The trainer
takes the task from the last component of the path, so each version of `all` goes to `versions/<version>/<Task>/`; a
folder `<Task>/<version>/` would be taken for a task of the version's name.

Entry points: `partitions`, `route_of`, `target_of`, `task_value`, `task_line`.
"""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dataprep_assets.errors import ConfigError, DataprepError, SourceError
from dataprep_assets.pipelines.tasks.contract import TaskContract
from dataprep_assets.pipelines.tasks.declaration import InheritedSplit, Mode, TaskMigrationDeclaration
from dataprep_assets.planning.task_versions import BASE, Choice, Unordered, choose
from dataprep_assets.sources.digests import PLAIN, SourceDigests

Reference = Literal["original", "base"]
"""What rows are compared with: the declared original, else the old project's base."""


@dataclass(frozen=True, kw_only=True)
class TaskRoute:
    """Where the files of one task folder come from, and where they go.

    `source` is the version's folder and `base` the task's own, both in the old project; `target` is the folder in the
    new one. `unordered` are folders beside the versions that `latest` and `all` skip.
    """

    partition: str
    task: str
    version: str
    unordered: tuple[Unordered, ...]
    contract: TaskContract
    mode: Mode
    inherit: tuple[InheritedSplit, ...]
    old_root: Path
    base: Path
    source: Path
    new_root: Path
    target: Path
    reference: Path | None
    """Folder of the rows that these were rewritten from: the original's, else the old project's base."""
    reference_name: Reference | None
    sensitive: bool = False
    digests: SourceDigests = PLAIN
    """How digests of the old project's files are made, for records, receipts and messages."""


def partitions(declaration: TaskMigrationDeclaration) -> list[str]:
    """Partition keys of a declaration, in its order; `all` gives one for each version of a task, in version order.

    A task whose versions cannot be listed gives one partition, which fails when it is migrated and stops no other.
    """
    found: list[str] = []
    for task, declared in declaration.tasks.items():
        if declared.version != "all":
            found.append(task)
            continue
        try:
            versions = _choice(declaration, task).chosen
        except DataprepError:
            found.append(task)
        else:
            found.extend(f"{task}.{version}" for version in versions)
    return found


def route_of(declaration: TaskMigrationDeclaration, partition: str) -> TaskRoute:
    """The route of one partition. Lists folders; reads no file.

    Raises ConfigError or SourceError when the declared version cannot be found, ConfigError without the declared
    `source_key`.
    """
    task, _, version = partition.partition(".")
    if task not in declaration.tasks:
        raise ConfigError(f"{partition}: no such task; the declared tasks are {', '.join(declaration.tasks)}")
    declared = declaration.tasks[task]
    choice = _choice(declaration, task)
    every = declared.version == "all"
    if every and version not in choice.chosen:
        raise ConfigError(
            f"{partition}: the versions of {task} are now {', '.join(choice.chosen)}. Reload the definitions: "
            "each version is a partition"
        )
    version = version if every else choice.chosen[0]
    base = _base(declaration, task)
    source = base if version == BASE else base / declared.versions_in / version
    reference, name = _reference(declaration, task, base, source)
    return TaskRoute(
        partition=partition,
        task=task,
        version=version,
        unordered=choice.unordered if declared.version in ("latest", "all") else (),
        contract=declaration.contract(task),
        mode=declared.mode,
        inherit=declared.inherit,
        old_root=declaration.old_root,
        base=base,
        source=source,
        new_root=declaration.new_root,
        target=target_of(declaration, partition),
        reference=reference,
        reference_name=name,
        sensitive=declaration.sensitive,
        digests=declaration.source_digests(),
    )


def target_of(declaration: TaskMigrationDeclaration, partition: str) -> Path:
    """The folder of a partition in the new project, whether or not its version can be found in the old one."""
    task, _, version = partition.partition(".")
    place = declaration.new_tasks / "versions" / version if version else declaration.new_tasks
    # links are not followed: the last component must stay the task's name, whatever a link there leads to
    return (place / task).absolute()


def task_value(route: TaskRoute) -> str:
    """What a training script's `TASK` has to be: the folder, its last component the task, without a trailing slash."""
    return str(route.target)


def task_line(target: Path) -> str:
    """The line of a training script for a task folder, quoted for a shell if that is needed."""
    return f"TASK={shlex.quote(str(target))}"


def _base(declaration: TaskMigrationDeclaration, task: str) -> Path:
    return declaration.old_tasks / (declaration.tasks[task].old_folder or task)


def _choice(declaration: TaskMigrationDeclaration, task: str) -> Choice:
    """The versions that a task's declaration selects."""
    declared = declaration.tasks[task]
    folder = _base(declaration, task) / declared.versions_in
    names = _folders(folder)
    if names is None and declared.version != BASE:
        beside = _folders(folder.parent)
        there = "is not there either" if beside is None else f"holds the folders {', '.join(beside) or '(none)'}"
        raise SourceError(
            f"tasks.{task}.version: {declared.version}: {folder} is not there, {folder.parent} {there}. "
            f"`versions_in` names the folder that holds the versions"
        )
    try:
        return choose(names or (), declared.version)
    except ConfigError as error:
        raise ConfigError(f"tasks.{task}.{error} (below {folder})") from error


def _folders(folder: Path) -> list[str] | None:
    """Names of the folders in a folder, sorted; None when it is not there."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SourceError(f"{folder}: cannot be listed: {error.strerror}") from error


def _reference(
    declaration: TaskMigrationDeclaration, task: str, base: Path, source: Path
) -> tuple[Path | None, Reference | None]:
    if declaration.original is not None and (original := declaration.original / task).is_dir():
        return original, "original"
    return (base, "base") if source != base and base.is_dir() else (None, None)
