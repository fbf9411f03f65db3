"""Layout of a cohort's notes in rows: the ranges of the spool for each row, computed before any token is moved.

The columns of a month's `origins.npy` (`formats/row_origins`), which is stored next to the notes, are:

===========  ======================================================================================================
``RECORD``   the record of the cohort's file, from 1, as in messages
``NOTE``     the note within the record, from 1
``CHUNK``    the piece of the note, from 0, in the order of its text
``PATIENT``  the index of the patient's digest in `patients.bin`, from 0
===========  ======================================================================================================

Entry points: `lay_out_rows`, `NoteLayout`.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataprep_assets.packing.algorithms import pack_items
from dataprep_assets.packing.bins import Bins, Int64
from dataprep_assets.packing.next_fit import concat_then_split
from dataprep_assets.packing.row_layout import RowLayout
from dataprep_assets.packing.splitting import SplitRule, find_without_room, split_documents
from dataprep_assets.pipelines.notes.cohorts.spool import DropCounter, Spool
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.reading import DroppedNote

ORIGIN_COLUMNS = 4
RECORD, NOTE, CHUNK, PATIENT = range(ORIGIN_COLUMNS)


@dataclass(frozen=True, kw_only=True, eq=False)
class NoteLayout(RowLayout):
    """Layout of notes in rows; the first range of a chunk is its header, which is empty if it is not repeated.

    ``documents``: int64, the notes in the rows; ``retracted``: the notes that would be in the rows if neither they nor
    their patients were retracted.
    """

    documents: Int64
    retracted: Int64
    truncated: int = 0
    truncated_documents: int = 0

    def build_origins(self, spool: Spool) -> list[Int64]:
        """Return the columns of `origins.npy`, with one value per segment."""
        patients = spool.patients[self.items]
        present_patients = np.unique(patients)
        # Map each patient's index in the spool to the patient's index in the split's `patients.bin`, which is sorted by
        # digest.
        rank = np.zeros(len(spool.digests), np.int64)
        rank[sorted(present_patients.tolist(), key=spool.digests.__getitem__)] = np.arange(present_patients.size)
        return [spool.records[self.items], spool.numbers[self.items], self._number_chunks(), rank[patients]]

    def _number_chunks(self) -> Int64:
        """Return the number of each segment within its note, in the order of the text."""
        # Sort a note's chunks by the start of their last range, because the first ranges may all be the same repeated
        # header.
        order = np.lexsort((self.starts[:, -1], self.items))
        notes = self.items[order]
        chunk_numbers = np.empty_like(order)
        # The number of a chunk in its note is the chunk's sorted position minus the sorted position of the note's first
        # chunk.
        chunk_numbers[order] = np.arange(order.size) - np.searchsorted(notes, notes)
        return chunk_numbers


def lay_out_rows(
    notes: NotesDeclaration, spool: Spool, index: int, drops: DropCounter, retracted_digests: Set[bytes] = frozenset()
) -> NoteLayout:
    """Lay out the rows of one split.

    A retracted note, or a note of a retracted patient, is left out and counted as retracted only if it would have been
    in a row. Otherwise it is dropped for its own reason. Therefore the patients in the rows and the patients left out
    show to whom a retraction list applies.

    Args:
        notes: The declaration.
        spool: The notes of all splits of a cohort.
        index: The split's index in the declared order.
        drops: Counts the notes that are dropped because their header leaves no room in a row.
        retracted_digests: The retraction list.
    """
    split_notes = np.flatnonzero(spool.splits == index)
    dates = spool.dates[split_notes] if notes.order == "date" else np.zeros_like(split_notes)
    # `lexsort` sorts by its last key first: by patient in source order, then by date, then by position.
    documents = split_notes[np.lexsort((split_notes, dates, spool.patients[split_notes]))]
    # Header lengths matter only for chunks, because a stream is cut at the end of each row.
    if not notes.is_concatenated:
        documents = _drop_notes_without_room(notes, spool, documents, drops)
    # Look up each patient once, instead of once per note, and expand the result to the notes.
    is_listed = np.array([digest in retracted_digests for digest in spool.digests], bool)[spool.patients[documents]]
    is_listed |= np.isin(documents, list(spool.listed))
    drops.retract(int(np.count_nonzero(is_listed)))
    layout = _lay_out_stream if notes.is_concatenated else _pack_rows
    return layout(notes, spool, documents[~is_listed], documents[is_listed])


def _build_split_rule(notes: NotesDeclaration) -> SplitRule:
    return SplitRule(rule=notes.long_notes.rule, row_length=notes.capacity, overlap=notes.long_notes.overlap)


def _drop_notes_without_room(notes: NotesDeclaration, spool: Spool, documents: Int64, drops: DropCounter) -> Int64:
    indexes = find_without_room(spool.headers[documents], spool.bodies[documents], _build_split_rule(notes))
    for note in documents[indexes].tolist():
        # Use the byte offset -1, because the spool has no byte offsets. The error that lists rejected notes omits this
        # offset.
        position = (int(spool.records[note]), int(spool.numbers[note]), -1)
        drops.drop(DroppedNote(*position, "header_too_long"))
    return np.delete(documents, indexes)


def _lay_out_stream(notes: NotesDeclaration, spool: Spool, documents: Int64, retracted_notes: Int64) -> NoteLayout:
    lengths = (spool.headers + spool.bodies)[documents]
    segments = concat_then_split(lengths, notes.capacity)
    return NoteLayout(
        documents=documents,
        retracted=retracted_notes,
        items=documents[segments.items],
        starts=(spool.starts[documents][segments.items] + segments.starts)[:, None],
        lengths=(segments.stops - segments.starts)[:, None],
        offsets=segments.offsets,
    )


def _pack_rows(notes: NotesDeclaration, spool: Spool, documents: Int64, retracted_notes: Int64) -> NoteLayout:
    headers, bodies = spool.headers[documents], spool.bodies[documents]
    chunks = split_documents(headers, bodies, _build_split_rule(notes))
    bins = _assign_bins(notes, chunks.lengths)
    document_of_item = chunks.documents[bins.items]
    starts, header = spool.starts[documents][document_of_item], headers[document_of_item]
    body = (chunks.stops - chunks.starts)[bins.items]
    return NoteLayout(
        documents=documents,
        retracted=retracted_notes,
        items=documents[document_of_item],
        starts=np.stack([starts, starts + header + chunks.starts[bins.items]], axis=1),
        lengths=np.stack([header * chunks.with_header[bins.items], body], axis=1),
        offsets=bins.offsets,
        truncated=int(chunks.dropped.sum()),
        truncated_documents=int(np.count_nonzero(chunks.dropped)),
    )


def _assign_bins(notes: NotesDeclaration, lengths: Int64) -> Bins:
    """Assign chunks to rows; unpacked rows have one chunk each."""
    if notes.layout == "unpacked":
        return Bins(items=np.arange(lengths.size), offsets=np.arange(lengths.size + 1))
    algorithm: Any = notes.packing.algorithm
    return pack_items(lengths, notes.capacity, algorithm, seed=notes.packing.seed)
