"""Kept documents of all shards after deduplication, and the changes since the previous deduplication.

The artifact `duplicates` is built from these documents. `dataprep retract` uses the changes to predict the effect of a
longer retraction list.

Entry points: `decide_kept_documents`, `predict_duplicates_change`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.candidates import Nodes
from dataprep_assets.curation.duplicates.duplicates_files import read_known_pairs
from dataprep_assets.curation.duplicates.kept_set import ComparedPairs, DuplicateDecisions, choose_kept_documents
from dataprep_assets.curation.duplicates.removed_file import DUPLICATES, SIGNATURES
from dataprep_assets.engine.trace.retraction import DuplicatesChange
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.file_ages import compute_ages
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.joined_documents import JoinedDocuments, join_documents
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import load_removed_rows
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest


@dataclass(frozen=True)
class KeptDocuments:
    """Documents of all shards, and the decision which of them are kept."""

    joined: JoinedDocuments
    kept: DuplicateDecisions

    def iterate_shards(self) -> Iterator[tuple[str, Nodes, NDArray[np.bool_]]]:
        """Yield each shard with the positions of its removed rows, ascending, and a mask of its kept rows."""
        documents = self.joined.documents
        bits = documents.taken.copy()
        bits[self.kept.removed] = False
        for number, partition in enumerate(self.joined.partitions):
            begin, end = documents.first[number : number + 2].tolist()
            # The removed rows of a shard are one slice, because the numbers in `removed` are ascending.
            part = slice(*np.searchsorted(self.kept.removed, [begin, end]).tolist())
            yield partition, self.kept.removed[part] - begin, bits[begin:end]


def decide_kept_documents(
    corpus: CorpusDeclaration,
    store: ArtifactStore,
    ages: Mapping[str, int],
    partitions: Sequence[str] | None = None,
    *,
    pairs: ComparedPairs,
) -> KeptDocuments:
    """Compare the documents of the given shards and decide which of them to keep.

    Args:
        corpus: The dataset.
        store: The store of its signatures and tags.
        ages: Source file → its age (`file_ages`).
        partitions: The shards; None for all shards of the plan.
        pairs: Pairs that need no comparison.

    Raises MissingArtifactError if an artifact of a shard is missing.
    """
    duplicates = corpus.duplicates
    assert duplicates is not None
    documents = join_documents(corpus, store, load_manifest(corpus, store), ages, partitions)
    decision = choose_kept_documents(
        documents.documents,
        documents.priority,
        threshold=duplicates.similarity,
        across=duplicates.across_splits,
        known_pairs=pairs,
    )
    return KeptDocuments(documents, decision)


def read_current_duplicates(corpus: CorpusDeclaration, store: ArtifactStore) -> Mapping[str, tuple[str, Nodes]]:
    """Return the current duplicates: shard → content of its signatures, removed rows; empty if there are none."""
    try:
        if (receipt := store.receipt(corpus.artifact(DUPLICATES))) is None:
            return {}
        input_contents = receipt.recipe["upstream"]
        shards = [name.partition("/")[2] for name in input_contents if name.startswith(f"{SIGNATURES}/")]
        return {
            shard: (input_contents[f"{SIGNATURES}/{shard}"], load_removed_rows(corpus, store, shard).positions)
            for shard in shards
        }
    except (DataprepError, OSError, KeyError):
        return {}


def count_changes(
    corpus: CorpusDeclaration, store: ArtifactStore, previous_nodes: Mapping[str, tuple[str, Nodes]], now: KeptDocuments
) -> DuplicatesChange:
    """Count the restored and the additionally removed rows, in shards with unchanged texts."""
    restored_documents = removed_documents = 0
    for shard, removed_ids, is_kept in now.iterate_shards():
        # Compare positions only if the signatures are unchanged, because a position may otherwise refer to a different
        # row.
        if (
            shard not in previous_nodes
            or previous_nodes[shard][0] != store.require(corpus.artifact(SIGNATURES, shard)).content
        ):
            continue
        restored_documents += int(np.count_nonzero(is_kept[previous_nodes[shard][1]]))
        removed_documents += len(np.setdiff1d(removed_ids, previous_nodes[shard][1], assume_unique=True))
    return DuplicatesChange(back=restored_documents, gone=removed_documents)


def predict_duplicates_change(corpus: CorpusDeclaration, store: ArtifactStore) -> DuplicatesChange | None:
    """Predict how the rules and the retraction list will change the duplicates in the next run; write nothing.

    Returns None if duplicates are not declared or not built, or if one of their inputs is missing.
    """
    if corpus.duplicates is None or not (previous_receipt := read_current_duplicates(corpus, store)):
        return None
    try:
        manifest = load_manifest(corpus, store)
        # Skip shards that the current duplicates do not contain: they may have no signatures yet, and their changes are
        # not due to the rules or the retraction list.
        shards = [shard for shard in manifest.plan if shard in previous_receipt]
        ages, pairs = (
            compute_ages(corpus, store, manifest),
            read_known_pairs(store, corpus.artifact(DUPLICATES), corpus.signing),
        )
        return count_changes(
            corpus, store, previous_receipt, decide_kept_documents(corpus, store, ages, shards, pairs=pairs)
        )
    except DataprepError:
        return None
