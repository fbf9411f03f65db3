"""The assets `<dataset>/<view>_bins`: what each trainer expects, over the bytes of the combined bins."""

from typing import Any

import dagster as dg

from dataprep_assets.assets.corpus import CorpusAssets
from dataprep_assets.assets.dataset import result
from dataprep_assets.builds.corpus import View
from dataprep_assets.builds.views import artifact_name, build_view
from resources import StorageResource

_DESCRIPTIONS: dict[View, str] = {
    "nanogpt": "`<split>.bin` and `meta.pkl` in one folder, as nanoGPT-style trainers load them.",
    "megatron": "`<split>.bin` and `<split>.idx` for Megatron-Core's IndexedDataset.",
    "datatrove": "`<split>/<split>.ds` with index and metadata for datatrove and nanotron.",
    "olmo": "`<split>.npy` (headerless) with an index for OLMo-core and MaxText's olmo_grain.",
}


def view_asset(dataset: CorpusAssets, view: View) -> dg.AssetsDefinition:
    """Link the combined bins of all splits into a trainer's layout."""

    @dg.asset(
        key=dataset.key(artifact_name(view)),
        deps=[dataset.key("combined_bins", s) for s in dataset.corpus.splits],
        **dataset.common({"numpy", view}, _DESCRIPTIONS[view]),
    )
    def view_bins(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store = dataset.store(storage)
        receipt, reused = build_view(dataset.corpus, store, view)
        return result(receipt, store.place(dataset.corpus.artifact(artifact_name(view))), reused)

    return view_bins
