"""Task folders of an old project, put where a new one's trainer looks: the artifacts, and what a person is told."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import ClassVar

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.dataset import Dataset
from dataprep_assets.graph.remark import Remark
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.tasks.card import tasks_card
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.migration import TaskFolderFacts
from dataprep_assets.pipelines.tasks.remarks import task_remarks
from dataprep_assets.pipelines.tasks.routes import partitions, target_of, task_line
from dataprep_assets.pipelines.tasks.task_folder import task_folder_spec


class Tasks(Dataset):
    """Versions of synthetic data, migrated into the folders that a trainer reads, under a contract for each task."""

    component: ClassVar[str] = "TaskMigration"
    pipeline: ClassVar[str] = "tasks"
    model: ClassVar[type[TaskMigrationDeclaration]] = TaskMigrationDeclaration
    declaration: TaskMigrationDeclaration

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        specs = [task_folder_spec(self.declaration)]
        return [*specs, tasks_card(self.declaration, specs)]

    def product(self, store: ArtifactStore) -> Artifact:
        return self.declaration.artifact(TASK_FOLDER, partitions(self.declaration)[0])

    def remarks(self) -> Iterable[Remark]:
        return task_remarks(self.declaration)

    def summary(self, store: ArtifactStore) -> list[str]:
        lines = [f"{'task':<24}{'version':>16}{'files':>8}{'rows':>10}   for the training script"]
        lines += [self._line(store, partition) for partition in partitions(self.declaration)]
        return lines

    def _line(self, store: ArtifactStore, partition: str) -> str:
        """What was migrated of a partition, with the line of a training script."""
        try:
            receipt = store.receipt(self.declaration.artifact(TASK_FOLDER, partition))
        except DataprepError:
            return f"{partition:<24}  its record is damaged: the check `as_migrated` says how"
        if receipt is None:
            return f"{partition:<24}  not there"
        facts = TaskFolderFacts.of(receipt)
        files, rows, target = len(facts.rows), sum(facts.rows.values()), target_of(self.declaration, partition)
        # a line that a script can take over is given only where it would work
        line = task_line(target) if target.is_dir() else f"its folder is not there: {target}"
        return f"{partition:<24}{facts.version:>16}{files:>8}{rows:>10,}   {line}"

    def standing(self, store: ArtifactStore) -> list[str]:
        return self.summary(store)
