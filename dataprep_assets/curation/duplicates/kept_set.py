"""The kept documents: no two of them are duplicates, and every removed document duplicates a kept one.

The verified graph has an edge between documents whose shingle sets have at least the declared Jaccard similarity.
Documents are decided in order of priority; a document is kept unless it has an edge to a kept document. The kept
documents are the lexicographically first maximal independent set. They depend only on the documents and their
priorities, not on the order of files, the number of shards, or the number of appends.

An edge matters only if its first document is kept. Pairs are therefore compared in order of priority, and only until a
document is removed. Among a thousand versions of a page, each is compared only with the kept version. Pairs that were
compared in an earlier run are not compared again (`ComparedPairs`).

Entry points: `Priority`, `build_value_keys`, `choose_kept_documents`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.candidates import (
    CandidateOrder,
    CandidateSet,
    Nodes,
    find_pairs,
    find_runs,
    group_sharing_documents,
    mark_equal_neighbors,
)
from dataprep_assets.curation.duplicates.declaration import AcrossSplits
from dataprep_assets.tokenization.document_ids import mix_bits

PAIRS_PER_PART = 1 << 16
"""Candidate pairs that are converted to lists together: 30 MB."""
_TIE_BREAKERS = 4
"""Number of sort keys after the second half of the digest."""


@dataclass(frozen=True, kw_only=True)
class ShardOrder:
    """The values that determine the priorities of a shard's rows.

    Attributes:
        split: Number of its split, in declaration order.
        starts: First row of each of its files.
        files: Position of each file among all files, by name.
        ages: Generation of each file; empty if generations are not used.
        values: First sort value of each row, ascending: ``(rows,)``, float64, NaN last; None if not used.
        theirs: Whether it belongs to a different dataset, whose documents come first and are never removed.
    """

    split: int
    starts: Nodes
    files: Nodes
    ages: Nodes
    values: NDArray[np.float64] | None = None
    theirs: bool = False


@dataclass(frozen=True, kw_only=True)
class Priority:
    """The sort order of documents: other datasets first, later splits if `by_split`, age or value, digest, position."""

    documents: CandidateSet
    shards: Sequence[ShardOrder]
    by_split: bool

    def build_sort_keys(self, nodes: Nodes) -> list[NDArray[np.generic]]:
        """Return the sort keys of documents, the most important first, each ``(documents,)``."""
        split, priorities = np.zeros(len(nodes), np.int64), np.zeros(len(nodes), np.float64)
        file, row = np.zeros(len(nodes), np.int64), np.zeros(len(nodes), np.int64)
        is_own = np.ones(len(nodes), np.bool_)
        for number, positions, rows in self.documents.group_by_shard(nodes):
            shard = self.shards[number]
            file_indices = np.searchsorted(shard.starts, rows, side="right") - 1
            # Negate the number of the split, so that documents of the last declared split come first. Duplicates are
            # then removed from the training split, which is usually declared first, and not from a test set.
            split[positions], is_own[positions] = -shard.split, not shard.theirs
            file[positions], row[positions] = shard.files[file_indices], rows - shard.starts[file_indices]
            if shard.values is not None:
                priorities[positions] = shard.values[rows]
            elif len(shard.ages):
                priorities[positions] = shard.ages[file_indices]
        digests = self.documents.get_digests(nodes)
        first_columns: list[NDArray[np.generic]] = [split] if self.by_split else []
        if self.theirs.any():
            # False sorts before True, so documents of other datasets come before all documents of this one.
            first_columns = [is_own, *first_columns]
        # Break ties between identical texts by file and row, because these do not depend on the order in which
        # documents are read.
        return [*first_columns, priorities, digests[:, 1], digests[:, 0], digests[:, 2], file, row]

    @cached_property
    def theirs(self) -> NDArray[np.bool_]:
        """For each shard, whether it belongs to a different dataset."""
        return np.array([shard.theirs for shard in self.shards], np.bool_)

    def build_order(self, across: AcrossSplits) -> CandidateOrder:
        """Return the rules for comparing documents; `across` is the action for different splits."""
        split = np.array([shard.split for shard in self.shards], np.int64)
        return CandidateOrder(split=split, theirs=self.theirs, across=across != "ignore", rank=self.rank)

    def rank(self, nodes: Nodes) -> Nodes:
        """Return the rank of each document among `nodes`, from 0."""
        keys = self.build_sort_keys(nodes)
        # Leave out equal columns and the columns after the digest's second half, because they rarely matter.
        first_keys = [key for key in keys[:-_TIE_BREAKERS] if (key[1:] != key[:-1]).any()]
        # Reverse the columns, because lexsort's last key is the most important one.
        order = np.lexsort(first_keys[::-1]) if first_keys else np.arange(len(nodes))
        digests = keys[-_TIE_BREAKERS - 1][order]
        if (digests[1:] == digests[:-1]).any():
            order = np.lexsort(keys[::-1])
        ranks = np.empty(len(nodes), np.int64)
        ranks[order] = np.arange(len(nodes))
        return ranks


def build_value_keys(values: Sequence[Any], order: str | Sequence[str]) -> NDArray[np.float64]:
    """Return sort keys for values of a column: documents with lower keys are kept in preference, and NaN ranks last."""
    if isinstance(order, str):
        sign = -1.0 if order == "highest" else 1.0
        return np.array([np.nan if one is None else sign * float(one) for one in values], np.float64)
    ranks = {name: rank for rank, name in enumerate(order)}
    return np.array([ranks.get(one, np.nan) for one in values], np.float64)


@dataclass(frozen=True)
class ComparedPairs:
    """Compared pairs: ``(pairs, 4)``, uint64.

    Columns are the first halves of both digests (the smaller first), the size of the shingles' intersection, and the
    size of their union.
    """

    pairs: NDArray[np.uint64] = field(default_factory=lambda: np.empty((0, 4), np.uint64))

    @classmethod
    def from_pairs(cls, pairs: NDArray[np.uint64]) -> Self:
        """Return the compared pairs, given in any order and possibly with repetitions."""
        pairs = pairs.reshape(-1, 4)
        keys = _compute_pair_key(pairs[:, 0], pairs[:, 1])
        order = np.argsort(keys)
        pairs, keys = pairs[order], keys[order]
        # Compare whole rows only if their keys are equal, because few are.
        equal = np.flatnonzero(mark_equal_neighbors(keys))
        pairs[equal] = pairs[equal][np.lexsort((*pairs[equal].T[::-1], keys[equal]))]
        is_first = np.ones(len(pairs), np.bool_)
        is_first[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
        return cls(pairs[is_first])

    @cached_property
    def _keys(self) -> NDArray[np.uint64]:
        return _compute_pair_key(self.pairs[:, 0], self.pairs[:, 1])

    def remove(self, positions: NDArray[np.int64]) -> Self:
        """Return all pairs except the pairs at some positions."""
        return type(self)(np.delete(self.pairs, positions, axis=0))

    def find_positions(self, first_nodes: NDArray[np.uint64], second_nodes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the position of each pair of digests among these pairs; -1 if it was not compared."""
        if not len(self.pairs):
            return np.full(len(first_nodes), -1)
        low, high = np.minimum(first_nodes, second_nodes), np.maximum(first_nodes, second_nodes)
        keys = self._keys
        indices = np.minimum(np.searchsorted(keys, _compute_pair_key(low, high)), len(keys) - 1)
        # If several pairs share a key, only the first of them is found. This is harmless, because the others are only
        # compared again.
        is_same = (self.pairs[indices, 0] == low) & (self.pairs[indices, 1] == high)
        return np.where(is_same, indices, -1)


