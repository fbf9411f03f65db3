"""Checks of `<dataset>/indexed_bins`: bin and idx are the source's documents, each once, for Megatron to read."""

from collections.abc import Iterator, Sequence

import dagster as dg

from dataprep_assets.assets.blend_plan import BlendAssets
from dataprep_assets.assets.dataset import worker_count
from dataprep_assets.builds.blend.indexed_bins import ARTIFACT, indexed_bins_works
from dataprep_assets.builds.blend.plan import BlendPlan
from dataprep_assets.checks.blend_shards import shard_checks
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.proofs.finding import Finding
from dataprep_assets.proofs.indexed_bins import INDEXED_BINS_PROOFS, prove_indexed_bins
from dataprep_assets.proofs.verdicts import prove_all


def indexed_bins_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the shards."""
    blend = dataset.blend

    def prove(
        store: ArtifactStore, plan: BlendPlan, partitions: Sequence[str]
    ) -> Iterator[tuple[str, dict[str, Finding]]]:
        works = {work.partition: work for work in indexed_bins_works(blend, store, plan, partitions)}
        return prove_all(works, prove_indexed_bins, worker_count(blend.workers))

    return shard_checks(dataset, ARTIFACT, INDEXED_BINS_PROOFS, prove)
