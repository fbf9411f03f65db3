"""The asset `<dataset>/<split>/snapshot`, a partition a shard: its source files, present and verified."""

from collections.abc import Callable
from typing import Any

import dagster as dg

from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.orchestration.dataset import NETWORK_POOL, SHARDS_PER_RUN
from dataprep_assets.orchestration.shards import report_fetches
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.snapshot import build_snapshot, preflight
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
        size = preflight(dataset.corpus, manifest, context.partition_keys)

        def fetch(partition: str, fetched: Callable[[int], None]) -> tuple[Receipt, bool]:
            return build_snapshot(dataset.corpus, store, manifest, partition, fetched)

        yield from report_fetches(context, dataset, "snapshot", store, size, fetch)

    return snapshot
