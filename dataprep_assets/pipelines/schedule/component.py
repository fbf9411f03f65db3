"""`dataprep_assets.components.TrainingSchedule`, the component of training schedules."""

from pathlib import Path

import dagster as dg

from dataprep_assets.orchestration.component import DatasetComponent, build_scaffolder
from dataprep_assets.pipelines.schedule.dataset import ScheduleDataset


@dg.scaffold_with(build_scaffolder(Path(__file__).with_name("training_schedule.scaffold.yaml")))
class TrainingSchedule(ScheduleDataset, DatasetComponent):
    """The shards and samples that a training run reads at each step, with the documents needed to trace them."""
