"""Which documents are kept: no two of them alike, and each of the others has a kept one that it is like.

The verified graph has an edge between documents whose sets of shingles have at least the declared Jaccard similarity.
Documents are asked in order of priority; one is kept unless it has an edge to one that is kept. That is the
lexicographically first maximal independent set: it depends on the documents and their priorities alone, not on the
order of files, the number of shards, or the number of appends that brought them.

An edge matters only if its first end is kept, so pairs are compared in that order and only until a document is found to
go: of a thousand versions of a page each is compared with the one that stays. What was compared before is not compared
again (`ComparedPairs`).

Entry points: `Priority`, `kept_set`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.candidates import (
    CandidateOrder,
    CandidateSet,
    Nodes,
    pairs_of,
    runs_of,
    sharing,
)
from dataprep_assets.curation.duplicates.words import mix_bits

AcrossSplits = Literal["drop", "block", "ignore"]
"""Of two documents that are alike in different splits: one goes, a check fails, nothing happens."""


@dataclass(frozen=True, kw_only=True)
class ShardOrder:
    """The values that determine the priority of the rows of a shard.

    Attributes:
        split: The number of its split, in the order of the declaration.
        starts: Its first row of each of its files.
        files: Of each of these, its place among all files by name.
        ages: Of each of these, its generation; empty if these do not count.
        values: Of each row, what is asked first, lower first: ``(rows,)``, float64, NaN last; None if nothing is.
        theirs: Whether it is of another dataset, whose documents come first and stay.
    """

    split: int
    starts: Nodes
    files: Nodes
    ages: Nodes
    values: NDArray[np.float64] | None = None
    theirs: bool = False


@dataclass(frozen=True, kw_only=True)
class Priority:
    """The priority of documents: of other datasets, later splits if asked, age or a value, what they say, place."""

    documents: CandidateSet
    shards: Sequence[ShardOrder]
    by_split: bool

    def columns(self, nodes: Nodes) -> list[NDArray[np.generic]]:
        """Columns to sort documents by, the most important first, each ``(documents,)``."""
        homes = self.documents.shard_of(nodes)
        rows = nodes - self.documents.first[homes]
        split, priorities = np.zeros(len(nodes), np.int64), np.zeros(len(nodes), np.float64)
        file, row = np.zeros(len(nodes), np.int64), np.zeros(len(nodes), np.int64)
        for number in np.unique(homes).tolist():
            positions, shard = np.flatnonzero(homes == number), self.shards[number]
            file_indices = np.searchsorted(shard.starts, rows[positions], side="right") - 1
            # The split that is declared last comes first, so a document goes from train rather than from a test set.
            split[positions] = -shard.split
            file[positions], row[positions] = shard.files[file_indices], rows[positions] - shard.starts[file_indices]
            if shard.values is not None:
                priorities[positions] = shard.values[rows[positions]]
            elif len(shard.ages):
                priorities[positions] = shard.ages[file_indices]
        digests = self.documents.digests(nodes)
        first_columns: list[NDArray[np.generic]] = [split] if self.by_split else []
        if self.theirs.any():
            # False sorts before True: documents of other datasets come before all of this one
            first_columns = [~self.theirs[homes], *first_columns]
        # Texts that are equal in every character are told apart by file and row, which no order of reading changes.
        return [*first_columns, priorities, digests[:, 1], digests[:, 0], digests[:, 2], file, row]

    @cached_property
    def theirs(self) -> NDArray[np.bool_]:
        """Of each shard, whether it is of another dataset."""
        return np.array([shard.theirs for shard in self.shards], np.bool_)

    def order(self, across: AcrossSplits) -> CandidateOrder:
        """Return what is compared with what; `across` says what happens to documents of different splits."""
        split = np.array([shard.split for shard in self.shards], np.int64)
        return CandidateOrder(split=split, theirs=self.theirs, across=across != "ignore", ranks=self.ranks)

    def ranks(self, nodes: Nodes) -> Nodes:
        """The place of each among these, from 0."""
        # the last key is lexsort's most important one
        order = np.lexsort(self.columns(nodes)[::-1])
        ranks = np.empty(len(nodes), np.int64)
        ranks[order] = np.arange(len(nodes))
        return ranks


@dataclass(frozen=True)
class ComparedPairs:
    """Pairs that were compared: ``(pairs, 4)``, uint64: first halves of both digests, the smaller first; shingles that
    both have, and that one of them has."""

    pairs: NDArray[np.uint64] = field(default_factory=lambda: np.empty((0, 4), np.uint64))

    @classmethod
    def from_pairs(cls, pairs: NDArray[np.uint64]) -> Self:
        """Take pairs in any order, some of them more than once."""
        unique_pairs = np.unique(pairs, axis=0) if len(pairs) else pairs.reshape(0, 4)
        return cls(unique_pairs[np.argsort(_pair_key(unique_pairs[:, 0], unique_pairs[:, 1]), kind="stable")])

    def without(self, places: NDArray[np.int64]) -> Self:
        """The others than the pairs at some places."""
        return type(self)(np.delete(self.pairs, places, axis=0))

    def of_pairs(self, one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return which of these pairs each pair of digests is; -1 for one that was not compared."""
        if not len(self.pairs):
            return np.full(len(one), -1)
        low, high = np.minimum(one, other), np.maximum(one, other)
        keys = _pair_key(self.pairs[:, 0], self.pairs[:, 1])
        indices = np.minimum(np.searchsorted(keys, _pair_key(low, high)), len(keys) - 1)
        # the key may belong to another pair; if so, the pair is simply compared again
        is_same = (self.pairs[indices, 0] == low) & (self.pairs[indices, 1] == high)
        return np.where(is_same, indices, -1)


