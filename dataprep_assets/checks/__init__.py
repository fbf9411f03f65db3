"""One module an artifact, the same names as in `assets/`: asset checks around the pure functions of `proofs/`."""

from collections.abc import Sequence

import dagster as dg

from dataprep_assets.assets.dataset import DatasetAssets


def corpus_checks(dataset: DatasetAssets) -> Sequence[dg.AssetChecksDefinition]:
    """Every check of a tokenized corpus."""
    return []
