"""Checks of `<dataset>/<view>_bins`: the same stream, in a layout that its trainer accepts."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.pipelines.corpus import views_proofs as proofs
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.declaration import View
from dataprep_assets.pipelines.corpus.views import artifact_name, combined_splits
from resources import StorageResource

CHECKS = {
    "same_stream": "Its tokens are those of the combined bins, every one.",
    "layout_valid": "Its sidecars describe its tokens exactly.",
}


def view_checks(dataset: CorpusAssets, view: View) -> dg.AssetChecksDefinition:
    """All checks of a view."""
    corpus, name = dataset.corpus, artifact_name(view)

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store = dataset.store(storage)
        artifact = corpus.artifact(name)
        receipt, directory, splits = store.require(artifact), store.local(artifact), combined_splits(corpus, store)
        yield "same_stream", proofs.same_stream(directory, receipt, view, splits, store)
        yield "layout_valid", proofs.layout_valid(directory, receipt, view, splits)

    return checks_of(dataset.key(name), CHECKS, findings)
