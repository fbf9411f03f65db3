"""Checks of one packed cohort: its JSON Lines and columnar files, the digests of its patients, and the receipt.

Each check recomputes the receipt's claims from the bytes, or the bytes from the source. Messages contain records,
notes, rows and positions, but no token, text, identifier or name of a source file.

To compare rows with the current source, checks read it, render it and encode it with the reference engine.

`no_retracted_document` compares the digests of the patients in the rows with the retraction list. It also counts the
retracted notes in the current source, and searches the rows for the tokens of a sample of them. Other checks show that
downstream artifacts have exactly these rows: `matches_packed_rows` for shards, `matches_cohort_shards` for directories.

Entry points: `COHORT_CHECKS`, `open_cohort`. The checks of rows are in `packed_rows_checks`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np
import orjson
from numpy.typing import NDArray

from dataprep_assets.bounds import report_progress
from dataprep_assets.engine.artifact.losses import format_drops
from dataprep_assets.engine.checks.check import (
    BY_REFERENCE,
    EVERY_DOCUMENT,
    FILES_INTACT,
    Check,
    Finding,
    build_verdict,
    describe_artifact,
    draw_documents,
    require_ledger,
)
from dataprep_assets.engine.checks.scratch_rebuild import (
    choose_compared_by_content,
    find_byte_differences,
    rebuild_artifact,
)
from dataprep_assets.errors import count_of
from dataprep_assets.formats.packed_rows import PackedFile, open_packed_file
from dataprep_assets.formats.row_origins import Origins, read_origins
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.notes.cohorts.opened_cohort import REBUILD, OpenedCohort, SampledNote, load_tokenizer
from dataprep_assets.pipelines.notes.cohorts.packed_cohort import PackedCohort, ensure_packed_cohort
from dataprep_assets.pipelines.notes.cohorts.packed_files import (
    QUARANTINE,
    RETRACTED_NOTES,
    RETRACTED_PATIENTS,
    list_packed_paths,
    read_patients,
)
from dataprep_assets.pipelines.notes.cohorts.packed_rows_checks import (
    check_ids,
    check_json_lines,
    check_labels,
    check_packing,
    check_rows,
    check_separators,
    check_tokens,
)
from dataprep_assets.pipelines.notes.cohorts.row_layout import CHUNK, NOTE, ORIGIN_COLUMNS, PATIENT, RECORD
from dataprep_assets.pipelines.notes.cohorts.spool import choose_split
from dataprep_assets.pipelines.notes.note_search import NoteChunk, NoteSearch
from dataprep_assets.pipelines.notes.reading import DEFECTS
from dataprep_assets.stream import reencoding
from dataprep_assets.stream.reencoding import build_encode_function
from dataprep_assets.stream.stream_losses import build_losses_check, losses_within_limit
from dataprep_assets.stream.token_shard import TokenBinsFacts

MIN_SEARCHED_TOKENS = 8
"""Minimum number of tokens of a note that is searched for, because shorter notes occur by chance."""
_COMPARED_CHARACTERS = 32
"""Number of first or last characters of a retracted note that a kept note must contain to be compared with it."""


def check_retractions(cohort: OpenedCohort) -> Finding:
    """Check that the rows contain no patient or note on the retraction list, and that no other notes were left out."""
    dropped_count = require_ledger(cohort.receipt).dropped.get(RETRACTED, 0)
    defects = list(_find_digest_defects(cohort, dropped_count))
    searched_count = 0
    if cohort.retracted:
        searched_count = len(cohort.source.sampled_retracted)
        defects += _find_source_defects(cohort, dropped_count)
        for index, split in enumerate(cohort.notes.splits):
            defects += _find_retracted_notes(cohort, index, split)
    return build_verdict(
        (f"{describe_artifact(cohort.receipt)}: {defect}" for defect in defects),
        f"The list has {count_of(len(cohort.retracted), 'entry', 'entries')}, and none of its patients or notes is in "
        f"the rows; {searched_count} of {count_of(dropped_count, 'dropped note')} "
        f"{'was' if searched_count == 1 else 'were'} searched for by tokens."
        if cohort.retracted
        else "No patient or note of this dataset is retracted.",
        REBUILD,
        facts={
            "retracted": dropped_count,
            "retracted_patients": len(cohort.left_out),
            "notes_searched": searched_count,
        },
    )


def _find_digest_defects(cohort: OpenedCohort, drop_count: int) -> Iterator[str]:
    for path in list_packed_paths(cohort.notes, cohort.month).values():
        split_patients = {digest.tobytes() for digest in read_patients(cohort.directory / path.patients)}
        if count := len(split_patients & cohort.retracted):
            yield f"{path.patients}: {count_of(count, 'retracted patient is', 'retracted patients are')} in the rows"
    # Report notes that are left out although their entries are no longer on the list, because these notes must be
    # restored.
    if stray_count := len(cohort.left_out - cohort.retracted):
        patients = count_of(stray_count, "patient that is", "patients that are")
        yield f"{RETRACTED_PATIENTS} lists {patients} no longer on the retraction list"
    if stray_count := len(cohort.retracted_notes - cohort.retracted):
        retracted_notes = count_of(stray_count, "note that is", "notes that are")
        yield f"{RETRACTED_NOTES} lists {retracted_notes} no longer on the retraction list"
    if bool(cohort.left_out or cohort.retracted_notes) != bool(drop_count):
        yield (
            f"{RETRACTED_PATIENTS} lists {count_of(len(cohort.left_out), 'patient')} and {RETRACTED_NOTES} lists "
            f"{count_of(len(cohort.retracted_notes), 'note')}, but the ledger has "
            f"{count_of(drop_count, 'left-out note')}"
        )


def _find_source_defects(cohort: OpenedCohort, drop_count: int) -> Iterator[str]:
    """Compare the counts with the source; a retracted note that does not fit in a row counts as not fitting."""
    source, dropped_without_room = cohort.source, require_ledger(cohort.receipt).dropped.get("header_too_long", 0)
    if not drop_count <= source.retracted <= drop_count + dropped_without_room:
        yield (
            f"the source has {count_of(source.retracted, 'retracted note')}, but "
            f"{count_of(drop_count, 'note was', 'notes were')} left out"
        )
    retracted_only = source.retracted_notes - cohort.retracted_notes
    listed_only = cohort.retracted_notes - source.retracted_notes
    if listed_only or (retracted_only and not dropped_without_room):
        yield (
            f"{RETRACTED_NOTES} does not match the source's individually retracted notes: "
            f"{count_of(len(retracted_only), 'note is', 'notes are')} only in the source, and "
            f"{count_of(len(listed_only), 'note is', 'notes are')} only in {RETRACTED_NOTES}"
        )
    missing = source.retracted_digests - cohort.left_out
    stray = cohort.left_out - source.retracted_digests
    if stray or (missing and not dropped_without_room):
        yield (
            f"{RETRACTED_PATIENTS} does not match the source's retracted patients: "
            f"{count_of(len(missing), 'patient is', 'patients are')} only in the source, and "
            f"{count_of(len(stray), 'patient is', 'patients are')} only in {RETRACTED_PATIENTS}"
        )


def _find_retracted_notes(cohort: OpenedCohort, index: int, split: str) -> Iterator[str]:
    """Yield a sentence for each sampled retracted note in a split's rows, unless an equal kept note explains it."""
    notes = [note for note in cohort.source.sampled_retracted if note.split == index]
    search = NoteSearch(cohort, split)
    chunks = search.encode_chunks(notes)
    presence = search.find_chunks(chunks)
    indexes_by_note = {
        position: [i for i, chunk in enumerate(chunks) if chunk.note == position] for position in range(len(notes))
    }
    chunks_by_note = {
        position: [chunks[i] for i in own]
        for position, own in indexes_by_note.items()
        # Require that all chunks of a note are present, because a single chunk may also occur in a different note. Each
        # id takes four bytes.
        if own and all(presence[i] for i in own) and sum(len(chunks[i].ids) for i in own) >= 4 * MIN_SEARCHED_TOKENS
    }
    for position in _find_unexplained_notes(cohort, index, search, notes, chunks_by_note) if chunks_by_note else ():
        yield (
            f"the tokens of the retracted note {notes[position].number} of record {notes[position].record} are in the "
            f"rows of {split}"
        )


