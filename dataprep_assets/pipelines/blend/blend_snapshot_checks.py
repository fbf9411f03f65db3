"""Checks of `<dataset>/blend_snapshot`: the files on disk are those that the snapshot names."""

from collections.abc import Iterator, Sequence

import dagster as dg

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.verdicts import Verdicts
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.checks import checks_of, of_all_partitions
from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_snapshot import shard_parts
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.corpus import snapshot_proofs as proofs
from resources import StorageResource

CHECKS = {"digests_match": "Files on disk have the snapshot's SHA-256."}


def blend_snapshot_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the snapshots: those of the run are read, for the others the remembered verdict counts."""
    blend = dataset.blend

    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store = dataset.store(storage)
        plan = dataset.plan(store)

        def prove(partitions: Sequence[str]) -> Verdicts:
            return ((p, {"digests_match": _digests(dataset, store, plan, p)}) for p in partitions)

        yield from of_all_partitions(
            context.run,
            store,
            plan.partitions,
            CHECKS,
            artifact=lambda partition: blend.artifact("blend_snapshot", partition),
            prove=prove,
        )

    return checks_of(dataset.key("blend_snapshot"), CHECKS, findings)


def _digests(dataset: BlendAssets, store: ArtifactStore, plan: BlendPlan, partition: str) -> Finding:
    try:
        parts = shard_parts(dataset.blend, store, plan, partition)
    except DataprepError as error:  # a missing or damaged snapshot is the finding
        return Finding(passed=False, summary=str(error))
    return proofs.digests_match({p.label: p.sha256 for p in parts}, {p.label: p.path for p in parts})
