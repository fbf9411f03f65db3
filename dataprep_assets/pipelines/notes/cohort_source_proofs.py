"""Proofs that compare one packed cohort with its present source.

The source is read, rendered and encoded again, by the reference engine. Messages name records, notes, chunks and
counts: no text, no identifier, no name of a source file.

Entry points: `notes_recounted`, `round_trip`.
"""

from dataprep_assets.graph.finding import Finding, judged, ledger_of, name_of, verdict
from dataprep_assets.integrity.ledger import RETRACTED
from dataprep_assets.pipelines.notes.note_search import NoteSearch
from dataprep_assets.pipelines.notes.opened_cohort import REBUILD, OpenedCohort
from dataprep_assets.pipelines.notes.origin_proofs import misplaced
from dataprep_assets.pipelines.notes.packed_files import packed_paths, read_patients


@judged
def notes_recounted(packed: OpenedCohort) -> Finding:
    """The present source is the same file, with the notes, drops, headers and patients of the receipt."""
    receipt, ledger, source = packed.receipt, ledger_of(packed.receipt), packed.source
    where = name_of(receipt)
    late, retracted = ledger.dropped.get("header_too_long", 0), ledger.dropped.get(RETRACTED, 0)
    kept = source.notes - source.retracted
    expected = {
        "digest": (source.digest, receipt.inputs["cohort"]),
        "notes that are kept": (kept, ledger.documents + late - (source.retracted - retracted)),
        "notes": (source.notes + sum(source.dropped.values()), ledger.rows_in),
        "patients": (source.patients, packed.facts.patients + len(packed.left_out)),
        "patients without notes": (source.patients_without_notes, packed.facts.patients_without_notes),
    }
    defects = [f"{where}: the source has {what} {a}, the receipt {b}" for what, (a, b) in expected.items() if a != b]
    dropped = {r: n for r, n in ledger.dropped.items() if r not in ("header_too_long", RETRACTED)}
    if source.dropped != dropped:
        defects.append(f"{where}: the source has drops {dict(source.dropped)}, the receipt {dropped}")
    stored = _digests(packed)
    strangers = len(stored - source.digests)
    if strangers or (not late and len(stored) != len(source.digests)):
        defects.append(
            f"{where}: {len(stored)} patients are in the rows, {len(source.digests)} of the source have notes, "
            f"{strangers} of the former are not among the latter"
        )
    missing = source.dropped.get("missing_metadata", 0)
    return verdict(
        defects,
        f"{source.notes} notes of {source.patients} patients, {source.headers} with a header, {missing} dropped "
        "because a field of theirs is missing" + (f", {retracted} because they are retracted." if retracted else "."),
        f"The source or the key changed since the cohort was packed. {REBUILD}",
        facts={
            "notes": source.notes,
            "with_header": source.headers,
            "without_header": source.notes - source.headers,
            "missing_metadata": missing,
            "patients": source.patients,
        },
    )


def _digests(packed: OpenedCohort) -> set[bytes]:
    """The keyed digests of all patients in the rows."""
    paths = packed_paths(packed.notes, packed.month).values()
    return {digest.tobytes() for path in paths for digest in read_patients(packed.directory / path.patients)}


@judged
def round_trip(packed: OpenedCohort) -> Finding:
    """Sampled notes, read again from the source, rendered and encoded by the reference, are in their split's rows,
    and where `origins.bin` says.

    The sample is seeded by the receipt's key, so a failure repeats. Messages name record, note and chunk.
    """
    receipt, sampled = packed.receipt, packed.source.sampled
    defects, compared = [], 0
    for index, name in enumerate(packed.notes.splits):
        notes = [note for note in sampled if note.split == index]
        search = NoteSearch(packed, name)
        chunks = search.chunks(notes)
        compared += len(notes)
        for chunk, there in zip(chunks, search.there(chunks), strict=True):
            if not there:
                lost = notes[chunk.note]
                defects.append(
                    f"record {lost.record}, note {lost.number}: its chunk {chunk.chunk + 1} is not in the rows of "
                    f"{name}"
                )
        defects += misplaced(packed, name, notes, chunks)
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in defects),
        f"{compared} notes, rendered and encoded again by the reference, are in the rows.",
        f"Source, template or tokenizer changed since it was packed. {REBUILD}",
        facts={"notes_compared": compared, "notes": packed.source.notes},
    )
