"""Checks of `<dataset>/blend`: the run is whole, its trainer finds every shard once, and it is what was asked for."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.pipelines.blend import realised_proofs, run_proofs, trainer_entry_proofs
from dataprep_assets.pipelines.blend.blend_asset import NAME
from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.runs import RUNS
from dataprep_assets.pipelines.blend.status import shards_of
from resources import StorageResource

CHECKS = {
    "shards_complete": "Every chosen shard is there and of this plan, with data or declared empty.",
    "rows_read_once": "Shards of a file that was cut by rows read, together, the rows that it has when counted now.",
    "run_intact": "Every file of the run has the digest of its receipt, and no other file is there.",
    "entry_lists_every_shard": "What the trainer reads first lists every used shard once, and nothing else.",
    "splits_disjoint": "No shard, and no row of a source file, is in two splits.",
    "realised_as_requested": "Each dataset's share is as its weight asks, within the tolerance.",
}


def blend_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the run."""
    blend = dataset.blend

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store = dataset.store(storage)
        plan = dataset.plan(store)
        shards = shards_of(blend)(blend, store, plan, plan.partitions)
        yield "shards_complete", run_proofs.shards_complete(store, plan, shards)
        yield "rows_read_once", run_proofs.rows_read_once(blend, store, plan, shards)
        artifact = blend.artifact(RUNS, plan.run_hash)
        receipt, directory = store.require(artifact), store.local(artifact)
        yield "run_intact", run_proofs.run_intact(directory, receipt, plan)
        yield "entry_lists_every_shard", trainer_entry_proofs.entry_lists_every_shard(blend, directory, receipt)
        yield "splits_disjoint", run_proofs.splits_disjoint(receipt, plan)
        yield "realised_as_requested", realised_proofs.realised_as_requested(blend, directory, receipt, plan)

    return checks_of(dataset.key(NAME), CHECKS, findings)
