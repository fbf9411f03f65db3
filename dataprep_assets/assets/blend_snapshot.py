"""The asset `<dataset>/blend_snapshot`, a partition a shard: its source files, present and digested."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dataprep_assets.assets.blend_plan import BlendAssets
from dataprep_assets.assets.dataset import NETWORK_POOL, SHARDS_PER_RUN, RunProgress
from dataprep_assets.assets.shards import report_shards
from dataprep_assets.builds.blend.snapshot import build_blend_snapshot
from dataprep_assets.builds.token_bins import ShardResult
from dataprep_assets.builds.workers import Meter
from dataprep_assets.errors import DataprepError
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
        meter = Meter(sum(plan.find(partition)[1].total_bytes for partition in context.partition_keys))
        show = RunProgress(context, "/".join(context.asset_key.path))

        def fetched(count: int) -> None:
            meter.add({"source_bytes": count})
            show(meter, 1)

        def outcomes() -> Iterator[ShardResult]:
            for partition in context.partition_keys:
                try:
                    receipt, reused = build_blend_snapshot(blend, store, plan, partition, fetched)
                    yield ShardResult(partition=partition, receipt=receipt, reused=reused)
                except DataprepError as error:
                    yield ShardResult(partition=partition, error=error)
            show.close(meter, 1)

        yield from report_shards(context, dataset, "blend_snapshot", store, outcomes())

    return blend_snapshot
