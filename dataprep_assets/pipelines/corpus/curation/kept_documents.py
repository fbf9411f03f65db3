"""The kept documents of all shards after deduplication, and the changes since the previous deduplication.

The artifact `duplicates` is built from them, and `dataprep retract` predicts the effect of a longer list.

Entry points: `kept_documents`, `duplicates_change`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.candidates import Nodes
from dataprep_assets.curation.duplicates.kept_set import ComparedPairs, KeptSet, kept_set
from dataprep_assets.engine.trace.retraction import DuplicatesChange
from dataprep_assets.errors import DataprepError, FormatError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.file_ages import ages_of
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.joined_documents import JoinedDocuments, join_documents
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import DUPLICATES, removed_rows
from dataprep_assets.pipelines.corpus.duplicates.signed_shard import SIGNATURES
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest

PAIRS = "pairs.bin"


@dataclass(frozen=True)
class KeptDocuments:
    """The documents of all shards, and the decision which of them are kept."""

    found: JoinedDocuments
    kept: KeptSet

    def by_shard(self) -> Iterator[tuple[str, Nodes, NDArray[np.bool_]]]:
        """Yield each shard with the positions of its removed rows, ascending, and a mask of its kept rows."""
        documents = self.found.documents
        bits = documents.taken.copy()
        bits[self.kept.removed] = False
        for number, partition in enumerate(self.found.partitions):
            begin, end = documents.first[number : number + 2].tolist()
            # numbers increase, so the removed rows of a shard are one slice
            part = slice(*np.searchsorted(self.kept.removed, [begin, end]).tolist())
            yield partition, self.kept.removed[part] - begin, bits[begin:end]


def kept_documents(
    corpus: CorpusDeclaration,
    store: ArtifactStore,
    ages: Mapping[str, int],
    partitions: Sequence[str] | None = None,
    *,
    known: ComparedPairs,
) -> KeptDocuments:
    """Compare the documents of the given shards.

    Args:
        corpus: The dataset.
        store: The store of its signatures and tags.
        ages: Source file → its age (`file_ages`).
        partitions: The shards; None for all shards of the plan.
        known: Pairs that need no comparison.

    Raises MissingArtifactError if an artifact of a shard is missing.
    """
    duplicates = corpus.duplicates
    assert duplicates is not None
    documents = join_documents(corpus, store, load_manifest(corpus, store), ages, partitions)
    decision = kept_set(
        documents.documents,
        documents.priority,
        threshold=duplicates.similarity,
        across=duplicates.across_splits,
        known=known,
    )
    return KeptDocuments(documents, decision)


def known_pairs(corpus: CorpusDeclaration, store: ArtifactStore) -> ComparedPairs:
    """Return the pairs that the current duplicates compared on the same shingles, at any threshold."""
    artifact = corpus.artifact(DUPLICATES)
    try:
        # its own check failed, possibly because of a wrong pair
        if store.must_rebuild(artifact) or (receipt := store.receipt(artifact)) is None:
            return ComparedPairs()
        now, before = corpus.signing.key_parts, receipt.recipe["settings"]
        # bands are not compared: they determine which pairs are compared, not how similar these are
        if any(
            now.get(name) != before.get(name)
            for name in ("kind", "normalization", "unicode", "words", "shingle", "key")
        ):
            return ComparedPairs()
        # every byte is verified first, because these pairs are used without comparing their shingles
        if store.damage(artifact, receipt, "full"):
            return ComparedPairs()
        return pairs_in(store.local(artifact, [PAIRS]))
    except (DataprepError, OSError, KeyError):  # unreadable pairs are compared again
        return ComparedPairs()


def pairs_in(directory: Path) -> ComparedPairs:
    """Return the compared pairs in a directory of duplicates; raise FormatError if the file is truncated."""
    data = (directory / PAIRS).read_bytes()
    if len(data) % 32:
        raise FormatError(
            f"{directory / PAIRS}: {count_of(len(data), 'byte is', 'bytes are')} not whole pairs of 32 bytes"
        )
    return ComparedPairs(np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, 4))


def present_duplicates(corpus: CorpusDeclaration, store: ArtifactStore) -> Mapping[str, tuple[str, Nodes]]:
    """Return shard → content of its signatures and its removed rows, in the current duplicates; empty without them."""
    try:
        if (receipt := store.receipt(corpus.artifact(DUPLICATES))) is None:
            return {}
        made_of = receipt.recipe["upstream"]
        shards = [name.partition("/")[2] for name in made_of if name.startswith(f"{SIGNATURES}/")]
        return {
            shard: (made_of[f"{SIGNATURES}/{shard}"], removed_rows(corpus, store, shard).positions) for shard in shards
        }
    except (DataprepError, OSError, KeyError):
        return {}


def change_of(
    corpus: CorpusDeclaration, store: ArtifactStore, before: Mapping[str, tuple[str, Nodes]], now: KeptDocuments
) -> DuplicatesChange:
    """Return how many rows are restored and how many more are removed, in shards with unchanged texts."""
    back = removed_documents = 0
    for shard, removed, is_kept in now.by_shard():
        # positions can be compared only if the signatures are the same
        if shard not in before or before[shard][0] != store.require(corpus.artifact(SIGNATURES, shard)).content:
            continue
        back += int(np.count_nonzero(is_kept[before[shard][1]]))
        removed_documents += len(np.setdiff1d(removed, before[shard][1], assume_unique=True))
    return DuplicatesChange(back=back, gone=removed_documents)


def duplicates_change(corpus: CorpusDeclaration, store: ArtifactStore) -> DuplicatesChange | None:
    """Return how the rules and the retraction list change the duplicates in the next run; write nothing.

    Returns None without declared or built duplicates, or if one of their inputs is missing.
    """
    if corpus.duplicates is None or not (before := present_duplicates(corpus, store)):
        return None
    try:
        manifest = load_manifest(corpus, store)
        # shards of new files have no signatures yet, and their changes would not be due to the list
        shards = [shard for shard in manifest.plan if shard in before]
        ages, pairs = ages_of(corpus, store, manifest), known_pairs(corpus, store)
        return change_of(corpus, store, before, kept_documents(corpus, store, ages, shards, known=pairs))
    except DataprepError:
        return None
