"""The assets `<dataset>/<view>_bins`: what each trainer expects, over the bytes or the ids of the combined bins."""

from typing import Any

import dagster as dg

from dataprep_assets.orchestration.dataset import result, worker_count
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.declaration import View
from dataprep_assets.pipelines.corpus.views import artifact_name, build_view
from resources import StorageResource

_DESCRIPTIONS: dict[View, str] = {
    "nanogpt": "`<split>.bin` and `meta.pkl` in one folder, as nanoGPT-style trainers load them.",
    "megatron": "`<split>.bin` and `<split>.idx` for Megatron-Core's IndexedDataset.",
    "datatrove": "`<split>/<split>.ds` with index and metadata for datatrove and nanotron.",
    "olmo": "`<split>.npy` (headerless) with an index for OLMo-core and MaxText's olmo_grain.",
    "mds": "`<split>/index.json` and shards of fixed-length samples for mosaicml-streaming's StreamingDataset.",
    "hf_parquet": "`data/<split>-*.parquet`, a document a row, and the dataset card, for Hugging Face `datasets`.",
}
_KINDS: dict[View, set[str]] = {"hf_parquet": {"parquet", "huggingface"}}


def view_asset(dataset: CorpusAssets, view: View) -> dg.AssetsDefinition:
    """Link the combined bins of all splits into a trainer's layout, or copy their ids into it."""

    @dg.asset(
        key=dataset.key(artifact_name(view)),
        deps=[dataset.key("combined_bins", s) for s in dataset.corpus.splits],
        **dataset.common(_KINDS.get(view, {"numpy", view}), _DESCRIPTIONS[view]),
    )
    def view_bins(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store = dataset.store(storage)
        receipt, reused = build_view(dataset.corpus, store, view, threads=worker_count(dataset.corpus.workers))
        return result(receipt, store.location(dataset.corpus.artifact(artifact_name(view))), reused)

    return view_bins
