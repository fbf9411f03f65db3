"""Compares a task folder with the record of its migration: every file is still what the migration put there."""

from collections.abc import Iterator

from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.graph.finding import Finding, judged
from dataprep_assets.integrity.digest import sha256_file
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.record import MigrationRecord
from dataprep_assets.pipelines.tasks.row_findings import Fault, found


@judged
def as_migrated(task: TaskFolder) -> Finding:
    """Every file has the digest that the migration recorded, and is the copy or the link that it made."""
    if task.record is None:
        raise MissingArtifactError(f"{task.folder}: there is no record of a migration. Migrate this task first")
    return found(
        _changed(task, task.record),
        f"{len(task.record.files)} files of {task.record.version} are as they were migrated.",
        "Somebody changed it since, here or (behind a link) in the old project. Migrate again, and mind what would be "
        "overwritten",
        facts={"version": task.record.version, "mode": task.record.mode, "replaced": len(task.record.history)},
        table=task.record.origin_table(),
    )


def _changed(task: TaskFolder, record: MigrationRecord) -> Iterator[Fault]:
    made_names = {made.name for made in record.files}
    for file in task.files.values():
        if file.present and file.name not in made_names:
            told = f"{file.name}: is there, and this migration of {record.version} did not put it there"
            yield Fault(told, split=file.split)
    for made in record.files:
        path = task.folder / made.name
        if not path.is_file():
            yield Fault(f"{made.name}: was {made.how} from {made.source}, and is not a file now", split=made.split)
        elif (actual := task.digests.of(sha256_file(path))) != made.sha256:
            told = f"{made.name}: sha256 {actual[:12]}…, {made.how} from {made.source} was {made.sha256[:12]}…"
            yield Fault(told, split=made.split)
        elif (size := path.stat().st_size) != made.bytes:
            yield Fault(f"{made.name}: {size} bytes, the record says {made.bytes}", split=made.split)
        elif path.is_symlink() != (made.how == "linked"):
            told = f"{made.name}: was {made.how}, and is a {'link' if path.is_symlink() else 'regular file'} now"
            yield Fault(told, taken=True, split=made.split)
