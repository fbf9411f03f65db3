"""Migration of task folders: copies a version's files from an old project into the trainer's folder.

The files go into the new project's own tree (`file_placement`). The artifact in the storage describes them in
`migration.json`, with the origin of each file (`record`).

First all files are read and all conflicts are rejected. Then the files are renamed into place, and the receipt is
written last. A rerun skips finished steps. Only files that a migration wrote and that are unchanged are replaced. Files
missing in the old project are recorded for the checks, so that other files and tasks are still migrated.

Entry points: `migrate_task`, `build_present_recipe`, `read_source`, `find_conflicts`, `TaskFolderFacts`.
"""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Change, Recipe
from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError, count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.tasks.contract import Split
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER, Mode, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.file_placement import MODE, PRIVATE_MODE, Placement
from dataprep_assets.pipelines.tasks.record import (
    NAME,
    AbsenceCause,
    AbsentFile,
    MigratedFile,
    MigrationRecord,
    RowDifference,
    UnorderedVersion,
    compare_rows,
    read_record,
)
from dataprep_assets.pipelines.tasks.routes import TaskRoute, find_route
from dataprep_assets.pipelines.tasks.task_rows import TaskRows, read_rows
from dataprep_assets.planning.task_versions import BASE
from dataprep_assets.stores.files import digest_value, sha256_file
from dataprep_assets.stores.locks import open_own_file, refuse_link

VERSION = 3


@dataclass(frozen=True, kw_only=True)
class FileToMigrate:
    """A file of the old project that is to be migrated."""

    file: MigratedFile
    path: Path
    rows: TaskRows


@dataclass(frozen=True, kw_only=True)
class SourceFolder:
    """Files of one task folder in the old project, present and absent."""

    route: TaskRoute
    files: tuple[FileToMigrate, ...]
    absent: tuple[AbsentFile, ...]

    @property
    def placements(self) -> list[Placement]:
        """Files required in the new project, with their sources."""
        return [
            Placement(
                source=f.path,
                target=self.route.target / f.file.name,
                mode=self.route.task_declaration.mode,
                sha256=f.rows.sha256,
                digests=self.route.digests,
                permissions=PRIVATE_MODE if self.route.declaration.sensitive else MODE,
            )
            for f in self.files
        ]

    @property
    def record(self) -> MigrationRecord:
        """Record of a migration of this folder."""
        route = self.route
        return MigrationRecord(
            task=route.task,
            version=route.version,
            mode=route.task_declaration.mode,
            # Store a relative path, so that the record does not depend on the projects' locations.
            place=route.target.relative_to(route.declaration.new_root.absolute()).as_posix(),
            files=tuple(f.file for f in self.files),
            absent=self.absent,
            ignored_files=_list_ignored_files(route),
            unordered_versions=tuple(UnorderedVersion(name=u.name, reason=u.reason) for u in route.unordered),
            compared_with=route.reference[0] if route.reference else None,
            differences=dict(self._find_differences()),
        )

    def _find_differences(self) -> Iterator[tuple[Split, RowDifference]]:
        """Yield the difference of each split from the original, if both versions exist and are readable."""
        reference = self.route.reference
        for file in self.files if reference else ():
            assert reference is not None
            path = reference[1] / file.file.name
            try:
                original = read_rows(path) if path.is_file() else None
            except OSError:
                original = None
            if original is not None:
                yield file.file.split, compare_rows(original.rows, file.rows.rows, self.route.contract)


def read_source(route: TaskRoute) -> SourceFolder:
    """Read the old project's files; list unusable files as absent, with the cause."""
    files: list[FileToMigrate] = []
    absent_files: list[AbsentFile] = []
    for split in route.contract.splits:
        source = _read_file(route, split, route.source, inherited=False)
        # Inherit only missing files, because a file of the base must not replace an unusable file of a version.
        is_missing = isinstance(source, AbsentFile) and source.cause == "missing"
        if is_missing and route.source != route.base and split in route.task_declaration.inherit:
            source = _read_file(route, split, route.base, inherited=True)
        if isinstance(source, AbsentFile):
            absent_files.append(source)
        else:
            files.append(source)
    return SourceFolder(route=route, files=tuple(files), absent=tuple(absent_files))


def _read_file(route: TaskRoute, split: Split, folder: Path, *, inherited: bool) -> FileToMigrate | AbsentFile:
    spec = route.contract.files[split]
    path = folder / spec.name
    relpath = path.relative_to(route.declaration.old_root).as_posix()
    try:
        reason = _explain_unusable(route, path, relpath)
        rows = None if reason else read_rows(path)
    except OSError as error:
        reason, rows = ("unreadable", f"{relpath} cannot be read: {error.strerror}"), None
    if reason is not None or rows is None:
        cause, detail = reason or ("missing", "")
        return AbsentFile(split=split, name=spec.name, required=spec.required, cause=cause, detail=detail)
    file = MigratedFile(
        split=split,
        name=spec.name,
        source=relpath,
        version=BASE if inherited else route.version,
        inherited=inherited,
        how="linked" if route.task_declaration.mode == "symlink" else "copied",
        bytes=rows.bytes,
        sha256=route.digests.digest_of(rows.sha256),
        rows=len(rows.rows),
    )
    return FileToMigrate(file=file, path=path, rows=rows)


