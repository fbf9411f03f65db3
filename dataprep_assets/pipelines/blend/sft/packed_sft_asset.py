"""The asset `<dataset>/packed_sft`, a partition a shard: conversations as packed rows with a loss mask."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_shards_asset import blend_shards_asset
from dataprep_assets.pipelines.blend.sft.packed_sft import PACKED_SFT, build_packed_sft, sft_shards
from dataprep_assets.pipelines.blend.sft.shard import PackedSftFacts


def packed_sft_asset(dataset: BlendAssets) -> dg.AssetsDefinition:
    """Render, mask, tokenize and pack the shards, in parallel over files."""
    return blend_shards_asset(
        dataset,
        PACKED_SFT,
        sft_shards,
        build_packed_sft,
        kinds={"parquet", "huggingface"},
        description="Packed conversations: input_ids, loss_mask, seq_start_id.",
        describe=_described,
    )


def _described(_: str, receipt: Receipt) -> Mapping[str, Any]:
    facts = PackedSftFacts.of(receipt)
    return {
        "sequences": facts.sequences,
        "bins": facts.bins,
        "trained_tokens": facts.trained_tokens,
        "truncated": facts.truncated,
        "truncated_to_pack_size": facts.truncated_to_pack_size,
        "fill": facts.fill,
        "packing_factor": facts.packing_factor,
        "stop_token": facts.stop_token,
    }
