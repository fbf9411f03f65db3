"""The asset `<dataset>/packed_sft`, a partition a shard: conversations as packed rows with a loss mask."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_shards_asset import blend_shards_asset
from dataprep_assets.pipelines.blend.packed_sft import ARTIFACT, sft_works
from dataprep_assets.pipelines.blend.sft.packed_sft import build_packed_sft

_SHOWN = ("sequences", "bins", "trained_tokens", "truncated", "truncated_to_pack_size", "fill", "packing_factor")


def packed_sft_asset(dataset: BlendAssets) -> dg.AssetsDefinition:
    """Render, mask, tokenize and pack the shards, in parallel over files."""
    return blend_shards_asset(
        dataset,
        ARTIFACT,
        sft_works,
        build_packed_sft,
        kinds={"parquet", "huggingface"},
        description="Packed conversations: input_ids, loss_mask, seq_start_id.",
        describe=_described,
    )


def _described(_: str, receipt: Receipt) -> Mapping[str, Any]:
    return {name: receipt.facts[name] for name in _SHOWN} | {"stop_token": receipt.facts["stop_token"]}
