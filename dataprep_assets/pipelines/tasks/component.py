"""`dataprep_assets.components.TaskMigration`: task folders of an old project, put where a new one's trainer looks."""

from pathlib import Path

import dagster as dg

from dataprep_assets.orchestration.component import DatasetComponent, scaffolder
from dataprep_assets.pipelines.tasks.dataset import Tasks


@dg.scaffold_with(scaffolder(Path(__file__).with_name("task_migration.scaffold.yaml")))
class TaskMigration(Tasks, DatasetComponent):
    """Versions of synthetic data, migrated into the folders that a trainer reads, under a contract for each task."""
