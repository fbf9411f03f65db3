"""The proof that `origins.bin` leads from rows to notes: part of `round_trip` of a packed cohort.

Entry point: `misplaced`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from dataprep_assets.pipelines.notes.note_search import Chunk
from dataprep_assets.pipelines.notes.opened_cohort import OpenedCohort, SampledNote
from dataprep_assets.pipelines.notes.packed_files import packed_paths, read_patients
from dataprep_assets.pipelines.notes.packed_rows import PackedRowsFile
from dataprep_assets.pipelines.notes.row_origins import Origins, read_origins


def misplaced(packed: OpenedCohort, split: str, notes: Sequence[SampledNote], chunks: Sequence[Chunk]) -> Iterator[str]:
    """The defects of the origins of a split's rows, one sentence each.

    Args:
        packed: The cohort.
        split: One of its splits.
        notes: Sampled notes of it.
        chunks: Their chunks, as the reference encodes them.
    """
    paths = packed_paths(packed.notes, packed.month)[split]
    origins, file = read_origins(packed.directory / paths.origins), PackedRowsFile(packed.directory / paths.rows)
    if len(origins) != packed.scans[split].segments:
        yield f"{paths.origins} has {len(origins)} segments, the rows {packed.scans[split].segments}"
        return
    first = row = 0
    for block in file.blocks(file.shape.batch_rows):
        here = origins[first : first + block.segments.size]
        begins = np.cumsum(block.segments) - block.segments
        rows = np.repeat(np.arange(len(block)), np.diff(block.offsets))
        # These three follow from the rows. Which note a segment is of follows from the source alone (below).
        of_rows = {"tokens": block.segments, "row": row + rows, "start": begins - block.ends[rows]}
        for name, values in of_rows.items():
            if not np.array_equal(here[name], values):
                yield f"{paths.origins}: its `{name}` of segments is not that of the rows from segment {first} on"
                return
        first, row = first + block.segments.size, row + len(block)
    yield from _mixed_up(origins, len(read_patients(packed.directory / paths.patients)), paths.origins)
    held, made = _pieces(file, origins, notes), defaultdict[int, list[bytes]](list)
    for chunk in chunks:
        made[chunk.note].append(chunk.ids)
    for at, note in enumerate(notes):
        found, wanted = held[note.record, note.number], made[at]
        # the pieces of a stream follow each other; chunks are packed in any order
        same = b"".join(found) == b"".join(wanted) if packed.notes.concatenated else sorted(found) == sorted(wanted)
        if not same:
            yield f"record {note.record}, note {note.number}: not where {paths.origins} says"


def _mixed_up(origins: Origins, patients: int, name: str) -> Iterator[str]:
    """What no origins can be: chunks of a note that are not numbered from 0, a record of two patients, or of none."""
    # both are uint32: one number for a note, by which segments are sorted and compared
    note = origins["record"].astype(np.uint64) << np.uint64(32) | origins["note"]
    order = np.lexsort((origins["chunk"], note))
    ordered = note[order]
    if not np.array_equal(origins["chunk"][order], np.arange(len(order)) - np.searchsorted(ordered, ordered)):
        yield f"{name}: the chunks of a note are not numbered from 0"
    pairs = np.unique(np.stack([origins["record"], origins["patient"]]), axis=1)
    whose = np.unique(pairs[1])
    if len(np.unique(pairs[0])) != pairs.shape[1] or not np.array_equal(whose, np.arange(patients)):
        yield f"{name}: a record is of two patients, or a patient of none"


def _pieces(
    file: PackedRowsFile, origins: Origins, notes: Sequence[SampledNote]
) -> defaultdict[tuple[int, int], list[bytes]]:
    """Record and note → the tokens of its segments, int32, in the order of the rows."""
    pieces: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    wanted = np.array([note.record << 32 | note.number for note in notes], np.uint64)
    of_segments = origins["record"].astype(np.uint64) << np.uint64(32) | origins["note"]
    for row, start, tokens, record, note, *_ in origins[np.isin(of_segments, wanted)].tolist():
        held = file.block(row, row + 1).tokens
        pieces[record, note].append(held[start : start + tokens].astype("<i4", copy=False).tobytes())
    return pieces
