"""Obsolete artifacts that contain, or may contain, removed documents or rows.

The index of a shard shows whether the shard contains a removed document. Artifacts built from shards (combined bins,
runs, npy shards, views) are judged by the shards in their receipts, if these still exist with the same content.

An artifact cannot be judged if it is incomplete, was built from deleted shards, or has a different kind of index. It
then counts as containing a removed document. Removing it is safe, because no plan contains it.

Entry point: `find_unplanned_retracted`.
"""

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.retractions import read_retracted_ids
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.tokenization.document_ids import DocumentIds


def find_unplanned_retracted(
    store: ArtifactStore,
    unplanned: Iterable[Artifact],
    *,
    retractions: Path | None,
    load_ids: Callable[[], DocumentIds | None],
    snapshots: str,
    shards: str,
    source: Callable[[str], Artifact],
    contains: Callable[[Artifact, Receipt, DocumentIds, NDArray[np.uint64]], bool],
) -> list[Artifact]:
    """Return the unplanned artifacts that contain, or may contain, a removed document.

    Artifacts built from shards come before the shards, which are needed to judge them. Raises the errors of
    `read_retracted_ids`.

    Args:
        store: The store of the artifacts.
        unplanned: The artifacts of the dataset that are not in its plan.
        retractions: The dataset's retraction list.
        load_ids: Returns the dataset's id scheme, and may need a key; None if documents have no ids.
        snapshots: Name of the snapshots, which have names and digests of files but no documents.
        shards: Name of the shards.
        source: Returns the artifact for the name of an input in a receipt.
        contains: Returns whether a shard contains, or may contain, a document with one of the sorted hashes.
    """
    if retractions is None or not retractions.exists():
        return []
    candidates = [candidate for candidate in unplanned if candidate.name != snapshots]
    if not candidates:  # return early, because the ids below may need a key
        return []
    ids = load_ids()
    hashes = read_retracted_ids(retractions, ids)
    if ids is None or not len(hashes):
        return []

    # cached, because many artifacts are built from the same shard
    @cache
    def is_affected(artifact: Artifact) -> bool:
        try:
            receipt = store.receipt(artifact)
            if receipt is None:
                return True
            if artifact.name == shards:
                return contains(artifact, receipt, ids, hashes)
            return any(not is_there(name, content) for name, content in receipt.inputs.items())
        except (DataprepError, OSError):  # a damaged artifact may contain a removed document
            return True

    def is_there(name: str, content: str) -> bool:
        """Return whether an input still exists with the same content, and contains no removed document."""
        receipt = store.receipt(source(name))
        return receipt is not None and receipt.content == content and not is_affected(source(name))

    return sorted(filter(is_affected, candidates), key=lambda artifact: artifact.name == shards)
