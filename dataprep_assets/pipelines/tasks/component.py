"""`dataprep_assets.components.TaskMigration`: task folders of an old project, migrated into a new project."""

from pathlib import Path

import dagster as dg

from dataprep_assets.orchestration.component import DatasetComponent, build_scaffolder
from dataprep_assets.pipelines.tasks.dataset import Tasks


@dg.scaffold_with(build_scaffolder(Path(__file__).with_name("task_migration.scaffold.yaml")))
class TaskMigration(Tasks, DatasetComponent):
    """Versions of synthetic data, migrated into the trainer's folders, with a contract for each task."""
