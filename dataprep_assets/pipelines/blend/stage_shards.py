"""The shards of a blend, of whichever kind its stage makes."""

from collections.abc import Callable, Mapping, Sequence

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, Stage
from dataprep_assets.pipelines.blend.finished_shards import ShardToBuild
from dataprep_assets.pipelines.blend.indexed_bins import INDEXED_BINS, indexed_bins_shards
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.blend.rl.rl_jsonl import RL_JSONL, rl_shards
from dataprep_assets.pipelines.blend.sft.packed_sft import PACKED_SFT, sft_shards

__all__ = ["SHARDS", "stage_shards"]

SHARDS: Mapping[Stage, str] = {"pretrain": INDEXED_BINS, "sft": PACKED_SFT, "rl": RL_JSONL}
"""The artifact that a stage's shards are."""
_MAKERS: Mapping[
    Stage, Callable[[BlendDeclaration, ArtifactStore, BlendPlan, Sequence[str]], Sequence[ShardToBuild]]
] = {"pretrain": indexed_bins_shards, "sft": sft_shards, "rl": rl_shards}


def stage_shards(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> Sequence[ShardToBuild]:
    """All chosen shards of a plan, ready to build.

    `blend` is the declaration, `store` holds the artifacts, `plan` is the committed plan. Raises MissingArtifactError
    when a snapshot or the certificate is missing.
    """
    return _MAKERS[blend.stage](blend, store, plan, plan.partitions)
