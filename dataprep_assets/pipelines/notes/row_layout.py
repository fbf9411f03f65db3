"""Lays a cohort's notes out in rows: the ranges of its spool that each row holds, before a token is moved.

Entry points: `lay_out`, `RowLayout`.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.packing.algorithms import pack
from dataprep_assets.packing.bins import Bins
from dataprep_assets.packing.next_fit import concat_then_split
from dataprep_assets.packing.splitting import SplitRule, split, without_room
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.packed_rows import PackedRowBlock
from dataprep_assets.pipelines.notes.reading import Dropped
from dataprep_assets.pipelines.notes.spool import DropCounter, Spool

Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class RowLayout:
    """Rows as ranges of the spool, in row order: each segment is its first range and then its second.

    ``documents``: int64, the notes that are in the rows; ``retracted``: those that would be, were they or their
    patients not retracted. ``notes``: the note that each segment is of. ``offsets``: the first segment of each row,
    from 0.
    """

    documents: Int64
    retracted: Int64
    notes: Int64
    first_starts: Int64
    first_lengths: Int64
    second_starts: Int64
    second_lengths: Int64
    offsets: Int64
    truncated: int = 0
    truncated_documents: int = 0

    def blocks(self, spool: Spool, rows: int) -> Iterator[PackedRowBlock]:
        """The rows, up to ``rows`` at a time."""
        for start in range(0, self.offsets.size - 1, rows):
            offsets = self.offsets[start : start + rows + 1]
            chosen = slice(offsets[0], offsets[-1])
            # First and second ranges take turns, as in the rows; those without tokens are not read.
            lengths = np.stack([self.first_lengths[chosen], self.second_lengths[chosen]], axis=1).ravel()
            starts = np.stack([self.first_starts[chosen], self.second_starts[chosen]], axis=1).ravel()
            some = lengths > 0
            yield PackedRowBlock(
                tokens=spool.tokens(starts[some], lengths[some]).astype(np.int32),
                segments=self.first_lengths[chosen] + self.second_lengths[chosen],
                offsets=offsets - offsets[0],
            )


def lay_out(
    notes: NotesDeclaration, spool: Spool, index: int, drops: DropCounter, retracted: Set[bytes] = frozenset()
) -> RowLayout:
    """Lay out the rows of one split.

    A note that is retracted, or its patient, is left out and counted if it would have been in a row. One that would not
    have been is dropped for its own reason. So the patients in the rows and those left out show where a retraction list
    applies.

    Args:
        notes: The declaration.
        spool: The notes of a cohort, of all splits.
        index: The split's place in the declared order.
        drops: Counts dropped notes, those whose header leaves no room in a row.
        retracted: The retraction list.
    """
    chosen = np.flatnonzero(spool.splits == index)
    dates = spool.dates[chosen] if notes.order == "date" else np.zeros_like(chosen)
    # lexsort's last key comes first: by patient, in the order of the source, then by date, then by place
    documents = chosen[np.lexsort((chosen, dates, spool.patients[chosen]))]
    # a stream is cut wherever a row ends, so no header is too long for it
    if not notes.concatenated:
        documents = _with_room(notes, spool, documents, drops)
    # looked up once for each patient, and then spread over the notes
    listed = np.array([digest in retracted for digest in spool.digests], bool)[spool.patients[documents]]
    listed |= np.isin(documents, list(spool.listed))
    drops.retract(int(np.count_nonzero(listed)))
    layout = _concatenated if notes.concatenated else _packed
    return layout(notes, spool, documents[~listed], documents[listed])


def _rule(notes: NotesDeclaration) -> SplitRule:
    return SplitRule(rule=notes.long_notes.rule, row_length=notes.capacity, overlap=notes.long_notes.overlap)


def _with_room(notes: NotesDeclaration, spool: Spool, documents: Int64, drops: DropCounter) -> Int64:
    refused = without_room(spool.headers[documents], spool.bodies[documents], _rule(notes))
    for at in documents[refused].tolist():
        # -1: the spool keeps no byte offsets, and messages leave it out
        position = (int(spool.records[at]), int(spool.numbers[at]), -1)
        drops.drop(Dropped(*position, "header_too_long"))
    return np.delete(documents, refused)


def _concatenated(notes: NotesDeclaration, spool: Spool, documents: Int64, retracted: Int64) -> RowLayout:
    lengths = (spool.headers + spool.bodies)[documents]
    segments = concat_then_split(lengths, notes.capacity)
    nothing = np.zeros_like(segments.starts)
    return RowLayout(
        documents=documents,
        retracted=retracted,
        notes=documents[segments.items],
        first_starts=spool.starts[documents][segments.items] + segments.starts,
        first_lengths=segments.stops - segments.starts,
        second_starts=nothing,
        second_lengths=nothing,
        offsets=segments.offsets,
    )


def _packed(notes: NotesDeclaration, spool: Spool, documents: Int64, retracted: Int64) -> RowLayout:
    headers, bodies = spool.headers[documents], spool.bodies[documents]
    chunks = split(headers, bodies, _rule(notes))
    bins = _bins(notes, chunks.lengths)
    of = chunks.documents[bins.items]
    starts = spool.starts[documents][of]
    return RowLayout(
        documents=documents,
        retracted=retracted,
        notes=documents[of],
        first_starts=starts,
        # a chunk without the header has an empty first range
        first_lengths=headers[of] * chunks.with_header[bins.items],
        second_starts=starts + headers[of] + chunks.starts[bins.items],
        second_lengths=(chunks.stops - chunks.starts)[bins.items],
        offsets=bins.offsets,
        truncated=int(chunks.dropped.sum()),
        truncated_documents=int(np.count_nonzero(chunks.dropped)),
    )


def _bins(notes: NotesDeclaration, lengths: Int64) -> Bins:
    """Which chunks share a row; each is alone if a row is a note."""
    if notes.layout == "unpacked":
        return Bins(items=np.arange(lengths.size), offsets=np.arange(lengths.size + 1))
    algorithm: Any = notes.packing.algorithm
    return pack(lengths, notes.capacity, algorithm, seed=notes.packing.seed)
