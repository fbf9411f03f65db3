"""The asset `<dataset>/packed_sft`, a partition a shard: conversations as packed rows with a loss mask."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from dataprep_assets.assets.blend_plan import BlendAssets
from dataprep_assets.assets.dataset import CPU_POOL, SHARDS_PER_RUN, worker_count
from dataprep_assets.assets.shards import OnProgress, report_work
from dataprep_assets.builds.blend.packed_sft import ARTIFACT, sft_works
from dataprep_assets.builds.sft.packed_sft import build_packed_sft
from dataprep_assets.builds.token_bins import ShardResult
from dataprep_assets.integrity.receipt import Receipt
from resources import StorageResource

_SHOWN = ("sequences", "bins", "trained_tokens", "truncated", "truncated_to_pack_size", "fill", "packing_factor")


def packed_sft_asset(dataset: BlendAssets) -> dg.AssetsDefinition:
    """Render, mask, tokenize and pack the shards, in parallel over files."""
    blend = dataset.blend

    @dg.asset(
        key=dataset.key(ARTIFACT),
        deps=[dataset.key("blend_snapshot"), dataset.key("engine_certificate")],
        partitions_def=dataset.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN),
        pool=CPU_POOL,
        **dataset.common({"parquet", "huggingface"}, "Packed conversations: input_ids, loss_mask, seq_start_id."),
    )
    def packed_sft(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store = dataset.store(storage)
        works = sft_works(blend, store, dataset.plan(store), context.partition_keys)
        workers = worker_count(blend.workers)

        def start(on_progress: OnProgress) -> Iterator[ShardResult]:
            return build_packed_sft(works, workers=workers, verification=blend.verify, on_progress=on_progress)

        yield from report_work(context, dataset, ARTIFACT, store, start, workers=workers, describe=_described)

    return packed_sft


def _described(_: str, receipt: Receipt) -> Mapping[str, Any]:
    return {name: receipt.facts[name] for name in _SHOWN} | {"stop_token": receipt.facts["stop_token"]}
