"""The proof that nothing that is retracted, a patient or a note, is left in a packed cohort.

It compares the digests of the patients in the rows with the retraction list, counts the retracted notes in the present
source, and searches the rows for the tokens of a sample of these. Downstream artifacts are proven to have
exactly these rows: shards by `equals_packed_rows`, directories by `equals_cohort_shards`.

Messages name records, notes and counts: no digest, no text.
"""

from collections.abc import Iterator, Sequence

from dataprep_assets.graph.finding import Finding, judged, ledger_of, name_of, verdict
from dataprep_assets.integrity.ledger import RETRACTED
from dataprep_assets.pipelines.notes.note_search import Chunk, NoteSearch
from dataprep_assets.pipelines.notes.opened_cohort import REBUILD, OpenedCohort, SampledNote
from dataprep_assets.pipelines.notes.packed_files import (
    RETRACTED_NOTES,
    RETRACTED_PATIENTS,
    packed_paths,
    read_patients,
)

SHORTEST = 8
"""Fewest tokens of a note that is searched: shorter ones occur by chance."""
_ENDS = 32
"""Characters by which a kept note is taken to be worth encoding, as it may hold the tokens of a retracted one."""


@judged
def no_retracted_document(packed: OpenedCohort) -> Finding:
    """No patient and no note on the retraction list is in the rows, and those left out are those of the list."""
    dropped = ledger_of(packed.receipt).dropped.get(RETRACTED, 0)
    defects = list(_by_digest(packed, dropped))
    looked = 0
    if packed.retracted:
        looked = len(packed.source.sampled_retracted)
        defects += _by_source(packed, dropped)
        for index, split in enumerate(packed.notes.splits):
            defects += _by_tokens(packed, index, split)
    return verdict(
        (f"{name_of(packed.receipt)}: {defect}" for defect in defects),
        f"None of the {len(packed.retracted)} patients and notes on the list is in the rows; {looked} of their "
        f"{dropped} notes were looked for by their tokens."
        if packed.retracted
        else "No patient or note of this dataset is retracted.",
        REBUILD,
        facts={"retracted": dropped, "retracted_patients": len(packed.left_out), "looked_for": looked},
    )


def _by_digest(packed: OpenedCohort, dropped: int) -> Iterator[str]:
    for path in packed_paths(packed.notes, packed.month).values():
        here = {digest.tobytes() for digest in read_patients(packed.directory / path.patients)}
        if left := len(here & packed.retracted):
            yield f"{path.patients}: {left} retracted patients are in the rows"
    # a patient whose entry was taken off the list is to come back
    if strays := len(packed.left_out - packed.retracted):
        yield f"{RETRACTED_PATIENTS}: notes of {strays} patients were left out who are on the list no more"
    if strays := len(packed.notes_left_out - packed.retracted):
        yield f"{RETRACTED_NOTES}: {strays} notes were left out that are on the list no more"
    if bool(packed.left_out or packed.notes_left_out) != bool(dropped):
        yield (
            f"{RETRACTED_PATIENTS} has {len(packed.left_out)} patients, {RETRACTED_NOTES} {len(packed.notes_left_out)} "
            f"notes, the ledger {dropped} notes that were left out"
        )


def _by_source(packed: OpenedCohort, dropped: int) -> Iterator[str]:
    """Compare the counts with the source. Notes that do not fit in a row are dropped for that reason in any case."""
    source, late = packed.source, ledger_of(packed.receipt).dropped.get("header_too_long", 0)
    if not dropped <= source.retracted <= dropped + late:
        yield f"the source has {source.retracted} retracted notes, {dropped} were left out"
    alone = source.retracted_notes - packed.notes_left_out
    if packed.notes_left_out - source.retracted_notes or (alone and not late):
        yield (
            f"the source has {len(source.retracted_notes)} notes that are retracted by themselves, "
            f"{len(packed.notes_left_out)} were left out"
        )
    missing = source.retracted_digests - packed.left_out
    if packed.left_out - source.retracted_digests or (missing and not late):
        yield (
            f"the source has notes of {len(source.retracted_digests)} retracted patients, those of "
            f"{len(packed.left_out)} were left out"
        )


def _by_tokens(packed: OpenedCohort, index: int, split: str) -> Iterator[str]:
    """The retracted notes of the sample that are in the rows of a split, unless an equal kept note explains them."""
    notes = [note for note in packed.source.sampled_retracted if note.split == index]
    search = NoteSearch(packed, split)
    chunks = search.chunks(notes)
    present = search.there(chunks)
    of_note = {at: [i for i, chunk in enumerate(chunks) if chunk.note == at] for at in range(len(notes))}
    left = {
        at: [chunks[i] for i in own]
        for at, own in of_note.items()
        # every chunk of it, as one alone may be another note's; ids are bytes, four a token
        if own and all(present[i] for i in own) and sum(len(chunks[i].ids) for i in own) >= 4 * SHORTEST
    }
    for at in _unexplained(packed, index, search, notes, left) if left else ():
        yield (f"the tokens of record {notes[at].record}, note {notes[at].number}, which is retracted, are in {split}")


def _unexplained(
    packed: OpenedCohort,
    index: int,
    search: NoteSearch,
    notes: Sequence[SampledNote],
    left: dict[int, list[Chunk]],
) -> list[int]:
    """The notes with a chunk that is in no kept note: several patients may have the same note."""
    for kept in packed.kept_notes():
        if kept.split != index:
            continue
        whole, own = kept.header + kept.text, None
        # Encoded once, and only if it may be an explanation: encoding every kept note would be as much as to pack them.
        for at in [at for at in left if _alike(notes[at].text, whole)]:
            own = search.chunks([kept]) if own is None else own
            left[at] = [chunk for chunk in left[at] if not search.holds(own, chunk)]
    return [at for at, chunks in left.items() if chunks]


def _alike(text: str, other: str) -> bool:
    return text[:_ENDS] in other or text[-_ENDS:] in other
