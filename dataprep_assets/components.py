"""The vocabulary of `defs/<dataset>/defs.yaml`: one component a pipeline."""

from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.notes.component import CombinedCohorts, PackedCohorts
from dataprep_assets.pipelines.release.component import ShardRelease
from dataprep_assets.pipelines.tasks.component import TaskMigration

__all__ = ["CombinedCohorts", "PackedCohorts", "ShardRelease", "TaskMigration", "TokenizedCorpus", "TrainingBlend"]
