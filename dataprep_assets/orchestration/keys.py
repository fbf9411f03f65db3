"""Names that link Dagster to a dataset: asset keys, job names, tags and metadata entries."""

import dagster as dg

from dataprep_assets.graph.spec import ArtifactSpec, OtherDataset

__all__ = ["DAMAGED_SOURCES", "DATASET", "asset_key", "job_name"]

DATASET = "dataprep/dataset"
"""Tag of runs, backfills and jobs: the dataset that they make."""
DAMAGED_SOURCES = "damaged_sources"
"""Metadata entry of a step that failed only because of damaged source files: the number of partitions affected."""


def asset_key(spec: ArtifactSpec | OtherDataset) -> dg.AssetKey:
    """The key of an artifact's asset."""
    return dg.AssetKey(list(spec.path))


def job_name(dataset: str) -> str:
    """The name of the job that makes all of a dataset."""
    return f"build_{dataset}"
