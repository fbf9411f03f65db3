"""`PackedCohorts` and `CombinedCohorts`: notes by birth month, packed into rows that MaxText reads; and mixtures."""

from pathlib import Path

import dagster as dg

from dataprep_assets.orchestration.component import DatasetComponent, scaffolder
from dataprep_assets.pipelines.notes.dataset import Notes, Replay


@dg.scaffold_with(scaffolder(Path(__file__).with_name("packed_cohorts.scaffold.yaml")))
class PackedCohorts(Notes, DatasetComponent):
    """Clinical notes, one file a birth month, to packed rows, shards, and a directory that TFDS and grain open."""


@dg.scaffold_with(scaffolder(Path(__file__).with_name("combined_cohorts.scaffold.yaml")))
class CombinedCohorts(Replay, DatasetComponent):
    """Several datasets of packed rows as one directory, for training with replay."""
