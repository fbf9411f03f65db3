"""`dataprep_assets.components.TrainingBlend`: a blend of datasets for one stage, from one YAML."""

from pathlib import Path

import dagster as dg

from dataprep_assets.orchestration.component import DatasetComponent, build_scaffolder
from dataprep_assets.pipelines.blend.dataset import Blend


@dg.scaffold_with(build_scaffolder(Path(__file__).with_name("training_blend.scaffold.yaml")))
class TrainingBlend(Blend, DatasetComponent):
    """Weighted datasets as files for a trainer: bin/idx, packed Parquet, preference pairs, or JSON Lines."""
