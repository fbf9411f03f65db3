"""Documents of all shards of a corpus, prepared for comparison, and the priority that decides what to keep."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.candidates import CandidateSet
from dataprep_assets.curation.duplicates.kept_set import Priority, ShardOrder, build_value_keys
from dataprep_assets.curation.duplicates.removed_file import SIGNATURES
from dataprep_assets.errors import IntegrityError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.curation.file_ages import compute_ages
from dataprep_assets.pipelines.corpus.curation.ruled_rows import read_ruled_rows
from dataprep_assets.pipelines.corpus.curation.tagged_shard import TAGS
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.other_datasets import OtherShard, open_other_documents
from dataprep_assets.pipelines.corpus.duplicates.signed_shard import open_signatures
from dataprep_assets.pipelines.corpus.source.manifest import Manifest
from dataprep_assets.planning.manifest import natural_key, split_name


@dataclass(frozen=True, kw_only=True)
class JoinedDocuments:
    """Documents of all shards, prepared for comparison.

    Attributes:
        partitions: The shards, in the order of the plan.
        others: The shards of other datasets, which come after the dataset's own shards.
        documents: The documents of all these shards.
        priority: The order that decides which of two documents is kept.
    """

    partitions: Sequence[str]
    others: Sequence[OtherShard]
    documents: CandidateSet
    priority: Priority

    @property
    def own_rows(self) -> int:
        """Number of rows in the dataset's own shards, which are numbered before the rows of other datasets."""
        return int(self.documents.first[len(self.partitions)])

    def iterate_other_shards(self) -> Iterator[tuple[OtherShard, int, int]]:
        """Yield each shard of another dataset, with the number of its first row and the number after its last row."""
        bounds = self.documents.first[len(self.partitions) :].tolist()
        yield from zip(self.others, bounds, bounds[1:], strict=False)


def join_documents(
    corpus: CorpusDeclaration,
    store: ArtifactStore,
    manifest: Manifest,
    ages: Mapping[str, int] | None = None,
    partitions: Sequence[str] | None = None,
) -> JoinedDocuments:
    """Return the documents of all shards and of the datasets in `against`, with the rows to compare and their priority.

    Args:
        corpus: The dataset.
        store: The store of its signatures and tags.
        manifest: Its manifest.
        ages: Source file → its age; None for the ages in the current duplicates.
        partitions: The shards to join, in the order of the plan; None for all shards.
    """
    duplicates = corpus.duplicates
    assert duplicates is not None
    ages = compute_ages(corpus, store, manifest) if ages is None else ages
    # Rank the files by name, because the ranks break ties, and the kept documents must not depend on when a file was
    # appended to the plan.
    ranks = {name: index for index, name in enumerate(sorted((e.relpath for e in manifest.entries), key=natural_key))}
    splits = {name: index for index, name in enumerate(corpus.splits)}
    shards, masks, orders = [], [], []
    partitions = list(manifest.plan) if partitions is None else partitions
    for partition in partitions:
        signatures = open_signatures(store, corpus.artifact(SIGNATURES, partition))
        rows = _Rows(corpus, store.local(corpus.artifact(TAGS, partition)))
        # Both artifacts must have the same number of rows, because their rows are matched by position.
        if len(rows.taken) != signatures.rows:
            raise IntegrityError(
                f"{corpus.artifact(SIGNATURES, partition)}: has {count_of(signatures.rows, 'row')}, but the tags have "
                f"{len(rows.taken):,}. Rebuild both"
            )
        shards.append(signatures)
        # Exclude empty texts, whose digests are zero, because they would all be duplicates of each other.
        masks.append(rows.taken & signatures.digests[:, :2].any(axis=1))
        orders.append(
            ShardOrder(
                split=splits[split_name(partition)],
                starts=np.array(rows.starts, np.int64),
                files=np.array([ranks[name] for name in rows.files], np.int64),
                ages=np.array([ages.get(name, 0) for name in rows.files], np.int64),
                values=rows.values,
            )
        )
    # Append the shards of other datasets, so that the numbers of the dataset's own rows do not depend on them.
    other_shards = open_other_documents(corpus, store).shards
    for shard in other_shards:
        signatures, mask = shard.open_signatures(store)
        shards.append(signatures)
        masks.append(mask)
        orders.append(shard.build_order(len(splits)))
    documents = CandidateSet(shards, masks)
    priority = Priority(documents=documents, shards=orders, by_split=duplicates.across_splits == "drop")
    return JoinedDocuments(partitions=partitions, others=other_shards, documents=documents, priority=priority)


class _Rows:
    """Rows of a shard: a mask of compared rows, the starts of files, and the values of the priority column."""

    def __init__(self, corpus: CorpusDeclaration, directory: Path) -> None:
        assert corpus.duplicates is not None
        self.starts: list[int] = []
        self.files: list[str] = []
        self.values: NDArray[np.float64] | None = None
        priority = corpus.duplicates.priority
        columns = [] if isinstance(priority, str) else [priority.column]
        # Begin with empty arrays, because a shard may have no rows, and `np.concatenate` needs at least one array.
        masks, values, rows = [np.zeros(0, np.bool_)], [np.zeros(0)], 0
        for piece in read_ruled_rows(corpus, directory, ("file", *columns)):
            mask = piece.good & ~piece.listed & (piece.rule < 0)
            masks.append(mask)
            for column in columns:
                values.append(build_value_keys(piece.table[column].to_pylist(), priority.order))  # type: ignore[union-attr]
            # Pass the last file of the previous piece, because its rows may continue in this piece.
            for index, name in _find_changes(piece.table["file"].to_pylist(), self.files[-1] if self.files else None):
                self.starts.append(rows + index)
                self.files.append(name)
            rows += len(mask)
        self.taken = np.concatenate(masks)
        if columns:
            self.values = np.concatenate(values)


def _find_changes(names: Sequence[str], last_name: str | None) -> Iterator[tuple[int, str]]:
    for index, name in enumerate(names):
        if name != last_name:
            yield index, name
        last_name = name