def _explain_unusable(route: TaskRoute, path: Path, place: str) -> tuple[AbsenceCause, str] | None:
    """Return the cause and a sentence if a file of the old project is unusable; None if it is usable."""
    try:
        # List the folder, because exact names matter even on a file system that ignores case.
        names = os.listdir(path.parent)
    except (FileNotFoundError, NotADirectoryError):
        return "missing", f"the folder {path.parent.relative_to(route.declaration.old_root).as_posix()} does not exist"
    if path.name not in names:
        if similar_names := sorted(n for n in names if n.casefold() == path.name.casefold()):
            return (
                "other_case",
                f"{place} does not exist, but {similar_names[0]} does. Rename it: names are case-sensitive",
            )
        return "missing", f"{place} does not exist"
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return "broken_link", f"{place} is a link to {os.readlink(path)}, which does not exist"
    if not stat.S_ISREG(kind):
        if stat.S_ISDIR(kind):
            return "directory", f"{place} is a folder, not a file"
        return "not_regular", f"{place} is not a regular file"
    if not os.access(path, os.R_OK):
        return "unreadable", f"{place} cannot be read: its permissions are {stat.S_IMODE(kind):04o}"
    is_linked = route.task_declaration.mode == "symlink"
    if is_linked and not path.resolve().is_relative_to(route.declaration.old_root.resolve()):
        return "outside_old_project", f"{place} is a link to a file outside the old project. Set `mode: copy`"
    return None


def _list_ignored_files(route: TaskRoute) -> tuple[str, ...]:
    """Return the files in the version's folder that the trainer never reads and that are not migrated."""
    known_names = {f.name for f in route.contract.files.values()}
    try:
        with os.scandir(route.source) as entries:
            return tuple(
                sorted(e.name for e in entries if e.name not in known_names and e.is_file(follow_symlinks=False))
            )
    except OSError:  # the task's `AbsentFile` entries contain the reason
        return ()


class TaskFolderFacts(Facts):
    """Facts in the receipt of a task folder: `rows` has counts per split; `place` is relative to the new project."""

    task: str
    version: str
    mode: Mode
    place: str
    rows: dict[Split, int]
    absent: tuple[str, ...]

    @classmethod
    def from_record(cls, record: MigrationRecord) -> Self:
        """Return the facts for the receipt of an artifact with this record."""
        return cls(
            task=record.task,
            version=record.version,
            mode=record.mode,
            place=record.place,
            rows={file.split: file.rows for file in record.files},
            absent=tuple(file.name for file in record.absent),
        )


@dataclass(frozen=True, kw_only=True)
class MigrationResult:
    """Result of migrating a task folder.

    `placed` lists the files that this run placed. `reused` is True if the artifact was up to date. If `placed` is
    also empty, there was nothing to do.
    """

    partition: str
    record: MigrationRecord
    receipt: Receipt
    reused: bool
    placed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PendingRecipe(Recipe):
    """Recipe of a task folder some of whose files are missing in the new project or cannot be placed there.

    `reason` is a sentence with the cause, used unless the artifact itself is out of date. `key` is empty if the
    migration would be rejected.
    """

    reason: str

    def find_change(self, receipt: Receipt) -> Change:
        change = super().find_change(receipt) if self.key else None
        return change or Change(kind="damaged" if self.key else "input changed", reason=self.reason)


def build_task_recipe(artifact: Artifact, record: MigrationRecord) -> Recipe:
    """Return the recipe of a task folder.

    Its key is a digest of the record, which determines the artifact. Its named values show what changed.
    """
    value = record.model_dump(mode="json")
    parts = {
        **{f"{file.name} (absent)": file for file in record.absent},
        **{f"{split} rows against the {record.compared_with}": d for split, d in record.differences.items()},
    }
    # Omit empty lists, so that the recipe shows only lists with files or folders.
    lists = {name: value[name] for name in ("ignored_files", "unordered_versions") if value[name]}
    return Recipe(
        artifact=artifact,
        key=digest_value(["task_folder", VERSION, value]),
        version=VERSION,
        settings={name: value[name] for name in ("task", "version", "mode", "place", "compared_with")},
        sources={
            **{file.source: file.sha256 for file in record.files},
            **{name: digest_value(part.model_dump(mode="json")) for name, part in parts.items()},
            **{name: digest_value(part) for name, part in lists.items()},
        },
    )