def _find_unexplained_notes(
    cohort: OpenedCohort,
    index: int,
    search: NoteSearch,
    notes: Sequence[SampledNote],
    unexplained_chunks: dict[int, list[NoteChunk]],
) -> list[int]:
    """Return the notes with a chunk that no kept note explains; several patients may have the same note."""
    for kept_note in cohort.read_kept_notes():
        if kept_note.split != index:
            continue
        text, own_text = kept_note.header + kept_note.text, None
        # Encode a note at most once, and only if it may explain a chunk, because encoding all notes takes as long as
        # packing.
        for note_index in [
            note_index for note_index in unexplained_chunks if _is_similar_text(notes[note_index].text, text)
        ]:
            own_text = search.encode_chunks([kept_note]) if own_text is None else own_text
            unexplained_chunks[note_index] = [
                chunk for chunk in unexplained_chunks[note_index] if not search.has_chunk(own_text, chunk)
            ]
    return [note_index for note_index, chunks in unexplained_chunks.items() if chunks]


def _is_similar_text(text: str, other_text: str) -> bool:
    return text[:_COMPARED_CHARACTERS] in other_text or text[-_COMPARED_CHARACTERS:] in other_text


def find_origin_defects(
    cohort: OpenedCohort, split: str, notes: Sequence[SampledNote], chunks: Sequence[NoteChunk]
) -> Iterator[str]:
    """Yield the defects in the origins of a split's rows, one sentence each.

    Args:
        cohort: The cohort.
        split: One of its splits.
        notes: Sampled notes of the split.
        chunks: Their chunks, encoded by the reference engine.
    """
    paths = list_packed_paths(cohort.notes, cohort.month)[split]
    origins = read_origins(cohort.directory / paths.origins, ORIGIN_COLUMNS)
    if len(origins) != cohort.scans[split].segments:
        yield (
            f"{paths.origins} has {count_of(len(origins), 'segment')}, but the rows have "
            f"{cohort.scans[split].segments:,}"
        )
        return
    yield from _find_impossible_origins(origins, len(read_patients(cohort.directory / paths.patients)), paths.origins)
    stored_pieces, encoded_pieces = (
        _group_pieces(cohort.open_rows(split), origins, notes),
        defaultdict[int, list[bytes]](list),
    )
    for chunk in chunks:
        encoded_pieces[chunk.note].append(chunk.ids)
    for index, note in enumerate(notes):
        note_pieces, expected_pieces = stored_pieces[note.record, note.number], encoded_pieces[index]
        # Sort the chunks of a note before comparing them, because chunks may be packed in any order. The pieces of a
        # stream are in order.
        is_same = (
            b"".join(note_pieces) == b"".join(expected_pieces)
            if cohort.notes.is_concatenated
            else sorted(note_pieces) == sorted(expected_pieces)
        )
        if not is_same:
            yield (
                f"record {note.record}, note {note.number}: its tokens are not at the position that {paths.origins} "
                "lists"
            )


