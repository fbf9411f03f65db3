"""The asset `<dataset>/blend_snapshot`, a partition a shard: its source files, present and digested."""

from collections.abc import Callable
from typing import Any

import dagster as dg

from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.orchestration.dataset import NETWORK_POOL, SHARDS_PER_RUN
from dataprep_assets.orchestration.shards import report_fetches
from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_snapshot import build_blend_snapshot
from resources import StorageResource


def blend_snapshot_asset(dataset: BlendAssets) -> dg.AssetsDefinition:
    """Mirror or verify the files of each shard."""
    blend = dataset.blend

    @dg.asset(
        key=dataset.key("blend_snapshot"),
        deps=[dataset.key("blend_preview")],
        partitions_def=dataset.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN),
        pool=NETWORK_POOL,
        **dataset.common({"file"}, "Source files of each shard, fetched where they are remote, with their SHA-256."),
    )
    def blend_snapshot(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store = dataset.store(storage)
        plan = dataset.plan(store)
        size = sum(plan.find(partition)[1].total_bytes for partition in context.partition_keys)

        def fetch(partition: str, fetched: Callable[[int], None]) -> tuple[Receipt, bool]:
            return build_blend_snapshot(blend, store, plan, partition, fetched)

        yield from report_fetches(context, dataset, "blend_snapshot", store, size, fetch)

    return blend_snapshot
