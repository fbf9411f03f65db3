"""Remarks on a migration before it is made, for `dataprep check` and the beginning of `dataprep run`.

Folders are listed and no file is read. `dataprep status` and the end of a run report folders that do not count as
versions.
"""

from collections.abc import Iterator

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.remark import Remark
from dataprep_assets.pipelines.tasks.declaration import TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.routes import partitions, route_of


def task_remarks(migration: TaskMigrationDeclaration) -> Iterator[Remark]:
    """Remarks on the old project's folders, and on the originals with which rewrites are compared."""
    if not migration.old_tasks.is_dir():
        sentence = f"old_root: {migration.old_tasks}: no such folder; `layout` is the part below the root"
        yield Remark(keys=("old_root",), sentence=sentence, of_source=True)
        return
    for partition in partitions(migration):
        task = partition.partition(".")[0]
        try:
            route = route_of(migration, partition)
        except DataprepError as error:
            yield Remark(keys=("tasks", task), sentence=str(error), of_source=True)
            continue
        if not route.source.is_dir():
            sentence = f"tasks.{task}: {route.source}: no such folder; `old_folder` is its name where that is another"
            yield Remark(keys=("tasks", task), sentence=sentence, of_source=True)
    if migration.original is not None and not migration.original.is_dir():
        sentence = f"original: {migration.original}: no such folder; the old project's base stands in for it"
        yield Remark(keys=("original",), sentence=sentence, hint=True)
