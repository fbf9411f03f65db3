"""`dataprep_assets.components.TrainingBlend`: a blend of datasets for pretraining, SFT or RL, from one YAML."""

from pathlib import Path

import dagster as dg

from dataprep_assets.orchestration.component import DatasetComponent, scaffolder
from dataprep_assets.pipelines.blend.dataset import Blend


@dg.scaffold_with(scaffolder(Path(__file__).with_name("training_blend.scaffold.yaml")))
class TrainingBlend(Blend, DatasetComponent):
    """Weighted datasets as files for a trainer: bin/idx, packed Parquet with a loss mask, or JSON Lines."""
