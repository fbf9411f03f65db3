"""Checks of `<dataset>/packed_sft`: packed rows are the source's conversations, and the mask trains their answers."""

from functools import partial

import dagster as dg

from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_shards_checks import shard_checks
from dataprep_assets.pipelines.blend.sft.packed_sft import PACKED_SFT, sft_shards
from dataprep_assets.pipelines.blend.sft.packed_sft_proofs import PACKED_SFT_PROOFS, prove_packed_sft


def packed_sft_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the shards."""
    prove = partial(prove_packed_sft, sensitive=dataset.blend.sensitive)
    return shard_checks(dataset, PACKED_SFT, PACKED_SFT_PROOFS, sft_shards, prove)
