"""Checks of `<dataset>/rl_jsonl`: every line is a record, and is what the transforms make of its row."""

from collections.abc import Iterator, Sequence

import dagster as dg

from dataprep_assets.assets.blend_plan import BlendAssets
from dataprep_assets.assets.dataset import worker_count
from dataprep_assets.builds.blend.plan import BlendPlan
from dataprep_assets.builds.rl.rl_jsonl import ARTIFACT, rl_works
from dataprep_assets.checks.blend_shards import shard_checks
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.proofs.finding import Finding
from dataprep_assets.proofs.rl_jsonl import RL_JSONL_PROOFS, prove_rl_jsonl
from dataprep_assets.proofs.verdicts import prove_all


def rl_jsonl_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the shards."""
    blend = dataset.blend

    def prove(
        store: ArtifactStore, plan: BlendPlan, partitions: Sequence[str]
    ) -> Iterator[tuple[str, dict[str, Finding]]]:
        works = {work.partition: work for work in rl_works(blend, store, plan, partitions)}
        return prove_all(works, prove_rl_jsonl, worker_count(blend.workers))

    return shard_checks(dataset, ARTIFACT, RL_JSONL_PROOFS, prove)
