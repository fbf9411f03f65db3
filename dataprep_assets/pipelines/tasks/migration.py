"""Migrates task folders: takes a version's files from an old project and puts them where the trainer looks for them.

The files go into the new project's own tree (`placing`). The artifact in the storage describes them: a `migration.json`
with what came from where (`stock`, `record`), and the files that were replaced, under their digests (`kept`).

The order of the steps makes sure that a kill loses nothing: everything is read and every conflict refused first; then
the files that will be replaced are copied into the storage; the new files are renamed into place; the receipt is
written last. A rerun finds what is done. A conflict in the new project is refused; what the old one lacks is recorded,
for the checks to judge.

Entry points: `migrate_task`, `is_current`, `TaskFolderFacts`.
"""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import ConfigError, IntegrityError
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.facts import Facts
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.digest import digest_value, sha256_file
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.tasks.contract import Split
from dataprep_assets.pipelines.tasks.declaration import ARTIFACT, Mode, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.kept import Kept
from dataprep_assets.pipelines.tasks.placing import Placement, Standing, place, standing, sweep
from dataprep_assets.pipelines.tasks.record import NAME, MigrationRecord, ReplacedFile
from dataprep_assets.pipelines.tasks.routes import TaskRoute, route_of
from dataprep_assets.pipelines.tasks.stock import record_of_stock, take_stock

__all__ = ["Migrated", "TaskFolderFacts", "is_current", "migrate_task"]

VERSION = 1
_KEPT = ".kept"


class TaskFolderFacts(Facts):
    """What the receipt of a task folder tells: `rows` are counts by split, `place` is relative to the new project."""

    task: str
    version: str
    mode: Mode
    place: str
    rows: dict[Split, int]
    absent: tuple[str, ...]
    history: tuple[ReplacedFile, ...]


@dataclass(frozen=True, kw_only=True)
class Migrated:
    """What became of a task folder. `placed` names the files that this run put in place; `reused` is True when the
    artifact was current. When it was and `placed` is empty, nothing was done."""

    partition: str
    record: MigrationRecord
    receipt: Receipt
    reused: bool
    placed: tuple[str, ...]


def _key(record: MigrationRecord) -> str:
    return digest_value(["task_folder", VERSION, record.model_dump(mode="json")])


def migrate_task(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> Migrated:
    """Put one task folder into the new project, and build its artifact unless it is current.

    `declaration` says where the old and the new project are, `store` holds the artifact and the replaced files,
    `partition` is one of `routes.partitions`. Raises ConfigError, before anything is changed, for an existing file
    that differs (unless the declaration says `overwrite`), for a folder where a file belongs, and for a new project
    inside the old one.
    """
    route = route_of(declaration, partition)
    _not_into_old_project(route)
    artifact = declaration.artifact(ARTIFACT, partition)
    with _locked(store.directory(artifact)):
        stock = take_stock(route)
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
        history = kept.history(route.target)
        record = record_of_stock(stock, history)

        def write(staged: Path) -> Written:
            (staged / NAME).write_bytes(record.to_bytes())
            kept.copy_into(staged, history)
            return Written(
                inputs={f.source: f.sha256 for f in record.files},
                facts=TaskFolderFacts(
                    task=record.task,
                    version=record.version,
                    mode=record.mode,
                    place=record.place,
                    rows={f.split: f.rows for f in record.files},
                    absent=tuple(a.name for a in record.absent),
                    history=tuple(history),
                ),
            )

        receipt, reused = ensure(artifact, store, _key(record), write, declaration.verify)
        kept.close()
    return Migrated(partition=partition, record=record, receipt=receipt, reused=reused, placed=tuple(placed))


def is_current(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> bool:
    """Whether `migrate_task` would have nothing to do for this `partition` of `declaration` with this `store`.

    Changes nothing; raises what `migrate_task` raises.
    """
    route = route_of(declaration, partition)
    artifact = declaration.artifact(ARTIFACT, partition)
    stock = take_stock(route)
    if any(standing(p) != "done" for p in stock.placements):
        return False
    record = record_of_stock(stock, _kept(store, artifact).history(route.target))
    return store.current(artifact, _key(record), declaration.verify) is not None


def _kept(store: ArtifactStore, artifact: Artifact) -> Kept:
    """What was replaced so far; of a damaged artifact, the files that are left."""
    home = store.directory(artifact)
    try:
        directory = store.local(artifact)
    except IntegrityError:
        directory = home
    return Kept.open(directory, home.parent / _KEPT / home.name)


def _not_into_old_project(route: TaskRoute) -> None:
    """A target folder that is a link into the old project would let a link replace the very file that it points to."""
    if route.target.resolve().is_relative_to(route.base.parent.resolve()):
        raise ConfigError(
            f"new_root: {route.target} is a folder of the old project ({route.base.parent}): a migration into it would "
            "replace its sources. Give the new project's own root"
        )


def _no_conflict(states: Sequence[tuple[Placement, Standing]], overwrite: bool) -> None:
    differing = [p for p, state in states if state == "other_file"]
    if differing and not overwrite:
        first = differing[0]
        names = ", ".join(p.target.name for p in differing)
        raise ConfigError(
            f"{names} in {first.target.parent}: the new project already has other content (sha256 "
            f"{sha256_file(first.target)[:12]}…, the version's is {first.sha256[:12]}…). Nothing was changed. Move the "
            "file away, or set `overwrite: true`, which keeps the old file in the artifact"
        )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One migration of a partition at a time; the kernel releases the lock when its process dies."""
    area = directory.parent / STAGING
    area.mkdir(parents=True, exist_ok=True)
    with open(area / f"{directory.name}.migration.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
