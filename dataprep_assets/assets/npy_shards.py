"""The asset `<dataset>/npy_shards`, a partition a shard: `<split>_<iiiiii>.npy` and its sample ids."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dataprep_assets.assets.corpus import CorpusAssets
from dataprep_assets.assets.dataset import CPU_POOL, SHARDS_PER_RUN
from dataprep_assets.assets.release_plan import release_partitions
from dataprep_assets.assets.shards import report_shards
from dataprep_assets.builds.release.declaration import ReleaseDeclaration
from dataprep_assets.builds.release.npy_shards import NAME, build_npy_shard, release_layout
from dataprep_assets.builds.token_bins import ShardResult
from dataprep_assets.errors import DataprepError
from resources import StorageResource


def npy_shards_asset(dataset: CorpusAssets, release: ReleaseDeclaration) -> dg.AssetsDefinition:
    """Write each shard from the token bins: no text is tokenized again."""

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

        def outcomes() -> Iterator[ShardResult]:
            for partition in context.partition_keys:
                try:
                    receipt, reused = build_npy_shard(release, store, layout, partition)
                except DataprepError as error:
                    yield ShardResult(partition=partition, error=error)
                else:
                    yield ShardResult(partition=partition, receipt=receipt, reused=reused)

        yield from report_shards(context, dataset, NAME, store, outcomes())

    return shards
