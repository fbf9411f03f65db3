"""The largest clusters of documents that are alike, as a table to look at: with excerpts side by side, for people who
want to know what went. A sensitive dataset has no such table."""

from collections.abc import Sequence
from typing import Any

from dataprep_assets.documents.table import side_by_side
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.excerpts import Excerpts
from dataprep_assets.pipelines.corpus.removed_duplicates import DUPLICATES

CLUSTERS = "clusters.parquet"
_SHOWN = 10
"""Clusters of the table."""


def largest_clusters(corpus: CorpusDeclaration, store: ArtifactStore) -> Sequence[dict[str, Any]]:
    """A row for each of the largest clusters: the document that is kept, how many go, and the one least like it.

    The texts of both begin in `text` and `example_text`, where their files can be read and are small enough. Nothing is
    returned of a sensitive dataset.

    Args:
        corpus: The dataset.
        store: Where its duplicates are.
    """
    if corpus.sensitive:
        return []
    # all clusters are in one piece; there is none if nothing went
    found = next(side_by_side([store.local(corpus.artifact(DUPLICATES), [CLUSTERS]) / CLUSTERS]), None)
    excerpts = Excerpts(corpus, store)
    return [
        {**row, "text": excerpts.of(row["representative"]), "example_text": excerpts.of(row["example"])}
        for row in ([] if found is None else found.slice(0, _SHOWN).to_pylist())
    ]
