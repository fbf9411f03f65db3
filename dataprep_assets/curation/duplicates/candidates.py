"""Search for documents of many shards that share a key, without loading all keys into memory.

Each shard's table of a key is sorted by hash, so documents whose hashes are in a range are contiguous in every shard.
The tables are joined and sorted range by range. The width of a range depends on `DOCUMENTS_PER_RANGE`.

A document is identified by a number: `first row of its shard + its row`.

Entry points: `CandidateSet`, `CandidateOrder`, `group_sharing_documents`, `find_pairs`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.duplicates.signatures import SignedShard

Nodes = NDArray[np.int64]
"""Numbers of documents."""

DOCUMENTS_PER_RANGE = 1 << 22
"""Documents per range: 100 MB while they are sorted."""
MAX_ALL_PAIRS = 64
"""Maximum number of documents in a band that are all compared with each other."""
FIRST_COMPARED = 8
"""In a larger band, each document is compared with this many first documents.

It is also compared with documents that share two bands with it.
"""


class CandidateSet:
    """The documents of all shards, by number."""

    def __init__(self, shards: Sequence[SignedShard], taken: Sequence[NDArray[np.bool_]]) -> None:
        """Combine shards.

        Args:
            shards: Their signatures.
            taken: For each shard, a mask of the rows to compare: ``(rows,)``.
        """
        self.shards = shards
        self.first = np.cumsum([0, *(shard.rows for shard in shards)])
        # The empty array is needed if there are no shards, because NumPy cannot concatenate an empty list.
        self.taken = np.concatenate([*taken, np.zeros(0, np.bool_)])

    def __len__(self) -> int:
        return int(self.first[-1])

    @cached_property
    def compared_count(self) -> int:
        """Number of documents with a signature."""
        return sum(shard.documents for shard in self.shards)

    def find_shards(self, nodes: Nodes) -> Nodes:
        """Return the position of each document's shard."""
        return np.searchsorted(self.first, nodes, side="right") - 1

    def get_digests(self, nodes: Nodes) -> NDArray[np.uint64]:
        """Return the digests of documents, as in `SignedShard.digests`: ``(documents, 3)``."""
        digests = np.zeros((len(nodes), 3), np.uint64)
        for number, positions, rows in self.group_by_shard(nodes):
            digests[positions] = self.shards[number].digests[rows]
        return digests

    def locate_shingles(self, nodes: Nodes) -> tuple[Nodes, Nodes, Nodes]:
        """Return the position of each document's shard, and the begin and end of its shingles in the shard."""
        shards, begins, ends = (np.zeros(len(nodes), np.int64) for _ in range(3))
        for number, positions, rows in self.group_by_shard(nodes):
            shards[positions] = number
            begins[positions], ends[positions] = self.shards[number].locate_shingles(rows)
        return shards, begins, ends

    def group_by_shard(self, nodes: Nodes) -> Iterator[tuple[int, Nodes, Nodes]]:
        """Yield the position of each shard with some of these documents.

        Also yield their positions in `nodes`, and their rows in the shard.
        """
        shards = self.find_shards(nodes)
        order = np.argsort(shards, kind="stable")
        starts, ends = find_runs(shards[order])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            positions = order[start:end]
            number = int(shards[positions[0]])
            yield number, positions, nodes[positions] - self.first[number]


