"""How Dagster and a dataset find each other: the key of an asset, the name of the job, tags, entries, the store."""

import dagster as dg

from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.spec import ArtifactSpec, OtherDataset
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.resources import StorageResource

__all__ = ["DAMAGED_SOURCES", "DATASET", "asset_key", "job_name", "store_of"]

DATASET = "dataprep/dataset"
"""Tag of runs, backfills and jobs: the dataset that they make."""
DAMAGED_SOURCES = "damaged_sources"
"""Entry of a failed step that would have succeeded with other source files: in how many partitions they are damaged."""


def asset_key(spec: ArtifactSpec | OtherDataset) -> dg.AssetKey:
    """The key of an artifact's asset."""
    return dg.AssetKey(list(spec.path))


def job_name(dataset: str) -> str:
    """The name of the job that makes all of a dataset."""
    return f"build_{dataset}"


def store_of(declaration: DatasetDeclaration, storage: StorageResource) -> ArtifactStore:
    """Where a dataset's artifacts are."""
    return storage.artifacts(declaration.storage, private=declaration.sensitive)
