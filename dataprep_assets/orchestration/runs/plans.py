"""Metadata that says which assets plan the partitions of others, and for which declaration; the sensor compares it."""

from collections.abc import Mapping

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.integrity.digest import digest_value

PLANS = "dataprep/plans"
"""Metadata of an asset that plans partitions and has no partitioned input: the digest of its declaration."""
DECLARATION = "declaration"
"""Metadata of its materialization: the digest of the declaration that it was made of."""
# keys that decide no plan: who changes one need not have the dataset planned again
_SHOWN_ALONE = {"description", "owners", "card", "accept", "automation", "small_cell", "prove"}


def plan_metadata(spec: ArtifactSpec) -> Mapping[str, str]:
    """The definition metadata by which the sensor knows what to plan; empty for other artifacts."""
    return {PLANS: _digest(spec)} if spec.plans and not _of_partitions(spec) else {}


def made_of(spec: ArtifactSpec) -> Mapping[str, str]:
    """Metadata of a materialization of an artifact that plans: its declaration's digest; empty for other artifacts."""
    return {DECLARATION: _digest(spec)} if spec.plans else {}


def _digest(spec: ArtifactSpec) -> str:
    """Digest of the parts of a declaration that may affect a plan."""
    return digest_value(spec.declaration.model_dump(mode="json", exclude=_SHOWN_ALONE))[:16]


def _of_partitions(spec: ArtifactSpec) -> bool:
    # what is made of partitions cannot be planned before these are built, and planning builds nothing
    sources = [source for source in spec.inputs if isinstance(source, ArtifactSpec)]
    return any(source.partitions is not None or _of_partitions(source) for source in sources)
