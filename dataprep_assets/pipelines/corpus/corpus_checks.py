"""All checks of a tokenized corpus."""

from collections.abc import Sequence

import dagster as dg

from dataprep_assets.pipelines.corpus.combined_bins_checks import combined_bins_checks
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets
from dataprep_assets.pipelines.corpus.engine_certificate import load_certificate
from dataprep_assets.pipelines.corpus.engine_certificate_checks import engine_certificate_checks
from dataprep_assets.pipelines.corpus.manifest_checks import manifest_checks
from dataprep_assets.pipelines.corpus.snapshot_checks import snapshot_checks
from dataprep_assets.pipelines.corpus.token_bins_checks import token_bins_checks
from dataprep_assets.pipelines.corpus.views_checks import view_checks


def corpus_checks(dataset: CorpusAssets) -> Sequence[dg.AssetChecksDefinition]:
    """Every check of a dataset, in the order of its graph."""
    per_split = [
        make(dataset, split) for split in dataset.corpus.splits for make in (snapshot_checks, token_bins_checks)
    ]
    if dataset.corpus.combines:
        per_split += [combined_bins_checks(dataset, split) for split in dataset.corpus.splits]
    views = [view_checks(dataset, view) for view in dataset.corpus.views]
    corpus = dataset.corpus
    certificate = engine_certificate_checks(
        dataset, corpus.tokenizer, corpus.document, lambda store: load_certificate(corpus, store)
    )
    return [manifest_checks(dataset), certificate, *per_split, *views]
