"""The asset `<dataset>/rl_jsonl`, a partition a shard: records for reinforcement learning, one JSON line each."""

import dagster as dg

from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_shards_asset import blend_shards_asset
from dataprep_assets.pipelines.blend.rl.rl_jsonl import RL_JSONL, build_rl_shards, rl_shards


def rl_jsonl_asset(dataset: BlendAssets) -> dg.AssetsDefinition:
    """Put the records of each shard through the declared transforms."""
    return blend_shards_asset(
        dataset,
        RL_JSONL,
        rl_shards,
        build_rl_shards,
        kinds={"json"},
        description="Records of each shard, through the declared transforms.",
        certified=False,
    )
