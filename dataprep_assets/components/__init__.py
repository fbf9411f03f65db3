"""The vocabulary of `defs/<dataset>/defs.yaml`: one component a pipeline."""

from dataprep_assets.components.packed_cohorts import CombinedCohorts, PackedCohorts
from dataprep_assets.components.shard_release import ShardRelease
from dataprep_assets.components.task_migration import TaskMigration
from dataprep_assets.components.tokenized_corpus import TokenizedCorpus
from dataprep_assets.components.training_blend import TrainingBlend

__all__ = ["CombinedCohorts", "PackedCohorts", "ShardRelease", "TaskMigration", "TokenizedCorpus", "TrainingBlend"]
