"""The asset `<dataset>/<split>/snapshot`, a partition a shard: its source files, present and verified."""

from typing import Any

import dagster as dg

from dataprep_assets.assets.dataset import NETWORK_POOL, SHARDS_PER_RUN, DatasetAssets
from dataprep_assets.assets.shards import report_shards
from dataprep_assets.builds.snapshot import build_snapshot
from dataprep_assets.builds.token_bins import ShardResult
from dataprep_assets.errors import DataprepError
from resources import StorageResource


def snapshot_asset(dataset: DatasetAssets, split: str) -> dg.AssetsDefinition:
    """Mirror or verify the files of each shard of a split."""
    where = "mirrored from the hub" if dataset.corpus.source.kind == "hub" else "verified in place"

    @dg.asset(
        key=dataset.key("snapshot", split), deps=[dataset.key("manifest")], partitions_def=dataset.partitions[split],
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN), pool=NETWORK_POOL,
        **dataset.common({dataset.corpus.source.kind, "file"}, f"Source files of each shard, {where}, with their SHA-256."),
    )
    def snapshot(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        root, manifest = dataset.root(storage), dataset.manifest(storage)

        def outcomes() -> Any:
            for partition in context.partition_keys:
                try:
                    receipt, reused = build_snapshot(dataset.corpus, root, manifest, partition)
                    yield ShardResult(partition=partition, receipt=receipt, reused=reused)
                except DataprepError as error:
                    yield ShardResult(partition=partition, error=error)

        yield from report_shards(context, dataset, "snapshot", root, outcomes())

    return snapshot
