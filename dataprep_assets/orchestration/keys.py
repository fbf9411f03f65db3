"""Names that link Dagster to a dataset: asset keys, job names, tags and metadata entries."""

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec, AssetInput, DatasetInput

Context = dg.OpExecutionContext | dg.AssetExecutionContext
"""The context of a step: of the job of a dataset, or of an asset."""
DATASET = "dataprep/dataset"
"""Tag of runs, backfills and jobs: the dataset that they make."""
PART = "dataprep/part"
"""Tag of runs that make a part of a dataset: which."""
TOGETHER = "__and__"
"""Joins the names of artifacts in the name of a step that makes them together."""
FAILED_CHECKS = "failed_checks"
"""Metadata entry of a step that failed by its blocking checks alone: how many."""
MISCONFIGURED = "misconfigured"
"""Metadata entry of a step that failed by what is declared, or set in the environment, alone."""


def asset_key(spec: ArtifactSpec | DatasetInput | AssetInput) -> dg.AssetKey:
    """The key of an artifact's asset."""
    return dg.AssetKey(list(spec.path))


def step_name(*specs: ArtifactSpec) -> str:
    """The name of the step of the job that makes these artifacts."""
    return TOGETHER.join("__".join(spec.path[1:]) for spec in specs)


def job_name(dataset: str) -> str:
    """The name of the job that makes all of a dataset."""
    return f"build_{dataset}"