def group_sharing_documents(
    documents: CandidateSet, key: int, among: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[np.uint64], Nodes]]:
    """Yield the documents that share a key with another document: their hashes, increasing, and their numbers.

    Equal hashes are always in the same piece.

    Args:
        documents: All documents.
        key: Number of the key: 0 is the first half of the digest, 1 and above are the bands.
        among: Mask of the documents to include.
    """
    # Hashes are uniformly distributed, so ranges of equal width have about the same number of documents.
    ranges = max(1, -(-documents.compared_count // DOCUMENTS_PER_RANGE))
    bounds = [number * (1 << 64) // ranges for number in range(ranges + 1)]
    shards = [(int(node), shard) for node, shard in zip(documents.first, documents.shards, strict=False)]
    shards = [(node, shard) for node, shard in shards if shard.documents]
    for low, high in pairwise(bounds if shards else []):
        tables = [shard.read_keys(key, low, high) for _, shard in shards]
        hashes = np.concatenate([column for column, _ in tables])
        rows = np.concatenate([column for _, column in tables])
        first_entries = np.cumsum([0, *(len(column) for column, _ in tables)])[:-1]
        del tables
        entries = find_repeated_hashes(hashes)
        shard_positions = first_entries.searchsorted(entries, side="right") - 1
        nodes = rows[entries] + np.array([node for node, _ in shards], np.int64)[shard_positions]
        hashes, is_included = hashes[entries], among[nodes]
        if not is_included.all():
            hashes, nodes = hashes[is_included], nodes[is_included]
            is_repeated = mark_equal_neighbors(hashes)
            hashes, nodes = hashes[is_repeated], nodes[is_repeated]
        yield hashes, nodes


def find_repeated_hashes(hashes: NDArray[np.uint64]) -> Nodes:
    """Return the positions of hashes that occur more than once, sorted by hash and position."""
    # Replace the lowest bits of each hash by its position and sort the numbers, because this takes a third of the time
    # of sorting positions. The few hashes that differ only in these bits are separated below.
    position_bits = np.uint64(max(1, (len(hashes) - 1).bit_length()))
    numbers = hashes >> position_bits << position_bits
    numbers |= np.arange(len(hashes), dtype=np.uint64)
    numbers.sort()
    numbers = numbers[mark_equal_neighbors(numbers >> position_bits)]
    positions = (numbers & ((np.uint64(1) << position_bits) - np.uint64(1))).astype(np.int64)
    # Use a stable sort, so that positions of equal hashes stay in order.
    positions = positions[np.argsort(hashes[positions], kind="stable")]
    repeated: Nodes = positions[mark_equal_neighbors(hashes[positions])]
    return repeated


def mark_equal_neighbors(values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return a mask of the values that equal the value before or after them."""
    is_repeated = np.zeros(len(values), np.bool_)
    is_equal = values[1:] == values[:-1]
    is_repeated[1:] |= is_equal
    is_repeated[:-1] |= is_equal
    return is_repeated


def find_runs(values: NDArray[np.generic]) -> tuple[Nodes, Nodes]:
    """Return the begins and ends of runs of equal values, or of equal rows."""
    if not len(values):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    changes = values[1:] != values[:-1]
    if changes.ndim > 1:
        changes = changes.any(axis=1)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    return starts, np.append(starts[1:], len(values))


@dataclass(frozen=True, kw_only=True)
class CandidateOrder:
    """The rules for which pairs are compared, and which document of a pair comes first.

    Attributes:
        split: Split number of each shard.
        theirs: For each shard, whether it belongs to a different dataset. Its documents are compared with documents of
            all splits of this dataset, and not with each other.
        across: Whether documents of different splits are compared.
        rank: Returns the sort positions of documents. The document to keep has the lowest position.
    """

    split: NDArray[np.int64]
    theirs: NDArray[np.bool_]
    across: bool
    rank: Callable[[Nodes], Nodes]

    def find_from_others(self, documents: "CandidateSet", nodes: Nodes) -> NDArray[np.bool_]:
        """Return a mask of the documents of different datasets, in the shape of `nodes`."""
        if not self.theirs.any():
            return np.zeros(nodes.shape, np.bool_)
        is_theirs: NDArray[np.bool_] = self.theirs[documents.find_shards(nodes)]
        return is_theirs

    def assign_groups(self, documents: "CandidateSet", nodes: Nodes, *, one_group: bool) -> NDArray[np.uint64]:
        """Return the group of each document: documents with the same digest represent each other only within a group.

        Args:
            documents: All documents.
            nodes: Some of the documents, including every document that has the digest of one of them.
            one_group: Whether all splits are one group. Otherwise, they are one group only for digests that a different
                dataset also has.
        """
        if one_group:
            return np.zeros(len(nodes), np.uint64)
        groups = self.split[documents.find_shards(nodes)].astype(np.uint64)
        is_from_others = self.find_from_others(documents, nodes)
        if is_from_others.any():
            digests = documents.get_digests(nodes)[:, :2]
            order = np.lexsort((digests[:, 1], digests[:, 0]))
            starts, ends = find_runs(digests[order])
            with_theirs = np.repeat(np.logical_or.reduceat(is_from_others[order], starts), ends - starts)
            # Put all documents that share a digest with a document of a different dataset in one group, because that
            # document represents its duplicates in every split.
            groups[order[with_theirs]] = len(self.split)
        return groups

    def find_compared(self, documents: "CandidateSet", pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the candidate pairs to compare: ``(pairs,)``."""
        is_from_others = self.find_from_others(documents, pairs)
        if self.across:
            return np.logical_not(is_from_others[:, 0] & is_from_others[:, 1])
        split = self.split[documents.find_shards(pairs)]
        is_compared: NDArray[np.bool_] = (is_from_others[:, 0] != is_from_others[:, 1]) | (
            (split[:, 0] == split[:, 1]) & ~is_from_others.all(axis=1)
        )
        return is_compared

    def select_first(self, documents: "CandidateSet", members: Nodes) -> Nodes:
        """Return the `FIRST_COMPARED` documents of each split among `members`."""
        ordered = members[np.argsort(self.rank(members), kind="stable")]
        splits = self.split[documents.find_shards(ordered)]
        return np.concatenate(
            [ordered[splits == split_number][:FIRST_COMPARED] for split_number in np.unique(splits).tolist()]
        )


def find_pairs(documents: CandidateSet, among: NDArray[np.bool_], order: CandidateOrder) -> NDArray[np.int64]:
    """Return the candidate pairs, that is, pairs of documents that share a band.

    The shape is ``(pairs, 2)``. Each pair occurs once, with the smaller number first.

    For a band that more than `MAX_ALL_PAIRS` documents share, not all pairs are built. Each of these documents is
    paired with the `FIRST_COMPARED` ones. Documents that also share the next band are paired in the same way. The pairs
    therefore depend only on the documents and their ranks, and their number grows linearly with the number of
    documents.

    Args:
        documents: All documents.
        among: Mask of the documents to include.
        order: Rules for which pairs are compared, and which document comes first.
    """
    bands = max((one.bands for one in documents.shards), default=0)
    # If splits are not compared with each other, divide the runs by split first. Otherwise, a run could exceed
    # `MAX_ALL_PAIRS` only because of documents of a different split.
    is_disjoint = not order.across and not order.theirs.any() and len(np.unique(order.split)) > 1
    pairs = np.empty((0, 2), np.int64)
    # For each band with large runs: the documents of these runs, and the number of each document's run.
    waiting: list[tuple[Nodes, Nodes]] = []
    for band in range(1, bands + 1):
        band_pairs = [pairs]
        large: list[Nodes] = []
        for hashes, nodes in group_sharing_documents(documents, band, among):
            runs = find_runs(hashes)
            if is_disjoint:
                groups = order.split[documents.find_shards(nodes)]
                sorting = np.lexsort((nodes, groups, hashes))
                nodes = nodes[sorting]
                runs = find_runs(np.column_stack([hashes[sorting], groups[sorting].astype(np.uint64)]))
            band_pairs += _pair_within_runs(nodes, *runs, large)
        band_pairs += [_pair_with_first(members, order.select_first(documents, members)) for members in large]
        if large:
            waiting.append((np.concatenate(large), np.repeat(np.arange(len(large)), [len(one) for one in large])))
        # Remove repetitions after each band, because most pairs share many bands.
        pairs = _deduplicate_pairs(np.concatenate(band_pairs))
    pairs = _deduplicate_pairs(np.concatenate([pairs, *_pair_by_two_bands(documents, waiting, order)]))
    # Without other datasets, `pairs` needs no filter: splits are compared with each other, or runs were divided by
    # split, or there is only one split.
    return pairs[order.find_compared(documents, pairs)] if order.theirs.any() else pairs


def _pair_within_runs(nodes: Nodes, starts: Nodes, ends: Nodes, large: list[Nodes]) -> Iterator[NDArray[np.int64]]:
    """Yield the pairs within each run; append runs of more than `MAX_ALL_PAIRS` documents to `large`."""
    sizes = ends - starts
    two = starts[sizes == 2]
    yield np.column_stack([nodes[two], nodes[two + 1]])
    # Process all runs of one size together, so that the Python loop is over sizes instead of runs.
    for size in np.unique(sizes[(sizes > 2) & (sizes <= MAX_ALL_PAIRS)]).tolist():
        begin = starts[sizes == size]
        firsts, seconds = np.triu_indices(size, 1)
        yield np.column_stack([nodes[begin[:, None] + firsts].ravel(), nodes[begin[:, None] + seconds].ravel()])
    for start, end in zip(starts[sizes > MAX_ALL_PAIRS].tolist(), ends[sizes > MAX_ALL_PAIRS].tolist(), strict=True):
        large.append(nodes[start:end])


def _pair_with_first(members: Nodes, first_members: Nodes) -> NDArray[np.int64]:
    pairs = np.column_stack([np.repeat(members, len(first_members)), np.tile(first_members, len(members))])
    different: NDArray[np.int64] = pairs[pairs[:, 0] != pairs[:, 1]]
    return different


def _pair_by_two_bands(
    documents: CandidateSet, waiting: Sequence[tuple[Nodes, Nodes]], order: CandidateOrder
) -> Iterator[NDArray[np.int64]]:
    """Yield pairs of documents that share two full bands; each band is combined with the next one."""
    for (nodes, runs), (next_nodes, next_runs) in zip(waiting, [*waiting[1:], *waiting[:1]], strict=False):
        by_number = np.argsort(next_nodes, kind="stable")
        next_nodes, next_runs = next_nodes[by_number], next_runs[by_number]
        indices = np.minimum(np.searchsorted(next_nodes, nodes), len(next_nodes) - 1)
        is_shared = next_nodes[indices] == nodes
        # Combine each document's run in this band with its run in the next band. Documents with the same pair of runs
        # share both bands.
        run_pairs = np.column_stack([runs[is_shared], next_runs[indices[is_shared]]])
        members = nodes[is_shared]
        sorting = np.lexsort((members, run_pairs[:, 1], run_pairs[:, 0]))
        large: list[Nodes] = []
        yield from _pair_within_runs(members[sorting], *find_runs(run_pairs[sorting]), large)
        for run_members in large:
            yield _pair_with_first(run_members, order.select_first(documents, run_members))


def _deduplicate_pairs(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    low, high = np.minimum(pairs[:, 0], pairs[:, 1]), np.maximum(pairs[:, 0], pairs[:, 1])
    # If all document numbers are below 2**32, sort each pair as a single number, because this is faster than sorting
    # rows.
    if int(high.max(initial=-1)) >= 1 << 32:
        rows: NDArray[np.int64] = np.unique(np.column_stack([low, high]), axis=0)
        return rows
    numbers = low.astype(np.uint64) << np.uint64(32) | high.astype(np.uint64)
    numbers.sort()
    is_first = np.ones(len(numbers), np.bool_)
    is_first[1:] = numbers[1:] != numbers[:-1]
    numbers = numbers[is_first]
    return np.column_stack([numbers >> np.uint64(32), numbers & np.uint64(0xFFFFFFFF)]).astype(np.int64)
