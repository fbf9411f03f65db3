"""The asset `<dataset>/indexed_bins`, a partition a shard: Megatron's `.bin` and `.idx` of a pretraining blend."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dataprep_assets.assets.blend_plan import BlendAssets
from dataprep_assets.assets.dataset import CPU_POOL, SHARDS_PER_RUN, worker_count
from dataprep_assets.assets.shards import OnProgress, report_work
from dataprep_assets.builds.blend.indexed_bins import ARTIFACT, build_indexed_bins, indexed_bins_works
from dataprep_assets.builds.token_bins import ShardResult
from resources import StorageResource


def indexed_bins_asset(dataset: BlendAssets) -> dg.AssetsDefinition:
    """Tokenize the shards, in parallel over files."""
    blend = dataset.blend

    @dg.asset(
        key=dataset.key(ARTIFACT),
        deps=[dataset.key("blend_snapshot"), dataset.key("engine_certificate")],
        partitions_def=dataset.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN),
        pool=CPU_POOL,
        **dataset.common({"numpy", "huggingface"}, "Megatron's bin and idx of each shard: tokenized once."),
    )
    def indexed_bins(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store = dataset.store(storage)
        works = indexed_bins_works(blend, store, dataset.plan(store), context.partition_keys)
        workers = worker_count(blend.workers)

        def start(on_progress: OnProgress) -> Iterator[ShardResult]:
            return build_indexed_bins(works, blend, workers=workers, on_progress=on_progress)

        yield from report_work(context, dataset, ARTIFACT, store, start, workers=workers)

    return indexed_bins