def _compute_pair_key(low: NDArray[np.uint64], high: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return mix_bits(low * np.uint64(0x9E3779B97F4A7C15) + high)


@dataclass(frozen=True, kw_only=True)
class DuplicateDecisions:
    """Result of deciding which documents are kept.

    Attributes:
        removed: Removed documents, by increasing number.
        representatives: The kept document that represents each removed one.
        similarities: Similarity of each removed document to its representative: from the threshold to 1.
        compared: The compared pairs.
        candidates: Number of pairs that share a band.
        across: Pairs of kept near-duplicates in different splits: ``(pairs, 2)``.
        across_similarities: Similarity of each of these pairs: ``(pairs,)``.
    """

    removed: Nodes
    representatives: Nodes
    similarities: NDArray[np.float64]
    compared: ComparedPairs
    candidates: int
    across: NDArray[np.int64]
    across_similarities: NDArray[np.float64]


def compute_similarity(intersection_size: int, union_size: int) -> float:
    """Return the Jaccard similarity of two sets, given the sizes of their intersection and their union."""
    return intersection_size / union_size if union_size else 1.0


def count_overlap(first_hashes: NDArray[np.uint64], second_hashes: NDArray[np.uint64]) -> tuple[int, int]:
    """Return the sizes of the intersection and the union of two increasing sets."""
    if len(first_hashes) > len(second_hashes):
        first_hashes, second_hashes = second_hashes, first_hashes
    if not len(first_hashes):
        return 0, len(second_hashes)
    # Call methods of the arrays, because NumPy's functions take longer than the search in short texts.
    indices = second_hashes.searchsorted(first_hashes)
    shared = int(np.count_nonzero(second_hashes.take(indices, mode="clip") == first_hashes))
    return shared, len(first_hashes) + len(second_hashes) - shared


def choose_kept_documents(
    documents: CandidateSet,
    priority: Priority,
    *,
    threshold: float,
    across: AcrossSplits,
    known_pairs: ComparedPairs | None = None,
) -> DuplicateDecisions:
    """Decide which documents are kept.

    Args:
        documents: All documents.
        priority: Priority of the documents.
        threshold: Minimum Jaccard similarity of near-duplicates.
        across: Action for near-duplicates in different splits.
        known_pairs: Pairs that were compared in an earlier run.
    """
    order = priority.build_order(across)
    # Group equal documents first, so that only one representative of each group is compared.
    leaders, copies, copy_leaders = _find_copies(documents, order, one_group=across == "drop")
    pairs = find_pairs(documents, leaders, order)
    query = _KeptQuery(
        documents, order, threshold, removes_across=across == "drop", pairs=known_pairs or ComparedPairs()
    )
    if across == "block":
        query.record_equal_across_splits(leaders)
    query.decide_pairs(pairs)
    removed_nodes, representatives, similar = query.collect_removals()
    # If a copy's leader was removed, the leader's representative also represents the copy.
    indices = np.minimum(np.searchsorted(removed_nodes, copy_leaders), max(0, len(removed_nodes) - 1))
    is_removed = removed_nodes[indices] == copy_leaders if len(removed_nodes) else np.zeros(len(copy_leaders), np.bool_)
    all_removed = np.concatenate([removed_nodes, copies])
    representatives = np.concatenate(
        [
            representatives,
            np.where(is_removed, representatives[indices] if len(removed_nodes) else copy_leaders, copy_leaders),
        ]
    )
    similarities = np.concatenate([similar, np.where(is_removed, similar[indices] if len(removed_nodes) else 1.0, 1.0)])
    sorting = np.argsort(all_removed, kind="stable")
    return DuplicateDecisions(
        removed=all_removed[sorting],
        representatives=representatives[sorting],
        similarities=similarities[sorting],
        compared=query.list_compared_pairs(),
        candidates=len(pairs),
        across=query.across,
        across_similarities=query.across_similarities,
    )


def _find_copies(
    documents: CandidateSet, order: CandidateOrder, *, one_group: bool
) -> tuple[NDArray[np.bool_], Nodes, Nodes]:
    """Return a mask of the first document of each digest, the copies, and the first document of each copy.

    Unless `one_group`, each split has its own first document of a digest that no other dataset has.
    """
    leaders = documents.taken.copy()
    copies, copy_leaders = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for _, nodes in group_sharing_documents(documents, 0, documents.taken):
        group = order.assign_groups(documents, nodes, one_group=one_group)
        digests = documents.get_digests(nodes)[:, :2]
        sorting = np.lexsort((order.rank(nodes), group, digests[:, 1], digests[:, 0]))
        nodes, rows = nodes[sorting], np.column_stack([digests, group])[sorting]
        starts, ends = find_runs(rows)
        leader_nodes = np.repeat(nodes[starts], ends - starts)
        is_copy = leader_nodes != nodes
        leaders[nodes[is_copy]] = False
        # Do not remove copies that belong to other datasets, because these datasets decide about their own documents.
        is_copy &= ~order.find_from_others(documents, nodes)
        copies.append(nodes[is_copy])
        copy_leaders.append(leader_nodes[is_copy])
    return leaders, np.concatenate(copies), np.concatenate(copy_leaders)


class _KeptQuery:
    """Decisions about documents in order of priority."""

    def __init__(
        self,
        documents: CandidateSet,
        order: CandidateOrder,
        threshold: float,
        *,
        removes_across: bool,
        pairs: ComparedPairs,
    ) -> None:
        self._documents, self._order = documents, order
        self._threshold, self._removes_across, self._known = threshold, removes_across, pairs
        self._removals: list[tuple[Nodes, Nodes, NDArray[np.float64]]] = []
        self._compared: list[NDArray[np.uint64]] = []
        self._across: list[tuple[int, int, float]] = []

    def record_equal_across_splits(self, leaders: NDArray[np.bool_]) -> None:
        """Record pairs of equal documents in different splits, with one representative per split."""
        for _, nodes in group_sharing_documents(self._documents, 0, leaders):
            digests = self._documents.get_digests(nodes)[:, :2]
            order = np.lexsort((nodes, digests[:, 1], digests[:, 0]))
            nodes, digests = nodes[order], digests[order]
            for start, end in zip(*(one.tolist() for one in find_runs(digests)), strict=True):
                self._across += [(one, other, 1.0) for one, other in combinations(nodes[start:end].tolist(), 2)]

    def decide_pairs(self, pairs: NDArray[np.int64]) -> None:
        """Decide which documents of these pairs are kept."""
        if not len(pairs):
            return
        is_paired = np.zeros(len(self._documents), np.bool_)
        is_paired[pairs.ravel()] = True
        nodes = np.flatnonzero(is_paired)
        ranks = self._order.rank(nodes)
        indices = (np.cumsum(is_paired) - 1)[pairs]
        swapped = ranks[indices[:, 0]] > ranks[indices[:, 1]]
        indices[swapped] = indices[swapped][:, ::-1]
        # Sort pairs by the later document, then by the earlier one, so that earlier documents are decided first.
        indices = indices[np.lexsort((ranks[indices[:, 0]], ranks[indices[:, 1]]))]
        shards, begins, ends = self._documents.locate_shingles(nodes)
        sizes = (ends - begins)[indices]
        # The similarity of two sets is at most the ratio of their sizes, so many pairs need no comparison of shingles.
        # Divide, as `compute_similarity` does, because a rounded product could lose pairs exactly at the threshold.
        indices = indices[sizes.min(axis=1) / np.maximum(sizes.max(axis=1), 1) >= self._threshold]
        splits = self._order.split[shards]
        # A document of a different dataset removes duplicates in every split, because it belongs to no split of this
        # dataset.
        of_others = self._order.find_from_others(self._documents, nodes)
        digests = self._documents.get_digests(nodes)[:, 0]
        shingles = [shard.shingles for shard in self._documents.shards]
        is_removed = bytearray(len(nodes))
        # Convert a part of the pairs at a time, because lists take many times the memory of arrays.
        for part in np.array_split(indices, -(-len(indices) // PAIRS_PER_PART) or 1):
            earlier, later = part.T
            positions = self._known.find_positions(digests[earlier], digests[later])
            known_overlaps = (
                self._known.pairs[positions, 2:] if len(self._known.pairs) else np.zeros(part.shape, np.uint64)
            )
            is_removable = (splits[earlier] == splits[later]) | of_others[earlier]
            locations = np.column_stack(
                [column[nodes_of_pair] for nodes_of_pair in (earlier, later) for column in (shards, begins, ends)]
            )
            compared_pairs, overlaps = list[int](), list[tuple[int, int]]()
            removals = list[tuple[int, float]]()
            columns = earlier, later, positions >= 0, known_overlaps, is_removable, locations
            for number, (earlier_node, later_node, is_known, overlap, can_remove, location) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            ):
                if is_removed[earlier_node] or is_removed[later_node]:
                    continue
                if is_known:
                    shared, either = overlap
                else:
                    shard, begin, end, later_shard, later_begin, later_end = location
                    shared, either = count_overlap(
                        shingles[shard][begin:end], shingles[later_shard][later_begin:later_end]
                    )
                # Also record a pair that is known from the earlier run, because the next run knows only the pairs that
                # this run records.
                compared_pairs.append(number)
                overlaps.append((shared, either))
                if (value := compute_similarity(shared, either)) < self._threshold:
                    continue
                if self._removes_across or can_remove:
                    is_removed[later_node] = 1
                    removals.append((number, value))
                else:
                    self._across.append((int(nodes[earlier_node]), int(nodes[later_node]), value))
            self._record_part(nodes[part], digests[part], compared_pairs, overlaps, removals)

    def _record_part(
        self,
        nodes: Nodes,
        digests: NDArray[np.uint64],
        compared_pairs: Sequence[int],
        overlaps: Sequence[tuple[int, int]],
        removals: Sequence[tuple[int, float]],
    ) -> None:
        """Record the results of some pairs.

        Args:
            nodes: Earlier and later document of each pair: ``(pairs, 2)``.
            digests: First half of the digest of each of them: ``(pairs, 2)``.
            compared_pairs: Positions of the compared pairs.
            overlaps: Sizes of the intersection and the union of each compared pair.
            removals: Positions of the pairs whose later document is removed, and their similarities.
        """
        sizes = np.array(overlaps, np.uint64).reshape(-1, 2)
        self._compared.append(np.column_stack([np.sort(digests[list(compared_pairs)], axis=1), sizes]))
        removed_pairs = nodes[[number for number, _ in removals]]
        self._removals.append((removed_pairs[:, 1], removed_pairs[:, 0], np.array([value for _, value in removals])))

    def collect_removals(self) -> tuple[Nodes, Nodes, NDArray[np.float64]]:
        """Return the removed documents by number, the representative of each, and their similarities."""
        empty = np.empty(0, np.int64)
        parts = [(empty, empty, np.empty(0, np.float64)), *self._removals]
        removed, representatives, similarities = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(removed)
        return removed[order], representatives[order], similarities[order]

    def list_compared_pairs(self) -> ComparedPairs:
        """Return the compared pairs."""
        return ComparedPairs.from_pairs(np.concatenate([np.empty((0, 4), np.uint64), *self._compared]))

    @property
    def _kept_pairs(self) -> list[tuple[int, int, float]]:
        # Exclude pairs with a document that was removed after the pair was recorded, because only pairs of kept
        # documents are reported.
        removed = {node for nodes, _, _ in self._removals for node in nodes.tolist()} if self._across else set()
        kept_pairs = {(min(a, b), max(a, b)): s for a, b, s in self._across if not {a, b} & removed}
        return [(*pair, value) for pair, value in sorted(kept_pairs.items())]

    @property
    def across(self) -> NDArray[np.int64]:
        """Pairs of kept near-duplicates in different splits."""
        return np.array([pair[:2] for pair in self._kept_pairs], np.int64).reshape(-1, 2)

    @property
    def across_similarities(self) -> NDArray[np.float64]:
        """Similarity of each pair of `across`."""
        return np.array([pair[2] for pair in self._kept_pairs], np.float64)
