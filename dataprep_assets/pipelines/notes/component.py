"""Components `PackedCohorts` (notes by birth month, packed into rows) and `CombinedCohorts` (mixtures)."""

from pathlib import Path

import dagster as dg

from dataprep_assets.orchestration.component import DatasetComponent, build_scaffolder
from dataprep_assets.pipelines.notes.dataset import CohortMixture, Notes


@dg.scaffold_with(build_scaffolder(Path(__file__).with_name("packed_cohorts.scaffold.yaml")))
class PackedCohorts(Notes, DatasetComponent):
    """Clinical notes, one file per birth month, as packed rows, shards, and a directory for TFDS and grain."""


@dg.scaffold_with(build_scaffolder(Path(__file__).with_name("combined_cohorts.scaffold.yaml")))
class CombinedCohorts(CohortMixture, DatasetComponent):
    """Several datasets of packed rows as one directory, for training with replay."""
