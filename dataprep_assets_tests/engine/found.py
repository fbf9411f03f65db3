"""Run an artifact's own checks, without those that a sensitive dataset adds."""

from collections.abc import Sequence

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.integrity.artifacts import ArtifactStore


def run_checks(spec: ArtifactSpec, store: ArtifactStore, partitions: Sequence[str] = ()) -> dict[str, Finding]:
    """Return the finding of each check, by name. Raises DataprepError if the artifact cannot be opened."""
    return {name: one for group in spec.check_groups for name, one in group.examine(spec, store, partitions)}
