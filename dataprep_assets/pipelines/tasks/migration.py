"""Migrates task folders: takes a version's files from an old project and puts them where the trainer looks for them.

The files go into the new project's own tree (`placing`). The artifact in the storage describes them: a `migration.json`
with what came from where (`stock`, `record`), and the files that were replaced, under their digests (`kept`).

The order of the steps ensures that a kill loses nothing: everything is read and every conflict refused first; then the
files to be replaced are copied into the storage; the new files are renamed into place; the receipt is written last. A
rerun finds finished steps. A conflict in the new project is refused; files missing in the old one are recorded, for the
checks to report.

Entry points: `migrate_task`, `recipe_now`, `TaskFolderFacts`.
"""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.facts import Facts
from dataprep_assets.graph.recipe import Change, Recipe
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.digest import digest_value, sha256_file
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.tasks.contract import Split
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER, Mode, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.kept import Kept
from dataprep_assets.pipelines.tasks.placing import Placement, place, standing, sweep
from dataprep_assets.pipelines.tasks.record import NAME, MigrationRecord, ReplacedFile
from dataprep_assets.pipelines.tasks.routes import TaskRoute, route_of
from dataprep_assets.pipelines.tasks.stock import record_of_stock, take_stock
from dataprep_assets.stores.locks import own_file, refuse_link

VERSION = 1
_KEPT = ".kept"


class TaskFolderFacts(Facts):
    """Facts in the receipt of a task folder: `rows` are counts by split, `place` is relative to the new project."""

    task: str
    version: str
    mode: Mode
    place: str
    rows: dict[Split, int]
    absent: tuple[str, ...]
    history: tuple[ReplacedFile, ...]

    @classmethod
    def told_by(cls, record: MigrationRecord) -> Self:
        """The facts of the receipt that is committed with this record."""
        return cls(
            task=record.task,
            version=record.version,
            mode=record.mode,
            place=record.place,
            rows={file.split: file.rows for file in record.files},
            absent=tuple(file.name for file in record.absent),
            history=tuple(record.history),
        )


@dataclass(frozen=True, kw_only=True)
class Migrated:
    """The result of migrating a task folder.

    `placed` names the files that this run put in place; `reused` is True if the artifact was current. If also `placed`
    is empty, nothing was done."""

    partition: str
    record: MigrationRecord
    receipt: Receipt
    reused: bool
    placed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Undone(Recipe):
    """The recipe of a task folder whose files are not all in the new project, or cannot be put there.

    `reason` says why, in one sentence, unless the artifact itself is out of date. A migration that would be refused has
    no recipe: its `key` is empty.
    """

    reason: str

    def difference(self, receipt: Receipt) -> Change:
        changed = super().difference(receipt) if self.key else None
        return changed or Change(kind="damaged" if self.key else "input changed", reason=self.reason)


def _recipe(artifact: Artifact, record: MigrationRecord) -> Recipe:
    """The recipe: its key is a digest of the record, which decides the artifact; its names say what changed."""
    value = record.model_dump(mode="json")
    told = {
        **{f"{file.name} (absent)": file for file in record.absent},
        **{f"{split} rows against the {record.compared_with}": d for split, d in record.differences.items()},
    }
    # files that the trainer does not read, folders that are not versions, files that a migration replaced
    lists = {name: value[name] for name in ("ignored_files", "unordered_versions", "history") if value[name]}
    return Recipe(
        artifact=artifact,
        key=digest_value(["task_folder", VERSION, value]),
        version=VERSION,
        settings={name: value[name] for name in ("task", "version", "mode", "place", "compared_with")},
        sources={
            **{file.source: file.sha256 for file in record.files},
            **{name: digest_value(part.model_dump(mode="json")) for name, part in told.items()},
            **{name: digest_value(part) for name, part in lists.items()},
        },
    )


