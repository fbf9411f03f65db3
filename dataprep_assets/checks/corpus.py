"""All checks of a tokenized corpus."""

from collections.abc import Sequence

import dagster as dg

from dataprep_assets.assets.corpus import CorpusAssets
from dataprep_assets.builds.engine_certificate import load_certificate
from dataprep_assets.checks.combined_bins import combined_bins_checks
from dataprep_assets.checks.engine_certificate import engine_certificate_checks
from dataprep_assets.checks.manifest import manifest_checks
from dataprep_assets.checks.snapshot import snapshot_checks
from dataprep_assets.checks.token_bins import token_bins_checks
from dataprep_assets.checks.views import view_checks


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
