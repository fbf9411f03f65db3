"""`dataprep_assets.components.TaskMigration`: task folders of an old project, put where a new one's trainer looks."""

from collections.abc import Iterator
from functools import cached_property

import dagster as dg
from dagster.components.scaffold.scaffold import scaffold_with

from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.component import DatasetComponent
from dataprep_assets.orchestration.dataset import DatasetAssets, Step, partition_range
from dataprep_assets.orchestration.scaffold import TaskMigrationScaffolder
from dataprep_assets.pipelines.tasks.declaration import ARTIFACT, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.migration import TaskFolderFacts, is_current
from dataprep_assets.pipelines.tasks.routes import partitions, route_of, task_line
from dataprep_assets.pipelines.tasks.task_folder_asset import task_folder_asset
from dataprep_assets.pipelines.tasks.task_folder_checks import task_folder_checks


@scaffold_with(TaskMigrationScaffolder)
class TaskMigration(DatasetComponent):
    """Versions of synthetic data, migrated into the folders that a trainer reads, under a contract for each task."""

    model = TaskMigrationDeclaration
    declaration: TaskMigrationDeclaration

    @cached_property
    def assets(self) -> DatasetAssets:
        return DatasetAssets(self.declaration)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return dg.Definitions(
            assets=[task_folder_asset(self.assets, self.declaration)],
            asset_checks=[task_folder_checks(self.assets, self.declaration)],
        )

    def steps(self, store: ArtifactStore) -> Iterator[Step]:
        """All task folders in one run."""
        every = partitions(self.declaration)
        yield Step(f"{len(every)} task folders", [self.assets.key(ARTIFACT)], partition_range(every))

    def stale(self, store: ArtifactStore) -> Iterator[str]:
        for partition in partitions(self.declaration):
            try:
                done = is_current(self.declaration, store, partition)
            except DataprepError:
                done = False  # the run says what is wrong with it
            if not done:
                yield str(self.declaration.artifact(ARTIFACT, partition))

    def sweep(self, store: ArtifactStore) -> None:
        store.sweep(self.declaration.artifact(ARTIFACT, partition) for partition in partitions(self.declaration))

    @property
    def product(self) -> tuple[str, str | None]:
        return ARTIFACT, partitions(self.declaration)[0]

    def summary(self, store: ArtifactStore) -> list[str]:
        lines = [f"{'task':<24}{'version':>16}{'files':>8}{'rows':>10}   for the training script"]
        for partition in partitions(self.declaration):
            receipt = store.receipt(self.declaration.artifact(ARTIFACT, partition))
            if receipt is None:
                lines.append(f"{partition:<24}  not there")
                continue
            facts = TaskFolderFacts.of(receipt)
            lines.append(
                f"{partition:<24}{facts.version:>16}{len(facts.rows):>8}{sum(facts.rows.values()):>10,}   "
                f"{task_line(route_of(self.declaration, partition))}"
            )
        return lines
