"""The asset `<dataset>/indexed_bins`, a partition a shard: Megatron's `.bin` and `.idx` of a pretraining blend."""

import dagster as dg

from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_shards_asset import blend_shards_asset
from dataprep_assets.pipelines.blend.indexed_bins import INDEXED_BINS, indexed_bins_shards
from dataprep_assets.pipelines.corpus.token_bins import build_token_bins


def indexed_bins_asset(dataset: BlendAssets) -> dg.AssetsDefinition:
    """Tokenize the shards, in parallel over files."""
    return blend_shards_asset(
        dataset,
        INDEXED_BINS,
        indexed_bins_shards,
        build_token_bins,
        kinds={"numpy", "huggingface"},
        description="Megatron's bin and idx of each shard: tokenized once.",
    )
