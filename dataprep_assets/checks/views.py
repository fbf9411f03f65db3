"""Checks of `<dataset>/<view>_bins`: the same stream, in a layout that its trainer accepts."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.assets.dataset import DatasetAssets
from dataprep_assets.builds.corpus import View
from dataprep_assets.builds.views import artifact_name, combined_splits
from dataprep_assets.checks.findings import check_result
from dataprep_assets.integrity.receipt import require_receipt
from dataprep_assets.proofs import views as proofs
from resources import StorageResource


def view_checks(dataset: DatasetAssets, view: View) -> dg.AssetChecksDefinition:
    """All checks of a view."""
    key, corpus = dataset.key(artifact_name(view)), dataset.corpus
    specs = [
        dg.AssetCheckSpec("same_stream", asset=key, description="Its token files are the combined bins, byte for byte."),
        dg.AssetCheckSpec("layout_valid", asset=key, description="Its sidecars describe the token files exactly."),
    ]

    @dg.multi_asset_check(name=f"{corpus.dataset}_{view}_checks", specs=specs)
    def checks(storage: StorageResource) -> Iterator[dg.AssetCheckResult]:
        root = dataset.root(storage)
        directory = corpus.artifact(artifact_name(view)).directory(root)
        receipt, splits = require_receipt(directory), combined_splits(corpus, root)
        yield check_result(key, "same_stream", proofs.same_stream(directory, receipt, view, splits))
        yield check_result(key, "layout_valid", proofs.layout_valid(directory, receipt, view, splits))

    return checks
