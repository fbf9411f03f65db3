"""The asset `<dataset>/npy_shards`, a partition a shard: `<split>_<iiiiii>.npy` and its sample ids."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dataprep_assets.orchestration.dataset import CPU_POOL, SHARDS_PER_RUN, worker_count
from dataprep_assets.orchestration.shards import OnProgress, report_work
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.token_bins import ShardResult
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import release_layout
from dataprep_assets.pipelines.release.npy_shards import NAME, build_npy_shards, planned_shards
from dataprep_assets.pipelines.release.release_plan_asset import release_partitions
from resources import StorageResource


def npy_shards_asset(dataset: CorpusAssets, release: ReleaseDeclaration) -> dg.AssetsDefinition:
    """Write each shard from the token bins, in parallel over shards: no text is tokenized again."""

    @dg.asset(
        key=dataset.key(NAME),
        deps=[dataset.key("release_plan")],
        partitions_def=release_partitions(release),
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN),
        pool=CPU_POOL,
        **dataset.common({"numpy"}, "Shards of whole samples with a NumPy header, and the id of every sample."),
    )
    def shards(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store = dataset.store(storage)
        layout = release_layout(release, store, dataset.manifest(storage))
        workers = worker_count(release.workers)
        planned = planned_shards(release, store, layout, context.partition_keys, workers=workers)

        def start(on_progress: OnProgress) -> Iterator[ShardResult]:
            return build_npy_shards(planned, workers=workers, on_progress=on_progress)

        yield from report_work(context, dataset, NAME, store, start, workers=workers)

    return shards