def migrate_task(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> MigrationResult:
    """Place the files of one task folder in the new project, and build its artifact unless it is up to date.

    `declaration` has the old and the new project, `store` contains the artifact, and `partition` is one of
    `routes.list_partitions`. Raises ConfigError, before any change, for a different file that no migration wrote or
    that was changed afterwards, for a folder in place of a file, and for a new project inside the old project.
    """
    route = find_route(declaration, partition)
    _require_outside_old_project(route)
    artifact = declaration.artifact(TASK_FOLDER, partition)
    with _lock_partition(store.directory(artifact)):
        # Read all files and reject all conflicts before the first change. The lock prevents other migrations of this
        # partition from changing the files in between.
        source = read_source(route)
        states = [(placement, placement.find_state()) for placement in source.placements]
        if conflicts := list(find_conflicts(declaration, store, source)):
            raise ConfigError(f"{conflicts[0]} ({count_of(len(conflicts), 'file')} in conflict). Nothing was changed")
        placed_names = []
        for placement, state in states:
            # Remove the staged file of a killed run, because it would block a new link or copy.
            placement.staged_path.unlink(missing_ok=True)
            if state == "done":
                continue
            placement.place()
            placed_names.append(placement.target.name)
        record = source.record

        def write(staged: Path) -> WrittenFiles:
            (staged / NAME).write_bytes(record.to_bytes())
            return WrittenFiles(
                inputs={f.source: f.sha256 for f in record.files}, facts=TaskFolderFacts.from_record(record)
            )

        receipt, reused = ensure_built(build_task_recipe(artifact, record), store, write, declaration.verify)
    return MigrationResult(
        partition=partition, record=record, receipt=receipt, reused=reused, placed=tuple(placed_names)
    )


def find_conflicts(declaration: TaskMigrationDeclaration, store: ArtifactStore, source: SourceFolder) -> Iterator[str]:
    """Yield a sentence for each file that blocks a migration: files in the new project that users wrote or changed."""
    try:
        record = read_record(store.local(declaration.artifact(TASK_FOLDER, source.route.partition)))
    except IntegrityError:  # without a record, every regular file counts as the user's own
        record = None
    for placement in source.placements:
        state, target = placement.find_state(), placement.target
        if state not in ("other_file", "other_link") or _is_own(source.route, placement, record):
            continue
        content, kind = "a link to different content", "link"
        if state == "other_file":
            sha256 = placement.shorten_digest(sha256_file(target))
            digest, kind = placement.shorten_digest(placement.sha256), "file"
            content = f"a file with different content (its sha256 is {sha256}, but the version has {digest})"
        yield f"{target.name} in {target.parent}: the new project already has {content}. Move this {kind} away"


def _is_own(route: TaskRoute, placement: Placement, record: MigrationRecord | None) -> bool:
    """Return whether a migration placed the target and it is unchanged."""
    target = placement.target
    # A broken link, or a link into the old project, has no content of its own that could be lost.
    if target.is_symlink():
        return not target.exists() or target.resolve().is_relative_to(route.declaration.old_root.resolve())
    file = record.find_file(target.name) if record else None
    return file is not None and file.how == "copied" and file.sha256 == placement.digests.digest_of(sha256_file(target))


def build_present_recipe(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> Recipe:
    """Return the current recipe of a partition's artifact without changing anything.

    `partition` is one of `routes.list_partitions`. The recipe is a `PendingRecipe` if a file in the new project has
    changed since its migration, or if a migration would be rejected.
    """
    artifact = declaration.artifact(TASK_FOLDER, partition)
    try:
        route = find_route(declaration, partition)
        source = read_source(route)
        pending = [p.target.name for p in source.placements if p.find_state() != "done"]
        recipe = build_task_recipe(artifact, source.record)
    except DataprepError as error:
        return PendingRecipe(artifact=artifact, key="", reason=str(error))
    if pending:
        reason = f"{', '.join(pending)} in {route.target}: changed since the migration"
        return PendingRecipe(**{**vars(recipe), "reason": reason})
    return recipe


def _require_outside_old_project(route: TaskRoute) -> None:
    """Raise ConfigError if the target is a folder of the old project, where a link would replace its own source."""
    if route.target.resolve().is_relative_to(route.base.parent.resolve()):
        raise ConfigError(
            f"new_root: {route.target} is a folder of the old project ({route.base.parent}), so the migration would "
            "replace its own sources. Set the new project's own root"
        )


@contextmanager
def _lock_partition(directory: Path) -> Iterator[None]:
    """Allow only one migration of a partition at a time; the kernel releases the lock when the process dies."""
    # Keep the lock outside the artifact's folder, because the folder is replaced as a whole.
    area = directory.parent / STAGING
    area.mkdir(parents=True, exist_ok=True)
    refuse_link(area)
    with open(area / f"{directory.name}.migration.lock", "a", opener=open_own_file) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
