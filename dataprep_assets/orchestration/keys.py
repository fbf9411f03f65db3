"""Names that link Dagster to a dataset: asset keys, job names, tags and metadata entries; and the dataset's store."""

import dagster as dg

from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.spec import ArtifactSpec, OtherDataset
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.storage import Storage

__all__ = ["DAMAGED_SOURCES", "DATASET", "asset_key", "job_name", "store_of"]

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


def store_of(declaration: DatasetDeclaration, storage: Storage) -> ArtifactStore:
    """Where a dataset's artifacts are."""
    return storage.artifacts(declaration.storage, private=declaration.sensitive)
