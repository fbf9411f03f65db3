"""Checks of `<dataset>/indexed_bins`: bin and idx are the source's documents, each once, for Megatron to read."""

import dagster as dg

from dataprep_assets.assets.blend_plan import BlendAssets
from dataprep_assets.builds.blend.indexed_bins import ARTIFACT, indexed_bins_works
from dataprep_assets.checks.blend_shards import shard_checks
from dataprep_assets.proofs.indexed_bins import INDEXED_BINS_PROOFS, prove_indexed_bins


def indexed_bins_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the shards."""
    return shard_checks(dataset, ARTIFACT, INDEXED_BINS_PROOFS, indexed_bins_works, prove_indexed_bins)
