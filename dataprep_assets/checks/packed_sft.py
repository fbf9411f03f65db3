"""Checks of `<dataset>/packed_sft`: packed rows are the source's conversations, and the mask trains their answers."""

from collections.abc import Iterator, Sequence

import dagster as dg

from dataprep_assets.assets.blend_plan import BlendAssets
from dataprep_assets.assets.dataset import worker_count
from dataprep_assets.builds.blend.packed_sft import ARTIFACT, sft_works
from dataprep_assets.builds.blend.plan import BlendPlan
from dataprep_assets.checks.blend_shards import shard_checks
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.proofs.finding import Finding
from dataprep_assets.proofs.packed_sft_shards import PACKED_SFT_PROOFS, SftExamination, prove_packed_sft
from dataprep_assets.proofs.verdicts import prove_all


def packed_sft_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the shards."""
    blend = dataset.blend

    def prove(
        store: ArtifactStore, plan: BlendPlan, partitions: Sequence[str]
    ) -> Iterator[tuple[str, dict[str, Finding]]]:
        works = sft_works(blend, store, plan, partitions)
        examined = {work.partition: SftExamination(work=work, sensitive=blend.sensitive) for work in works}
        return prove_all(examined, prove_packed_sft, worker_count(blend.workers))

    return shard_checks(dataset, ARTIFACT, PACKED_SFT_PROOFS, prove)
