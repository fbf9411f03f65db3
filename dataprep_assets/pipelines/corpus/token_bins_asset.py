"""The asset `<dataset>/<split>/token_bins`, a partition a shard: the canonical token stream."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from dataprep_assets.orchestration.dataset import CPU_POOL, SHARDS_PER_RUN, worker_count
from dataprep_assets.orchestration.shards import OnProgress, report_work
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.engine_certificate import load_certificate, stream_plan
from dataprep_assets.pipelines.corpus.shard_work import shard_works
from dataprep_assets.pipelines.corpus.token_bins import ShardResult
from dataprep_assets.pipelines.corpus.whole_shards import build_on_engine
from resources import StorageResource


def token_bins_asset(dataset: CorpusAssets, split: str) -> dg.AssetsDefinition:
    """Tokenize the shards of a split: on worker processes, in parallel over files, or on a cluster, over shards."""

    @dg.asset(
        key=dataset.key("token_bins", split),
        deps=[dataset.key("snapshot", split), dataset.key("engine_certificate")],
        partitions_def=dataset.partitions[split],
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN),
        pool=CPU_POOL,
        **dataset.common({"numpy", "huggingface"}, "Flat token ids and document ends of each shard: tokenized once."),
    )
    def token_bins(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        corpus, store = dataset.corpus, dataset.store(storage)
        manifest, plan = dataset.manifest(storage), stream_plan(corpus, load_certificate(corpus, store))
        works = shard_works(corpus, store, manifest, plan, context.partition_keys)
        workers = worker_count(corpus.workers)

        def start(on_progress: OnProgress) -> Iterator[ShardResult]:
            return build_on_engine(corpus, manifest, works, workers=workers, on_progress=on_progress)

        yield from report_work(context, dataset, "token_bins", store, start, workers=workers)

    return token_bins
