"""The asset `<dataset>/rl_jsonl`, a partition a shard: records for reinforcement learning, one JSON line each."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dataprep_assets.assets.blend_plan import BlendAssets
from dataprep_assets.assets.dataset import CPU_POOL, SHARDS_PER_RUN, worker_count
from dataprep_assets.assets.shards import OnProgress, report_work
from dataprep_assets.builds.rl.rl_jsonl import ARTIFACT, build_rl_shards, rl_works
from dataprep_assets.builds.token_bins import ShardResult
from resources import StorageResource


def rl_jsonl_asset(dataset: BlendAssets) -> dg.AssetsDefinition:
    """Put the records of each shard through the declared transforms."""
    blend = dataset.blend

    @dg.asset(
        key=dataset.key(ARTIFACT),
        deps=[dataset.key("blend_snapshot")],
        partitions_def=dataset.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN),
        pool=CPU_POOL,
        **dataset.common({"json"}, "Records of each shard, through the declared transforms."),
    )
    def rl_jsonl(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store = dataset.store(storage)
        works = rl_works(blend, store, dataset.plan(store), context.partition_keys)
        workers = worker_count(blend.workers)

        def start(on_progress: OnProgress) -> Iterator[ShardResult]:
            return build_rl_shards(works, workers=workers, verification=blend.verify, on_progress=on_progress)

        yield from report_work(context, dataset, ARTIFACT, store, start, workers=workers)

    return rl_jsonl
