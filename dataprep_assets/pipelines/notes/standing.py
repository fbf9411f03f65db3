"""Whether a finished artifact is intact and up to date: then its proofs still hold too."""

from collections.abc import Callable

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import damage

__all__ = ["is_intact", "is_unchanged"]


def is_intact(artifact: Artifact, store: ArtifactStore) -> bool:
    """Whether every file has the digest of the receipt; all are read."""
    try:
        return not damage(store.local(artifact), store.require(artifact))
    except (DataprepError, OSError):
        return False  # its proofs will say why


def is_unchanged(artifact: Artifact, store: ArtifactStore, recipe: Callable[[], Recipe]) -> bool:
    """Whether an artifact is intact and would be made the same now: from the same source, settings and tokenizer."""
    try:
        return is_intact(artifact, store) and recipe().key == store.require(artifact).key
    except (DataprepError, OSError):
        return False
