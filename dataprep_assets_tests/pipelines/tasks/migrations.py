"""A declared migration in Dagster for tests: its definitions, its runs and its metadata."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.partitions import asset_key
from dataprep_assets.pipelines.tasks.component import TaskMigration
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.routes import list_partitions
from dataprep_assets.resources import StorageResource
from dataprep_assets_tests.pipelines.tasks.trees import TASKS, small
from dataprep_assets_tests.project import Bound, evaluated, range_tags

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass
class Migration:
    """A declared migration below a folder, with its definitions and its Dagster instance."""

    home: Path
    declaration: TaskMigrationDeclaration
    instance: dg.DagsterInstance
    _bound: Bound = field(default_factory=Bound, init=False, repr=False, compare=False)

    @cached_property
    def storage(self) -> StorageResource:
        """The store of its artifacts, as a resource."""
        return StorageResource(root=str(self.home / "artifacts"))

    @property
    def component(self) -> TaskMigration:
        return TaskMigration(self.declaration)

    @property
    def key(self) -> dg.AssetKey:
        return asset_key(self.component.spec(TASK_FOLDER))

    @property
    def store(self) -> LocalArtifacts:
        return LocalArtifacts(self.home / "artifacts")

    @property
    def new(self) -> Path:
        return self.declaration.new_tasks

    @property
    def partitions(self) -> list[str]:
        return list_partitions(self.declaration)

    def stale(self) -> dict[str, str]:
        """Return the reason why each stale task folder is stale, by its name."""
        return {one.name: one.reason for one in find_stale([self.component.spec(TASK_FOLDER)], self.store)}

    @property
    def definitions(self) -> dg.Definitions:
        """The component's definitions, bound to the storage."""
        return self._bound.definitions([self.component], self.storage)

    def run(self, *chosen: str) -> dg.ExecuteInProcessResult:
        """Materialize consecutive partitions (all by default) with the checks, in one run, as a backfill does."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            asset_selection=[self.key],
            tags=range_tags(chosen or self.partitions),
            instance=self.instance,
            raise_on_error=False,
            run_config=QUIET,
        )

    def check(self) -> dict[str, dg.AssetCheckEvaluation]:
        """Run the checks on the current artifacts."""
        found = evaluated([self.component.spec(TASK_FOLDER)], self.storage)
        return {e.check_name: e for e in found}

    def materialized(self) -> set[str]:
        """Return the partitions that Dagster knows as materialized."""
        return self.instance.get_materialized_partitions(self.key)

    def metadata(self, partition: str) -> Mapping[str, Any]:
        """Return the metadata of the last materialization of a partition."""
        (record,) = self.instance.fetch_materializations(
            dg.AssetRecordsFilter(asset_key=self.key, asset_partitions=[partition]), limit=1
        ).records
        assert record.asset_materialization is not None
        return {name: shown.value for name, shown in record.asset_materialization.metadata.items()}


def evaluations(outcome: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    """Return the evaluations of a run, by check."""
    return {e.check_name: e for e in outcome.get_asset_check_evaluations()}


def failed(found: Mapping[str, dg.AssetCheckEvaluation]) -> set[str]:
    """Return the checks that did not pass."""
    return {name for name, evaluation in found.items() if not evaluation.passed}


def rows(value: Any) -> list[dict[str, Any]]:
    """Return the rows of a metadata table."""
    return [dict(record.data) for record in value.records]


@contextmanager
def migration(home: Path, tasks: Mapping[str, Mapping[str, Any]], **more: Any) -> Iterator[Migration]:
    """Yield a migration of the trees below `home`, with its own instance in memory."""
    attributes = {
        "dataset": "tasks",
        "old_root": "old",
        "new_root": "new",
        "original": "original",
        "tasks": dict(tasks),
        "contracts": {task: small(task) for task in TASKS},
        **more,
    }
    declaration = validate_declaration(TaskMigrationDeclaration, attributes, home / "defs.yaml")
    with dg.DagsterInstance.ephemeral() as instance:
        yield Migration(home, declaration, instance)


ALL: dict[str, dict[str, str]] = {task: {} for task in TASKS}
"""The base version of every task."""
