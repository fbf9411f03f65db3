"""The asset `<dataset>/<split>/snapshot`, a partition a shard: its source files, present and verified."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dataprep_assets.assets.corpus import CorpusAssets
from dataprep_assets.assets.dataset import NETWORK_POOL, SHARDS_PER_RUN, RunProgress
from dataprep_assets.assets.shards import report_shards
from dataprep_assets.builds.snapshot import build_snapshot, preflight
from dataprep_assets.builds.token_bins import ShardResult
from dataprep_assets.builds.workers import Meter
from dataprep_assets.errors import DataprepError
from resources import StorageResource


def snapshot_asset(dataset: CorpusAssets, split: str) -> dg.AssetsDefinition:
    """Mirror or verify the files of each shard of a split."""
    mirrors = {"hub": "mirrored from the hub", "object_store": "mirrored from the object store"}
    where = mirrors.get(dataset.corpus.source.kind, "verified in place")

    @dg.asset(
        key=dataset.key("snapshot", split),
        deps=[dataset.key("manifest")],
        partitions_def=dataset.partitions[split],
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN),
        pool=NETWORK_POOL,
        **dataset.common(
            {dataset.corpus.source.kind, "file"}, f"Source files of each shard, {where}, with their SHA-256."
        ),
    )
    def snapshot(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store, manifest = dataset.store(storage), dataset.manifest(storage)
        meter = Meter(preflight(dataset.corpus, manifest, context.partition_keys))
        show = RunProgress(context, f"{dataset.corpus.dataset}/{split}/snapshot")

        def fetched(count: int) -> None:
            meter.add({"source_bytes": count})
            show(meter, 1)

        def outcomes() -> Iterator[ShardResult]:
            for partition in context.partition_keys:
                try:
                    receipt, reused = build_snapshot(dataset.corpus, store, manifest, partition, fetched)
                    yield ShardResult(partition=partition, receipt=receipt, reused=reused)
                except DataprepError as error:
                    yield ShardResult(partition=partition, error=error)
            show.close(meter, 1)

        yield from report_shards(context, dataset, "snapshot", store, outcomes())

    return snapshot
