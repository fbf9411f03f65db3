"""Task folders of an old project, put where a new one's trainer looks: artifacts, remarks, card and summary."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import ClassVar

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.card import data_card_spec
from dataprep_assets.graph.card_contents import CardSource, CardSubject, Receipts, SplitCounts, attributed
from dataprep_assets.graph.dataset import Dataset
from dataprep_assets.graph.remark import Remark
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.migration import TaskFolderFacts
from dataprep_assets.pipelines.tasks.routes import partitions, route_of, target_of, task_line
from dataprep_assets.pipelines.tasks.task_folder import task_folder_spec
from dataprep_assets.sentences import safe, sentence


class Tasks(Dataset):
    """Versions of synthetic data, migrated into the folders that a trainer reads, under a contract for each task."""

    component: ClassVar[str] = "TaskMigration"
    pipeline: ClassVar[str] = "tasks"
    model: ClassVar[type[TaskMigrationDeclaration]] = TaskMigrationDeclaration
    declaration: TaskMigrationDeclaration

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        specs = [task_folder_spec(self.declaration)]
        return [*specs, _card(self.declaration, specs)]

    def product(self, store: ArtifactStore) -> Artifact:
        return self.declaration.artifact(TASK_FOLDER, partitions(self.declaration)[0])

    def remarks(self) -> Iterable[Remark]:
        return _remarks(self.declaration)

    def summary(self, store: ArtifactStore) -> list[str]:
        lines = [f"{'task':<24}{'version':>16}{'files':>8}{'rows':>10}   for the training script"]
        lines += [self._line(store, partition) for partition in partitions(self.declaration)]
        return lines

    def _line(self, store: ArtifactStore, partition: str) -> str:
        """Return what was migrated of a partition, with the line of a training script."""
        try:
            receipt = store.receipt(self.declaration.artifact(TASK_FOLDER, partition))
        except DataprepError:
            return f"{partition:<24}  its record is damaged: the check `files_match_receipt` says how"
        if receipt is None:
            return f"{partition:<24}  not there"
        facts = TaskFolderFacts.of(receipt)
        files, rows, target = len(facts.rows), sum(facts.rows.values()), target_of(self.declaration, partition)
        # a line that a script can take over is given only where it would work
        line = task_line(target) if target.is_dir() else f"its folder is not there: {target}"
        return sentence(f"{partition:<24}{facts.version:>16}{safe(files, '>8')}{rows:>10,}   {line}")

    def standing(self, store: ArtifactStore) -> list[str]:
        return self.summary(store)


def _remarks(migration: TaskMigrationDeclaration) -> Iterator[Remark]:
    """Yield remarks on the folders before a migration. Folders are listed, and no file is read."""
    if not migration.old_tasks.is_dir():
        text = f"old_root: {migration.old_tasks}: no such folder; `layout` is the part below the root"
        yield Remark(keys=("old_root",), sentence=text, of_source=True)
        return
    for partition in partitions(migration):
        task = partition.partition(".")[0]
        try:
            source = route_of(migration, partition).source
        except DataprepError as error:
            yield Remark(keys=("tasks", task), sentence=str(error), of_source=True)
            continue
        if not source.is_dir():
            text = f"tasks.{task}: {source}: no such folder; `old_folder` is its name where that is another"
            yield Remark(keys=("tasks", task), sentence=text, of_source=True)
    if migration.original is not None and not migration.original.is_dir():
        text = f"original: {migration.original}: no such folder; the old project's base stands in for it"
        yield Remark(keys=("original",), sentence=text, hint=True)


def _card(declaration: TaskMigrationDeclaration, specs: Sequence[ArtifactSpec]) -> ArtifactSpec:
    """Return the data card of a migration, with a source and a license for each task."""
    return data_card_spec(
        CardSubject(
            declaration=declaration,
            specs=specs,
            products=specs,
            counted=specs,
            sources=partial(_card_sources, declaration),
            splits=_card_splits,
        )
    )


def _card_sources(declaration: TaskMigrationDeclaration, _: ArtifactStore, receipts: Receipts) -> list[CardSource]:
    facts = _facts(receipts)
    sources = {
        task: CardSource(name=task, kind="task folder", files=sum(len(f.rows) for f in facts if f.task == task))
        for task in declaration.tasks
    }
    return [attributed(source, declaration.tasks[task]) for task, source in sources.items()]


def _card_splits(receipts: Receipts) -> list[SplitCounts]:
    facts = _facts(receipts)
    return [
        SplitCounts(
            split=split,
            files=sum(split in one.rows for one in facts),
            rows=sum(one.rows.get(split, 0) for one in facts),
        )
        for split in dict.fromkeys(split for one in facts for split in one.rows)
    ]


def _facts(receipts: Receipts) -> list[TaskFolderFacts]:
    return [TaskFolderFacts.of(receipt) for every in receipts.values() for receipt in every]