def _find_impossible_origins(origins: Origins, patients: int, name: str) -> Iterator[str]:
    """Yield a sentence for each kind of impossible origins: chunks not numbered from 0, records without one patient."""
    note = _number_notes(origins[:, RECORD], origins[:, NOTE])
    order = np.lexsort((origins[:, CHUNK], note))
    ordered = note[order]
    if not np.array_equal(origins[order, CHUNK], np.arange(len(order)) - np.searchsorted(ordered, ordered)):
        yield f"{name}: the chunks of a note are not numbered 0, 1, 2, …"
    pairs = np.unique(np.stack([origins[:, RECORD], origins[:, PATIENT]]), axis=1)
    differing_rows = np.unique(pairs[1])
    if len(np.unique(pairs[0])) != pairs.shape[1] or not np.array_equal(differing_rows, np.arange(patients)):
        yield f"{name}: a record belongs to two patients or to an unlisted patient, or a patient has no record"


def _number_notes(records: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return one number per note, by which segments are sorted and compared; both inputs are below 2^31."""
    return records << 32 | numbers


def _group_pieces(
    file: PackedFile, origins: Origins, notes: Sequence[SampledNote]
) -> defaultdict[tuple[int, int], list[bytes]]:
    """Return (record, note) → the tokens of the note's segments, as int32 bytes, in the order of the rows."""
    pieces: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    sampled_numbers = np.array([note.record << 32 | note.number for note in notes], np.int64)
    is_sampled = np.isin(_number_notes(origins[:, RECORD], origins[:, NOTE]), sampled_numbers)
    offset = 0
    for block in file:
        begins, ends = block.bounds()
        for index in np.flatnonzero(is_sampled[offset : offset + begins.size]).tolist():
            record, note = origins[offset + index, [RECORD, NOTE]].tolist()
            pieces[record, note].append(block.tokens[begins[index] : ends[index]].astype("<i4", copy=False).tobytes())
        offset += begins.size
    return pieces


def check_note_counts(cohort: OpenedCohort) -> Finding:
    """Check that the current source is the same file, with the receipt's notes, drops, headers and patients."""
    receipt, ledger, source = cohort.receipt, require_ledger(cohort.receipt), cohort.source
    location = describe_artifact(receipt)
    dropped_without_room, retracted_count = ledger.dropped.get("header_too_long", 0), ledger.dropped.get(RETRACTED, 0)
    kept_count = source.notes - source.retracted
    counts = {
        "digest": (source.digest, receipt.inputs["cohort"]),
        # Subtract retracted notes whose headers are too long, because they count as retracted in the source, but as
        # `header_too_long` in the ledger.
        "kept notes": (kept_count, ledger.documents + dropped_without_room - (source.retracted - retracted_count)),
        "notes": (source.notes + sum(source.dropped.values()), ledger.rows_in),
        "patients": (source.patients, cohort.facts.patients + len(cohort.left_out)),
        "patients without notes": (source.patients_without_notes, cohort.facts.patients_without_notes),
    }
    defects = [
        f"{location}: {what}: the source has {a}, but the receipt has {b}" for what, (a, b) in counts.items() if a != b
    ]
    drops = {r: n for r, n in ledger.dropped.items() if r not in ("header_too_long", RETRACTED)}
    if source.dropped != drops:
        defects.append(
            f"{location}: dropped notes: the source has {format_drops(source.dropped)}, but the receipt has "
            f"{format_drops(drops)}"
        )
    digests = _read_digests(cohort)
    strangers = len(digests - source.digests)
    # Do not compare the numbers of patients if notes were dropped as `header_too_long`, because a patient with only
    # such notes is in the source, but in no row.
    if strangers or (not dropped_without_room and len(digests) != len(source.digests)):
        defects.append(
            f"{location}: the patients of the rows and the source's patients with notes differ: "
            f"{count_of(strangers, 'patient is', 'patients are')} only in the rows, and "
            f"{count_of(len(source.digests - digests), 'patient is', 'patients are')} only in the source"
        )
    missing = source.dropped.get("missing_metadata", 0)
    return build_verdict(
        defects,
        f"{count_of(source.notes, 'note')} of {count_of(source.patients, 'patient')}, {source.headers} with a "
        f"header, {missing} dropped because of a missing field"
        + (f", {retracted_count} because they are on the retraction list." if retracted_count else "."),
        f"The source or the key has changed since packing. {REBUILD}",
        facts={
            "notes": source.notes,
            "with_header": source.headers,
            "without_header": source.notes - source.headers,
            "missing_metadata": missing,
            "patients": source.patients,
        },
    )


def _read_digests(cohort: OpenedCohort) -> set[bytes]:
    """Return the keyed digests of all patients in the rows."""
    paths = list_packed_paths(cohort.notes, cohort.month).values()
    return {digest.tobytes() for path in paths for digest in read_patients(cohort.directory / path.patients)}


def check_round_trip(cohort: OpenedCohort) -> Finding:
    """Check that sampled notes, read, rendered and encoded again, are at their positions in `origins.npy`.

    The reference engine encodes a few of these notes, which are then searched for in all rows of their split. At level
    `every document`, the cohort is also repacked and its files are compared. The receipt's key seeds the sample, so
    failures are reproducible. Messages contain record, note and chunk.
    """
    receipt, sampled_notes, level = cohort.receipt, cohort.source.sampled, cohort.notes.prove.level
    few = {sampled_notes[number] for number in draw_documents(receipt.key, len(sampled_notes), BY_REFERENCE).tolist()}
    defects: list[str] = []
    for index, name in enumerate(cohort.notes.splits):
        notes = [note for note in sampled_notes if note.split == index]
        search, searched_notes = NoteSearch(cohort, name), [note for note in notes if note in few]
        chunks = search.encode_chunks(searched_notes)
        for chunk, is_present in zip(chunks, search.find_chunks(chunks), strict=True):
            if not is_present:
                lost = searched_notes[chunk.note]
                defects.append(
                    f"record {lost.record}, note {lost.number}: its chunk {chunk.chunk + 1} is "
                    f"not in the rows of {name}"
                )
        defects += find_origin_defects(cohort, name, searched_notes, chunks)
        # Compare the whole sample with the fast engine, because the reference, which is much slower, has checked only a
        # few notes.
        if not defects:
            defects += find_origin_defects(cohort, name, notes, search.with_certified_engine().encode_chunks(notes))
    if level == EVERY_DOCUMENT and not defects:
        defects += find_packing_differences(cohort)
    compared_count = cohort.source.notes if level == EVERY_DOCUMENT else len(sampled_notes)
    return build_verdict(
        (f"{describe_artifact(receipt)}: {d}" for d in defects),
        f"Rendered and encoded {count_of(compared_count, 'note')} again: all are in the rows.",
        f"The source, the template or the tokenizer has changed since packing. {REBUILD}",
        facts={"documents_compared": compared_count, "documents": cohort.source.notes, "level": level},
    )


def find_packing_differences(opened_cohort: OpenedCohort) -> Iterator[str]:
    """Pack the cohort again; yield a sentence for each difference from its files."""
    cohort = opened_cohort.cohort
    if cohort is None:
        raise ValueError("a cohort must be repacked as a whole")

    def pack(store: ArtifactStore) -> None:
        ensure_packed_cohort(replace(cohort, store=store))

    with rebuild_artifact(cohort.artifact, cohort.store, pack) as folder:
        # Compare rows by value, because files are equal byte for byte only if the same libraries wrote them.
        row_files = {paths.rows for paths in list_packed_paths(opened_cohort.notes, opened_cohort.month).values()}
        for name in sorted(row_files):
            blocks = (open_packed_file(where / name, masked=False) for where in (opened_cohort.directory, folder))
            for old_block, new_block in zip_longest(*blocks):
                report_progress()
                if old_block is None or new_block is None or not old_block.equals(new_block):
                    yield f"{name}: its rows from {(old_block or new_block).first} on differ from a rebuild"
                    break
        yield from find_byte_differences(
            opened_cohort.directory, folder, left_out=choose_compared_by_content(opened_cohort.receipt, row_files)
        )


def check_ledger(cohort: OpenedCohort) -> Finding:
    """Check that notes in = kept + dropped, and that the quarantine lists every note dropped for a defect."""
    receipt, ledger = cohort.receipt, require_ledger(cohort.receipt)
    ledger.require_balance(describe_artifact(receipt))
    in_splits = sum(split_facts.documents for split_facts in cohort.splits.values())
    defective = {r: n for r, n in ledger.dropped.items() if r in DEFECTS}
    path = cohort.directory / QUARANTINE
    quarantined: Counter[str] = Counter()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        position = orjson.loads(line)
        quarantined[position["reason"]] += position["notes"]
    defects = []
    if in_splits != ledger.documents:
        defects.append(
            f"{describe_artifact(receipt)}: its splits have {count_of(in_splits, 'note')}, but its ledger has "
            f"{ledger.documents}"
        )
    if dict(quarantined) != defective:
        defects.append(
            f"{describe_artifact(receipt)}: dropped notes: {QUARANTINE} has {format_drops(quarantined)}, but the "
            f"ledger has {format_drops(defective)}"
        )
    return build_verdict(
        defects,
        f"{count_of(ledger.rows_in, 'note')} read: {ledger.documents} kept and {sum(ledger.dropped.values())} dropped.",
        REBUILD,
        facts={"rows_in": ledger.rows_in, "documents": ledger.documents, "dropped": sum(ledger.dropped.values())},
        table=[{"reason": reason, "notes": count} for reason, count in ledger.dropped.items()] or None,
    )


def check_engine(cohort: OpenedCohort) -> Finding:
    """Run the check `engine_certified` of token bins on a cohort; a note's header and text count as two documents."""
    ledger, special_tokens = require_ledger(cohort.receipt), cohort.notes.document.special_tokens
    # Include notes that are in no row, because they were also encoded.
    encoded = 2 * (ledger.documents + ledger.dropped.get("header_too_long", 0) + ledger.dropped.get(RETRACTED, 0))
    facts = TokenBinsFacts(
        dtype="uint32",
        separator_id=cohort.facts.separator_id,
        bos_id=cohort.facts.bos_id,
        special_tokens=special_tokens,
        certificate=cohort.facts.certificate,
    )
    receipt = replace(cohort.receipt, ledger=replace(ledger, documents=encoded), facts=facts.to_json())
    return reencoding.engine_certified(receipt, cohort.bundle, special_tokens)


def check_patient_splits(cohort: OpenedCohort) -> Finding:
    """Check that patients' digests are sorted, distinct and counted, and that each is in the split that it selects."""
    defects, total = [], 0
    shares = list(cohort.notes.splits.values())
    for index, (name, path) in enumerate(list_packed_paths(cohort.notes, cohort.month).items()):
        digests = [digest.tobytes() for digest in read_patients(cohort.directory / path.patients)]
        total += len(digests)
        if digests != sorted(set(digests)):
            defects.append(f"{path.patients}: the digests are not sorted, or a digest occurs twice")
        if len(digests) != cohort.splits[name].patients:
            defects.append(
                f"{path.patients}: has {count_of(len(digests), 'patient')}, but the receipt lists "
                f"{cohort.splits[name].patients}"
            )
        if stray_count := sum(choose_split(digest, shares) != index for digest in digests):
            defects.append(
                f"{path.patients}: {count_of(stray_count, 'patient belongs', 'patients belong')} to a split other than "
                f"{name}"
            )
    return build_verdict(
        (f"{describe_artifact(cohort.receipt)}: {d}" for d in defects),
        f"{count_of(total, 'patient')}, each in exactly one of {count_of(len(shares), 'split')}.",
        REBUILD,
        facts={"patients": total, "splits": len(shares)},
    )


def open_cohort(cohort: PackedCohort) -> OpenedCohort:
    """Open a cohort in a worker; raise MissingArtifactError or IntegrityError if it cannot be read."""
    return OpenedCohort(
        directory=cohort.store.local(cohort.artifact),
        receipt=cohort.store.require(cohort.artifact),
        notes=cohort.plan.notes,
        month=cohort.month,
        bundle=load_tokenizer(cohort.plan.stream.tokenizer, cohort.plan.stream.tokenizer_digest),
        file=cohort.file,
        key=cohort.plan.key,
        retracted=cohort.plan.retracted,
        encode=build_encode_function(cohort.plan.stream),
        cohort=cohort,
    )


def _check_losses(cohort: OpenedCohort) -> Finding:
    assert cohort.cohort is not None
    return losses_within_limit(cohort.receipt, cohort.cohort.plan.stream.max_loss)


# All checks except the last two are blocking, because their failure means lost or wrong rows, training across
# documents, a patient in two splits, or a removed patient in the rows.
COHORT_CHECKS: tuple[Check[OpenedCohort], ...] = (
    FILES_INTACT,
    Check(
        "ledger_balances",
        (
            "The count of notes read equals the notes kept plus the notes dropped for each reason. Every defective "
            "note is listed in quarantine."
        ),
        check_ledger,
    ),
    Check(
        "rows_valid",
        "No row is empty or too long, and sampled JSON lines have all columns with valid segments, positions and "
        "labels.",
        check_rows,
    ),
    Check(
        "labels_within_notes",
        "In MaxText's batches of sampled rows, no label is padding, and no label belongs to the next note.",
        check_labels,
    ),
    Check(
        "ids_in_vocabulary",
        "Every token id in the file is below `len(tokenizer)`, and none is the padding id.",
        check_ids,
    ),
    Check(
        "tokens_conserved",
        "The rows contain exactly the notes' tokens, minus truncated tokens, plus repeated headers and overlaps.",
        check_tokens,
    ),
    Check(
        "separators_match_notes",
        "Every note begins with exactly one BOS token and ends with exactly one separator.",
        check_separators,
    ),
    Check(
        "jsonl_matches_rows",
        "There are as many JSON lines as columnar rows, and sampled rows are equal in both.",
        check_json_lines,
    ),
    Check("engine_certified", "The engine that encoded the cohort was certified for it.", check_engine),
    Check(
        "note_counts_match",
        (
            "Reading the source again gives the counts in the receipt: notes, dropped notes by reason, headers and "
            "patients."
        ),
        check_note_counts,
    ),
    Check(
        "round_trip",
        "Rendering and encoding a sample of notes (or all notes) again reproduces the tokens at their "
        "positions in `origins.npy`.",
        check_round_trip,
        samples=True,
    ),
    Check(
        "patients_in_their_split",
        "Each patient is only in the split that the keyed digest of the patient's id selects.",
        check_patient_splits,
    ),
    Check(
        "no_retracted_document",
        "The rows contain no removed patient or note (compared by digest, by source, and by a sample of "
        "token sequences).",
        check_retractions,
    ),
    build_losses_check(_check_losses),
    # This check does not block, because half-empty rows only cost time.
    Check(
        "packing_efficient",
        "No two rows fit into one row, so the padding is unavoidable.",
        check_packing,
        blocking=False,
    ),
)
