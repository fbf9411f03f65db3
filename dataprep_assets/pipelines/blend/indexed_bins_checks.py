"""Checks of `<dataset>/indexed_bins`: bin and idx are the source's documents, each once, for Megatron to read."""

import dagster as dg

from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_shards_checks import shard_checks
from dataprep_assets.pipelines.blend.indexed_bins import INDEXED_BINS, indexed_bins_shards
from dataprep_assets.pipelines.blend.indexed_bins_proofs import INDEXED_BINS_PROOFS, prove_indexed_bins


def indexed_bins_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the shards."""
    return shard_checks(dataset, INDEXED_BINS, INDEXED_BINS_PROOFS, indexed_bins_shards, prove_indexed_bins)