def migrate_task(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> Migrated:
    """Put one task folder into the new project, and build its artifact unless it is current.

    `declaration` says where the old and the new project are, `store` holds the artifact and the replaced files,
    `partition` is one of `routes.partitions`. Raises ConfigError, before anything is changed, for an existing file
    that differs, unless a migration of this version made it or the declaration says `overwrite`; for a folder where a
    file belongs; and for a new project inside the old one.
    """
    route = route_of(declaration, partition)
    _not_into_old_project(route)
    artifact = declaration.artifact(TASK_FOLDER, partition)
    with _locked(store.directory(artifact)):
        # Everything is read, and every conflict refused, before the first file changes; inside the lock, so that no
        # other migration changes what was seen.
        stock = take_stock(route)
        kept = _kept(store, artifact)
        states = [(p, standing(p)) for p in stock.placements]
        # a link holds no content of its own: it may be replaced unasked, and the record has its text
        _no_conflict(
            [p for p, state in states if state == "other_file" and not kept.made(p, route.version)], declaration
        )
        placed = []
        for placement, state in states:
            sweep(placement.target)
            if state == "done":
                continue
            # kept durably first: a kill between the two leaves the old file in place, and a copy that does not count
            kept.keep(placement, state)
            place(placement)
            placed.append(placement.target.name)
        # after the replacements: what was kept and is still in its place was not replaced
        history = kept.history(route.target)
        record = record_of_stock(stock, history)

        def write(staged: Path) -> Written:
            (staged / NAME).write_bytes(record.to_bytes())
            kept.copy_into(staged, history)
            return Written(
                inputs={f.source: f.sha256 for f in record.files},
                facts=TaskFolderFacts.told_by(record),
            )

        receipt, reused = ensure(_recipe(artifact, record), store, write, declaration.verify)
        # only now does the artifact have what was kept
        kept.close()
    return Migrated(partition=partition, record=record, receipt=receipt, reused=reused, placed=tuple(placed))


def recipe_now(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> Recipe:
    """The present recipe of a partition's artifact. Changes nothing.

    The recipe is `Undone` when a file in the new project is not as a migration leaves it, or a migration would be
    refused.

    Args:
        declaration: The migration.
        store: Where the artifact and the replaced files are.
        partition: One of `routes.partitions`.
    """
    artifact = declaration.artifact(TASK_FOLDER, partition)
    try:
        route = route_of(declaration, partition)
        stock = take_stock(route)
        undone = [p.target.name for p in stock.placements if standing(p) != "done"]
        recipe = _recipe(artifact, record_of_stock(stock, _kept(store, artifact).history(route.target)))
    except DataprepError as error:
        return Undone(artifact=artifact, key="", reason=str(error))
    if undone:
        reason = f"{', '.join(undone)} in {route.target}: not as the migration left it"
        return Undone(**{**vars(recipe), "reason": reason})
    return recipe


def _kept(store: ArtifactStore, artifact: Artifact) -> Kept:
    """The files replaced so far; for a damaged artifact, those that are left."""
    home = store.home(artifact)
    try:
        directory = store.local(artifact)
    except IntegrityError:
        directory = home
    return Kept.open(directory, home.parent / _KEPT / home.name)


def _not_into_old_project(route: TaskRoute) -> None:
    """Refuse a target folder that is a link into the old project: a link would replace the file it points to."""
    if route.target.resolve().is_relative_to(route.base.parent.resolve()):
        raise ConfigError(
            f"new_root: {route.target} is a folder of the old project ({route.base.parent}): a migration into it would "
            "replace its sources. Give the new project's own root"
        )


def _no_conflict(differing: Sequence[Placement], declaration: TaskMigrationDeclaration) -> None:
    """Refuse files that differ, unless the declaration replaces them."""
    if differing and not declaration.overwrite:
        first = differing[0]
        names = ", ".join(p.target.name for p in differing)
        raise ConfigError(
            f"{names} in {first.target.parent}: the new project already has other content (sha256 "
            f"{first.shown(sha256_file(first.target))}, the version's is {first.shown(first.sha256)}). Nothing was "
            "changed. Move the file away, or set `overwrite: true`, which keeps the old file in the artifact"
        )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Allow one migration of a partition at a time; the kernel releases the lock when its process dies."""
    # the lock is not in the artifact's own folder, which is replaced as a whole
    area = directory.parent / STAGING
    area.mkdir(parents=True, exist_ok=True)
    refuse_link(area)
    with open(area / f"{directory.name}.migration.lock", "a", opener=own_file) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
