"""Migrates task folders: takes a version's files from an old project and puts them where the trainer looks for them.

The files go into the new project's own tree (`placing`). The artifact in the storage describes them: a `migration.json`
with what came from where (`stock`, `record`), and the files that were replaced, under their digests (`kept`).

Order of things, so that a kill loses nothing: everything is read and every refusal made first; what will be replaced
is kept in the storage; the new files are renamed into place; the receipt is written last. A rerun finds what is done.
Refused are conflicts in the new project; what the old one lacks is recorded, for the checks to judge.

Entry points: `migrate_task`, `record_of`, `is_current`, and those of `work`: `partitions`, `work_of`, `task_value`,
`task_line`.
"""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import ConfigError, IntegrityError
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.digest import digest_value, sha256_file
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.tasks.declaration import ARTIFACT, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.kept import Kept
from dataprep_assets.pipelines.tasks.placing import Placement, Standing, place, standing, sweep
from dataprep_assets.pipelines.tasks.record import NAME, MigrationRecord, read_record
from dataprep_assets.pipelines.tasks.stock import record_of_stock, take_stock
from dataprep_assets.pipelines.tasks.work import TaskWork, partitions, task_line, task_value, work_of

__all__ = [
    "Migrated",
    "TaskWork",
    "is_current",
    "migrate_task",
    "partitions",
    "record_of",
    "task_line",
    "task_value",
    "work_of",
]

VERSION = 1
_KEPT = ".kept"


@dataclass(frozen=True, kw_only=True)
class Migrated:
    """What became of a task folder. `placed` are the files that this run put in place; `reused` says that the artifact
    was current. Nothing was done when it was and `placed` is empty."""

    partition: str
    record: MigrationRecord
    receipt: Receipt
    reused: bool
    placed: tuple[str, ...]


def _key(record: MigrationRecord) -> str:
    return digest_value(["task_folder", VERSION, record.model_dump(mode="json")])


def migrate_task(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> Migrated:
    """Have one task folder in the new project, and its artifact in the store.

    Raises ConfigError, before anything is changed, for a file that is there and differs (unless the declaration says
    `overwrite`), for a folder in a file's place, and for a new project that lies in the old one.
    """
    work = work_of(declaration, partition)
    _not_into_old_project(work)
    artifact = declaration.artifact(ARTIFACT, partition)
    with _locked(store.directory(artifact)):
        stock = take_stock(work)
        kept = _kept(store, artifact)
        states = [(p, standing(p)) for p in stock.placements]
        _no_conflict(states, declaration.overwrite)
        placed = []
        for placement, state in states:
            sweep(placement.target)
            if state == "done":
                continue
            kept.keep(placement, state)
            place(placement)
            placed.append(placement.target.name)
        history = kept.history(work.target)
        record = record_of_stock(stock, history)

        def write(staged: Path) -> Written:
            (staged / NAME).write_bytes(record.to_bytes())
            kept.copy_into(staged, history)
            return Written(
                inputs={f.source: f.sha256 for f in record.files},
                facts={
                    "task": record.task,
                    "version": record.version,
                    "mode": record.mode,
                    "place": record.place,
                    "rows": {f.split: f.rows for f in record.files},
                    "absent": [a.name for a in record.absent],
                    "history": [h.model_dump(mode="json") for h in history],
                },
            )

        receipt, reused = ensure(artifact, store, _key(record), write, declaration.verify)
        kept.close()
    return Migrated(partition=partition, record=record, receipt=receipt, reused=reused, placed=tuple(placed))


def record_of(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> MigrationRecord | None:
    """The record of a migrated partition; None when it was not migrated. Raises IntegrityError for a damaged one."""
    artifact = declaration.artifact(ARTIFACT, partition)
    return read_record(store.local(artifact)) if store.receipt(artifact) is not None else None


def is_current(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> bool:
    """Whether a run would have nothing to do for this partition. Changes nothing; raises like `migrate_task`."""
    work = work_of(declaration, partition)
    artifact = declaration.artifact(ARTIFACT, partition)
    stock = take_stock(work)
    if any(standing(p) != "done" for p in stock.placements):
        return False
    record = record_of_stock(stock, _kept(store, artifact).history(work.target))
    return store.current(artifact, _key(record), declaration.verify) is not None


def _kept(store: ArtifactStore, artifact: Artifact) -> Kept:
    """What was replaced so far. Of an artifact that is damaged, whatever is left is all there is."""
    home = store.directory(artifact)
    try:
        directory = store.local(artifact)
    except IntegrityError:
        directory = home
    return Kept.open(directory, home.parent / _KEPT / home.name)


def _not_into_old_project(work: TaskWork) -> None:
    """A link into the old project as target folder would make a link replace the very file that it points to."""
    if work.target.resolve().is_relative_to(work.base.parent.resolve()):
        raise ConfigError(
            f"new_root: {work.target} is a folder of the old project ({work.base.parent}): a migration into it would "
            "replace its sources. Give the new project's own root"
        )


def _no_conflict(states: Sequence[tuple[Placement, Standing]], overwrite: bool) -> None:
    differing = [p for p, state in states if state == "other_file"]
    if differing and not overwrite:
        first = differing[0]
        names = ", ".join(p.target.name for p in differing)
        raise ConfigError(
            f"{names} in {first.target.parent}: there already, with other content (sha256 "
            f"{sha256_file(first.target)[:12]}…, the version's is {first.sha256[:12]}…). Nothing was changed. Move it "
            "away, or set `overwrite: true`, which keeps the old file in the artifact"
        )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One migration of a partition at a time; the kernel releases the lock when its process dies."""
    area = directory.parent / STAGING
    area.mkdir(parents=True, exist_ok=True)
    with open(area / f"{directory.name}.migration.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
