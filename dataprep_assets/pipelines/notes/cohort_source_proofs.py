"""Proofs that compare one packed cohort with its present source.

The source is read, rendered and encoded again, by the reference engine. Messages name records, notes, chunks and
counts: no text, no identifier, no name of a source file.

Entry points: `notes_recounted`, `round_trip`.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from dataprep_assets.bounds import alive
from dataprep_assets.graph.finding import Finding, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.made_again import by_content, made_again, other_bytes
from dataprep_assets.graph.proof_level import BY_REFERENCE, EVERY_DOCUMENT, drawn
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.ledger import RETRACTED
from dataprep_assets.pipelines.notes.note_search import NoteSearch
from dataprep_assets.pipelines.notes.opened_cohort import REBUILD, OpenedCohort
from dataprep_assets.pipelines.notes.origin_proofs import misplaced
from dataprep_assets.pipelines.notes.packed_cohort import ensure_packed_cohort
from dataprep_assets.pipelines.notes.packed_files import packed_paths, read_patients
from dataprep_assets.pipelines.notes.packed_rows import PackedRowsFile, RowBlock


@judged
def notes_recounted(packed: OpenedCohort) -> Finding:
    """The present source is the same file, with the notes, drops, headers and patients of the receipt."""
    receipt, ledger, source = packed.receipt, ledger_of(packed.receipt), packed.source
    where = name_of(receipt)
    late, retracted = ledger.dropped.get("header_too_long", 0), ledger.dropped.get(RETRACTED, 0)
    kept = source.notes - source.retracted
    expected = {
        "digest": (source.digest, receipt.inputs["cohort"]),
        # a retracted note without room is retracted in the source's count, and `header_too_long` in the ledger's
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
    # a patient of whom no note has room is in the source and in no row
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
    """Sampled notes, read again from the source, rendered and encoded again, are in their split's rows, where
    `origins.bin` says; a few of them are encoded by the reference, and searched in all rows.

    With every document, the cohort is packed again and has these files. The sample is seeded by the receipt's key, so
    a failure repeats. Messages name record, note and chunk.
    """
    receipt, sampled, level = packed.receipt, packed.source.sampled, packed.notes.prove.level
    few = {sampled[at] for at in drawn(receipt.key, len(sampled), BY_REFERENCE).tolist()}
    defects: list[str] = []
    for index, name in enumerate(packed.notes.splits):
        notes = [note for note in sampled if note.split == index]
        search, searched = NoteSearch(packed, name), [note for note in notes if note in few]
        chunks = search.chunks(searched)
        for chunk, there in zip(chunks, search.there(chunks), strict=True):
            if not there:
                lost = searched[chunk.note]
                defects.append(
                    f"record {lost.record}, note {lost.number}: its chunk {chunk.chunk + 1} is "
                    f"not in the rows of {name}"
                )
        defects += misplaced(packed, name, searched, chunks)
        # The whole sample, as the engine encodes it: the reference, which is many times slower, has had a few of them.
        if not defects:
            defects += misplaced(packed, name, notes, search.by_engine().chunks(notes))
    if level == EVERY_DOCUMENT and not defects:
        defects += packed_otherwise(packed)
    compared = packed.source.notes if level == EVERY_DOCUMENT else len(sampled)
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in defects),
        f"{compared} notes, rendered and encoded again, are in the rows.",
        f"Source, template or tokenizer changed since it was packed. {REBUILD}",
        facts={"documents_compared": compared, "documents": packed.source.notes, "level": level},
    )


def packed_otherwise(packed: OpenedCohort) -> Iterator[str]:
    """How the files differ from those of the cohort, packed again."""
    cohort = packed.cohort
    if cohort is None:
        raise ValueError("every document of a cohort is packed again by what describes it")

    def pack(store: ArtifactStore) -> None:
        ensure_packed_cohort(replace(cohort, store=store))

    with made_again(cohort.artifact, cohort.store, pack) as folder:
        # Compared row by row, and below to the byte only if the same libraries wrote both: Arrow's bytes are its own.
        of_rows = {paths.rows for paths in packed_paths(packed.notes, packed.month).values()}
        for name in sorted(of_rows):
            held, made = PackedRowsFile(packed.directory / name), PackedRowsFile(folder / name)
            step = held.shape.batch_rows
            for number, (one, other) in enumerate(zip_longest(held.blocks(step), made.blocks(step))):
                alive()
                if one is None or other is None or not _equal(one, other):
                    yield f"{name}: rows from {number * step} on are not those that are packed again"
                    break
        yield from other_bytes(packed.directory, folder, left_out=by_content(packed.receipt, of_rows))


def _equal(one: RowBlock, other: RowBlock) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("tokens", "segments", "offsets"))
