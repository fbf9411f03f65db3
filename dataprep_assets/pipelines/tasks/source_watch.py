"""Asks the old project for changes: which files its task folders have, and of what size."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from dataprep_assets.graph.source_watch import SourceIdentity, SourceWatch, identity_of, in_words, time_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.record import MigrationRecord, read_record
from dataprep_assets.pipelines.tasks.routes import TaskRoute, route_of


def tasks_watch(declaration: TaskMigrationDeclaration, partitions: Sequence[str]) -> SourceWatch:
    """How the old project is asked for changes; a newer `latest` version is a change."""
    return SourceWatch(
        identity=partial(_identity, declaration, partitions), changes=partial(_changes, declaration, partitions)
    )


def _files(route: TaskRoute) -> Iterator[tuple[str, Path]]:
    """Name in the old project and path of each file that a migration would take."""
    for split in route.contract.splits:
        folders = [route.source, *([route.base] if split in route.inherit else [])]
        name = route.contract.file(split).name
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None:
            yield path.relative_to(route.old_root).as_posix(), path


def _identity(declaration: TaskMigrationDeclaration, partitions: Sequence[str], _: ArtifactStore) -> SourceIdentity:
    listing: list[list[str | int]] = []
    stamps: list[list[str | int]] = []
    for partition in partitions:
        route = route_of(declaration, partition)
        for name, path in _files(route):
            listing.append([partition, route.version, name, path.stat().st_size])
            stamps.append([name, time_of(path, name)])
            # the record counts differences from the original, so an edit there is a change, too
            original = route.reference / path.name if route.reference is not None else None
            if original is not None and original.is_file():
                stamps.append([f"reference of {name}", time_of(original, name)])
    return identity_of(listing, stamps)


def _changes(declaration: TaskMigrationDeclaration, partitions: Sequence[str], store: ArtifactStore) -> str:
    """The changes since the records of the present migrations."""
    new = versions = edited = 0
    for partition in partitions:
        artifact = declaration.artifact(TASK_FOLDER, partition)
        record = read_record(store.local(artifact)) if store.intact(artifact) is not None else None
        route = route_of(declaration, partition)
        if record is None:
            new += 1
        elif record.version != route.version:
            versions += 1
        else:
            edited += not _as_recorded(route, record)
    return in_words([(new, "task", "new"), (versions, "version", "new"), (edited, "task", "changed")])


def _as_recorded(route: TaskRoute, record: MigrationRecord) -> bool:
    return {name: path.stat().st_size for name, path in _files(route)} == {f.source: f.bytes for f in record.files}
