"""Checks of `<dataset>/blend_snapshot`: the files on disk are those that the snapshot names."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.assets.blend_plan import BlendAssets
from dataprep_assets.assets.dataset import partitions_of_run
from dataprep_assets.builds.blend.plan import BlendPlan
from dataprep_assets.builds.blend.snapshot import shard_parts
from dataprep_assets.checks.findings import checks_of, summarized
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.proofs import snapshot as proofs
from dataprep_assets.proofs.finding import Finding
from dataprep_assets.proofs.verdicts import remember, remembered
from resources import StorageResource

CHECKS = {"digests_match": "Files on disk have the snapshot's SHA-256."}


def blend_snapshot_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the snapshots: those of the run are read, for the others the remembered verdict counts."""
    blend = dataset.blend

    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store = dataset.store(storage)
        plan = dataset.plan(store)
        examined = partitions_of_run(context.run, plan.partitions)
        found: dict[str, Finding] = {}
        unknown = 0
        for partition in plan.partitions:
            artifact = blend.artifact("blend_snapshot", partition)
            if partition in examined:
                found[partition] = _digests(dataset, store, plan, partition)
                remember(artifact, store, {"digests_match": found[partition]})
            elif kept := remembered(artifact, store):
                found[partition] = kept["digests_match"]
            else:
                unknown += 1
        yield "digests_match", summarized(found, examined, unknown)

    return checks_of(dataset.key("blend_snapshot"), CHECKS, findings)


def _digests(dataset: BlendAssets, store: ArtifactStore, plan: BlendPlan, partition: str) -> Finding:
    try:
        parts = shard_parts(dataset.blend, store, plan, partition)
    except DataprepError as error:  # a missing or damaged snapshot is the finding
        return Finding(passed=False, summary=str(error))
    return proofs.digests_match({p.label: p.sha256 for p in parts}, {p.label: p.path for p in parts})
