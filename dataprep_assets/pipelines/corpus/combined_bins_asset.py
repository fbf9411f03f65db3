"""The asset `<dataset>/<split>/combined_bins`: one `.bin` a split, with `meta.pkl`."""

from typing import Any

import dagster as dg

from dataprep_assets.orchestration.dataset import result
from dataprep_assets.pipelines.corpus.combined_bins import build_combined_bins
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from resources import StorageResource


def combined_bins_asset(dataset: CorpusAssets, split: str) -> dg.AssetsDefinition:
    """Join all shards of a split; refuses when one is missing."""

    @dg.asset(
        key=dataset.key("combined_bins", split),
        deps=[dataset.key("token_bins", split)],
        **dataset.common(
            {"numpy", "file"}, f"`{split}.bin`: all shards in manifest order, with `meta.pkl` and its JSON twin."
        ),
    )
    def combined_bins(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store = dataset.store(storage)
        receipt, reused = build_combined_bins(dataset.corpus, store, dataset.manifest(storage), split)
        place = store.location(dataset.corpus.artifact("combined_bins", split))
        facts = {name: receipt.facts[name] for name in ("tokenizer", "vocab_size", "eos_token_id", "dtype", "shards")}
        return result(receipt, place, reused, facts)

    return combined_bins
