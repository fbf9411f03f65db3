"""Checks of `<dataset>/rl_jsonl`: every line is a record, and is what the transforms make of its row."""

import dagster as dg

from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_shards_checks import shard_checks
from dataprep_assets.pipelines.blend.rl.rl_jsonl import RL_JSONL, rl_shards
from dataprep_assets.pipelines.blend.rl.rl_jsonl_proofs import RL_JSONL_PROOFS, prove_rl_jsonl


def rl_jsonl_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the shards."""
    return shard_checks(dataset, RL_JSONL, RL_JSONL_PROOFS, rl_shards, prove_rl_jsonl)
