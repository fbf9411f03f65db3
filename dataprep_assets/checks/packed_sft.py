"""Checks of `<dataset>/packed_sft`: packed rows are the source's conversations, and the mask trains their answers."""

from functools import partial

import dagster as dg

from dataprep_assets.assets.blend_plan import BlendAssets
from dataprep_assets.builds.blend.packed_sft import ARTIFACT, sft_works
from dataprep_assets.checks.blend_shards import shard_checks
from dataprep_assets.proofs.packed_sft_shards import PACKED_SFT_PROOFS, prove_packed_sft


def packed_sft_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the shards."""
    prove = partial(prove_packed_sft, sensitive=dataset.blend.sensitive)
    return shard_checks(dataset, ARTIFACT, PACKED_SFT_PROOFS, sft_works, prove)