def _pair_key(low: NDArray[np.uint64], high: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return mix_bits(low * np.uint64(0x9E3779B97F4A7C15) + high)


@dataclass(frozen=True, kw_only=True)
class KeptSet:
    """What became of documents.

    Attributes:
        removed: Those that go, by number, increasing.
        representatives: The kept document for each of them.
        similarities: How alike each is to it: from the threshold to 1.
        compared: The pairs that were compared.
        candidates: Number of pairs that share a band.
        across: Pairs of kept documents of different splits that are alike: ``(pairs, 2)``.
        across_similarities: How alike each of these pairs is: ``(pairs,)``.
    """

    removed: Nodes
    representatives: Nodes
    similarities: NDArray[np.float64]
    compared: ComparedPairs
    candidates: int
    across: NDArray[np.int64]
    across_similarities: NDArray[np.float64]


def similarity(shared: int, either: int) -> float:
    """The Jaccard similarity of two sets, of the shingles that both have and that one of them has."""
    return shared / either if either else 1.0


def overlap(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> tuple[int, int]:
    """Return how many of two increasing sets are in both, and in one of them."""
    if len(one) > len(other):
        one, other = other, one
    if not len(one):
        return 0, len(other)
    indices = np.minimum(np.searchsorted(other, one), len(other) - 1)
    shared = int(np.count_nonzero(other[indices] == one))
    return shared, len(one) + len(other) - shared


def kept_set(
    documents: CandidateSet,
    priority: Priority,
    *,
    threshold: float,
    across: AcrossSplits,
    known: ComparedPairs | None = None,
) -> KeptSet:
    """Decide which documents are kept.

    Args:
        documents: All documents.
        priority: Which of two comes first.
        threshold: The Jaccard similarity from which on two are alike.
        across: What happens to those of different splits.
        known: Pairs that were compared before.
    """
    order = priority.order(across)
    # Equal documents first: of each group one stands for all, and only that is compared.
    leaders, copies, copy_leaders = _copies(documents, order, one_group=across == "drop")
    pairs = pairs_of(documents, leaders, order)
    query = _KeptQuery(documents, order, threshold, removes_across=across == "drop", known=known or ComparedPairs())
    if across == "block":
        query.equal_across(leaders)
    query.ask(pairs)
    removed, stands, similar = query.result()
    # a copy goes with the document that stands for it, or has the same one standing for both
    indices = np.minimum(np.searchsorted(removed, copy_leaders), max(0, len(removed) - 1))
    is_removed = removed[indices] == copy_leaders if len(removed) else np.zeros(len(copy_leaders), np.bool_)
    all_removed = np.concatenate([removed, copies])
    representatives = np.concatenate(
        [stands, np.where(is_removed, stands[indices] if len(removed) else copy_leaders, copy_leaders)]
    )
    alike = np.concatenate([similar, np.where(is_removed, similar[indices] if len(removed) else 1.0, 1.0)])
    sorting = np.argsort(all_removed, kind="stable")
    return KeptSet(
        removed=all_removed[sorting],
        representatives=representatives[sorting],
        similarities=alike[sorting],
        compared=query.compared(),
        candidates=len(pairs),
        across=query.across,
        across_similarities=query.across_similarities,
    )


def _copies(
    documents: CandidateSet, order: CandidateOrder, *, one_group: bool
) -> tuple[NDArray[np.bool_], Nodes, Nodes]:
    """Return which documents are the first of all with their digest; the others, each with that one.

    Without one group for all splits each has a first one of its own, unless another dataset has one.
    """
    leaders = documents.taken.copy()
    copies, copy_leaders = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for _, nodes in sharing(documents, 0, documents.taken):
        group = order.groups(documents, nodes, one_group=one_group)
        digests = documents.digests(nodes)[:, :2]
        sorting = np.lexsort((order.ranks(nodes), group, digests[:, 1], digests[:, 0]))
        nodes, rows = nodes[sorting], np.column_stack([digests, group])[sorting]
        starts, ends = runs_of(rows)
        leader_nodes = np.repeat(nodes[starts], ends - starts)
        is_copy = leader_nodes != nodes
        leaders[nodes[is_copy]] = False
        # those of other datasets stay, whatever they are equal to
        is_copy &= ~order.are_theirs(documents, nodes)
        copies.append(nodes[is_copy])
        copy_leaders.append(leader_nodes[is_copy])
    return leaders, np.concatenate(copies), np.concatenate(copy_leaders)


class _KeptQuery:
    """Asks documents in order of priority whether they are kept."""

    def __init__(
        self,
        documents: CandidateSet,
        order: CandidateOrder,
        threshold: float,
        *,
        removes_across: bool,
        known: ComparedPairs,
    ) -> None:
        self._documents, self._order = documents, order
        self._threshold, self._removes_across, self._known = threshold, removes_across, known
        self._removed: dict[int, tuple[int, float]] = {}
        self._compared: list[tuple[int, int, int, int]] = []
        self._across: list[tuple[int, int, float]] = []

    def equal_across(self, leaders: NDArray[np.bool_]) -> None:
        """Note the documents of different splits that are equal, of each split the one that stands for the others."""
        for _, nodes in sharing(self._documents, 0, leaders):
            digests = self._documents.digests(nodes)[:, :2]
            order = np.lexsort((nodes, digests[:, 1], digests[:, 0]))
            nodes, digests = nodes[order], digests[order]
            for start, end in zip(*(one.tolist() for one in runs_of(digests)), strict=True):
                self._across += [(one, other, 1.0) for one, other in combinations(nodes[start:end].tolist(), 2)]

    def ask(self, pairs: NDArray[np.int64]) -> None:
        """Ask all documents of some pairs."""
        if not len(pairs):
            return
        nodes = np.unique(pairs)
        ranks = self._order.ranks(nodes)
        indices = np.searchsorted(nodes, pairs)
        swapped = ranks[indices[:, 0]] > ranks[indices[:, 1]]
        indices[swapped] = indices[swapped][:, ::-1]
        # By the later document of each pair, then by the earlier: whoever is asked about, all before it are decided.
        indices = indices[np.lexsort((ranks[indices[:, 0]], ranks[indices[:, 1]]))]
        sizes = self._documents.sizes(nodes)[indices]
        digests = self._documents.digests(nodes)[:, 0]
        splits = self._order.split[self._documents.shard_of(nodes)][indices]
        of_others = self._order.are_theirs(self._documents, nodes)[indices[:, 0]]
        # The similarity of two sets is at most the quotient of their sizes: many pairs need no look at shingles. A
        # quotient, as `similarity` is: a product may be rounded up, and pairs just at the threshold would be lost.
        alike = sizes.min(axis=1) / np.maximum(sizes.max(axis=1), 1) >= self._threshold
        earlier_digests, later_digests = digests[indices[:, 0]], digests[indices[:, 1]]
        known_indices = self._known.of_pairs(earlier_digests, later_digests)
        is_removed = np.zeros(len(nodes), np.bool_)
        ask = alike.nonzero()[0]
        # a document of another dataset takes out those of every split
        is_removable = (splits[:, 0] == splits[:, 1]) | of_others
        for pair_index, before, (earlier_node, later_node) in zip(
            ask.tolist(), known_indices[ask].tolist(), indices[ask].tolist(), strict=True
        ):
            if is_removed[earlier_node] or is_removed[later_node]:
                continue
            if before >= 0:
                shared, either = (int(n) for n in self._known.pairs[before, 2:])
            else:
                sets = (self._documents.shingles(int(nodes[n])) for n in (earlier_node, later_node))
                shared, either = overlap(*sets)
            low, high = sorted((int(digests[earlier_node]), int(digests[later_node])))
            # Also what was known, so that pairs that were of no use this time are forgotten.
            self._compared.append((low, high, shared, either))
            if (value := similarity(shared, either)) < self._threshold:
                continue
            if self._removes_across or is_removable[pair_index]:
                is_removed[later_node] = True
                self._removed[int(nodes[later_node])] = (int(nodes[earlier_node]), value)
            else:
                self._across.append((int(nodes[earlier_node]), int(nodes[later_node]), value))

    def result(self) -> tuple[Nodes, Nodes, NDArray[np.float64]]:
        """The documents that go, by number, the one that stands for each, and how alike they are."""
        removals = sorted(self._removed.items())
        return (
            np.array([node for node, _ in removals], np.int64),
            np.array([stands for _, (stands, _) in removals], np.int64),
            np.array([value for _, (_, value) in removals], np.float64),
        )

    def compared(self) -> ComparedPairs:
        """The pairs that were compared."""
        return ComparedPairs.from_pairs(np.array(self._compared, np.uint64).reshape(-1, 4))

    @property
    def _of_kept(self) -> list[tuple[int, int, float]]:
        # pairs were noted on the way; where one of the two went later, there is nothing to block
        kept_pairs = {(min(a, b), max(a, b)): s for a, b, s in self._across if not {a, b} & self._removed.keys()}
        return [(*pair, value) for pair, value in sorted(kept_pairs.items())]

    @property
    def across(self) -> NDArray[np.int64]:
        """Pairs of kept documents of different splits that are alike."""
        return np.array([pair[:2] for pair in self._of_kept], np.int64).reshape(-1, 2)

    @property
    def across_similarities(self) -> NDArray[np.float64]:
        """How alike each pair of `across` is."""
        return np.array([pair[2] for pair in self._of_kept], np.float64)
