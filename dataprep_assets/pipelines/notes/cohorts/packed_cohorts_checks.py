"""Checks of one packed cohort: its JSON lines, its columnar rows, the digests of its patients, and the receipt.

Each check recomputes the receipt's claims from the bytes, or the bytes from the source. Messages contain records,
notes, rows and positions, but no token, text, identifier or name of a source file.

Checks that compare with the present source read, render and encode it again with the reference engine.

`no_retracted_document` compares the digests of the patients in the rows with the retraction list. It also counts the
retracted notes in the present source, and searches the rows for the tokens of a sample of these. Other checks show that
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

from dataprep_assets.bounds import alive
from dataprep_assets.engine.checks.check import (
    BY_REFERENCE,
    EVERY_DOCUMENT,
    FILES_INTACT,
    Check,
    Finding,
    draw_documents,
    ledger_of,
    name_of,
    verdict,
)
from dataprep_assets.engine.checks.scratch_rebuild import by_content, made_again, other_bytes
from dataprep_assets.errors import count_of
from dataprep_assets.formats.packed_rows import PackedFile, open_packed
from dataprep_assets.formats.row_origins import Origins, read_origins
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.notes.cohorts.opened_cohort import REBUILD, OpenedCohort, SampledNote, load_tokenizer
from dataprep_assets.pipelines.notes.cohorts.packed_cohort import PackedCohort, ensure_packed_cohort
from dataprep_assets.pipelines.notes.cohorts.packed_files import (
    QUARANTINE,
    RETRACTED_NOTES,
    RETRACTED_PATIENTS,
    packed_paths,
    read_patients,
)
from dataprep_assets.pipelines.notes.cohorts.packed_rows_checks import (
    ids_in_vocabulary,
    jsonl_matches_rows,
    labels_within_notes,
    packing_efficient,
    rows_valid,
    separators_match_notes,
    tokens_conserved,
)
from dataprep_assets.pipelines.notes.cohorts.row_layout import CHUNK, NOTE, ORIGIN_COLUMNS, PATIENT, RECORD
from dataprep_assets.pipelines.notes.cohorts.spool import split_of
from dataprep_assets.pipelines.notes.note_search import NoteChunk, NoteSearch
from dataprep_assets.pipelines.notes.reading import DEFECTS
from dataprep_assets.stream import reencoding
from dataprep_assets.stream.reencoding import encode_of
from dataprep_assets.stream.stream_losses import losses_check, losses_within_limit
from dataprep_assets.stream.token_shard import TokenBinsFacts

SHORTEST = 8
"""Minimum tokens of a note to search for, because shorter notes occur by chance."""
_ENDS = 32
"""Number of characters that a kept note must share with a retracted one to be encoded and compared."""


def no_retracted_document(packed: OpenedCohort) -> Finding:
    """Check that no patient or note on the retraction list is in the rows, and that no others were left out."""
    dropped_count = ledger_of(packed.receipt).dropped.get(RETRACTED, 0)
    defects = list(_by_digest(packed, dropped_count))
    looked = 0
    if packed.retracted:
        looked = len(packed.source.sampled_retracted)
        defects += _by_source(packed, dropped_count)
        for index, split in enumerate(packed.notes.splits):
            defects += _by_tokens(packed, index, split)
    return verdict(
        (f"{name_of(packed.receipt)}: {defect}" for defect in defects),
        f"None of the {count_of(len(packed.retracted), 'patient')} and notes on the list is in the rows; {looked} of "
        f"their {count_of(dropped_count, 'note was', 'notes were')} searched for by their tokens."
        if packed.retracted
        else "No patient or note of this dataset is retracted.",
        REBUILD,
        facts={"retracted": dropped_count, "retracted_patients": len(packed.left_out), "looked_for": looked},
    )


def _by_digest(packed: OpenedCohort, dropped: int) -> Iterator[str]:
    for path in packed_paths(packed.notes, packed.month).values():
        split_patients = {digest.tobytes() for digest in read_patients(packed.directory / path.patients)}
        if count := len(split_patients & packed.retracted):
            yield f"{path.patients}: {count_of(count, 'retracted patient is', 'retracted patients are')} in the rows"
    # a patient whose entry was removed from the list must be restored
    if strays := len(packed.left_out - packed.retracted):
        yield (
            f"{RETRACTED_PATIENTS}: notes of {count_of(strays, 'patient was', 'patients were')} left out who are no "
            "longer on the list"
        )
    if strays := len(packed.notes_left_out - packed.retracted):
        yield f"{RETRACTED_NOTES}: {count_of(strays, 'note was', 'notes were')} left out that are no longer on the list"
    if bool(packed.left_out or packed.notes_left_out) != bool(dropped):
        yield (
            f"{RETRACTED_PATIENTS} has {count_of(len(packed.left_out), 'patient')} and {RETRACTED_NOTES} "
            f"{count_of(len(packed.notes_left_out), 'note')}, but the ledger {count_of(dropped, 'note')} left out"
        )


def _by_source(packed: OpenedCohort, dropped: int) -> Iterator[str]:
    """Compare the counts with the source. Notes that do not fit in a row are always dropped for that reason."""
    source, late = packed.source, ledger_of(packed.receipt).dropped.get("header_too_long", 0)
    if not dropped <= source.retracted <= dropped + late:
        yield f"the source has {count_of(source.retracted, 'removed note')}, but {dropped} were left out"
    alone = source.retracted_notes - packed.notes_left_out
    if packed.notes_left_out - source.retracted_notes or (alone and not late):
        yield (
            f"the source has {count_of(len(source.retracted_notes), 'individually removed note')}, but "
            f"{len(packed.notes_left_out)} were left out"
        )
    missing = source.retracted_digests - packed.left_out
    if packed.left_out - source.retracted_digests or (missing and not late):
        yield (
            f"the source has notes of {count_of(len(source.retracted_digests), 'removed patient')}, but those of "
            f"{len(packed.left_out)} were left out"
        )


def _by_tokens(packed: OpenedCohort, index: int, split: str) -> Iterator[str]:
    """Yield the sampled retracted notes in the rows of a split, unless an equal kept note explains them."""
    notes = [note for note in packed.source.sampled_retracted if note.split == index]
    search = NoteSearch(packed, split)
    chunks = search.chunks(notes)
    presence = search.find_chunks(chunks)
    of_note = {at: [i for i, chunk in enumerate(chunks) if chunk.note == at] for at in range(len(notes))}
    chunks_of_note = {
        at: [chunks[i] for i in own]
        for at, own in of_note.items()
        # all chunks must be present, because a single one may belong to another note; ids have four bytes per token
        if own and all(presence[i] for i in own) and sum(len(chunks[i].ids) for i in own) >= 4 * SHORTEST
    }
    for at in _find_unexplained(packed, index, search, notes, chunks_of_note) if chunks_of_note else ():
        yield (f"the tokens of record {notes[at].record}, note {notes[at].number}, which is retracted, are in {split}")


def _find_unexplained(
    packed: OpenedCohort,
    index: int,
    search: NoteSearch,
    notes: Sequence[SampledNote],
    left: dict[int, list[NoteChunk]],
) -> list[int]:
    """Return the notes with a chunk that is in no kept note, because several patients may have the same note."""
    for kept_note in packed.kept_notes():
        if kept_note.split != index:
            continue
        text, own = kept_note.header + kept_note.text, None
        # Encoded at most once and only if it may explain a chunk, because encoding all notes takes as long as packing.
        for note_index in [note_index for note_index in left if _alike(notes[note_index].text, text)]:
            own = search.chunks([kept_note]) if own is None else own
            left[note_index] = [chunk for chunk in left[note_index] if not search.holds(own, chunk)]
    return [note_index for note_index, chunks in left.items() if chunks]


def _alike(text: str, other: str) -> bool:
    return text[:_ENDS] in other or text[-_ENDS:] in other


def misplaced(
    packed: OpenedCohort, split: str, notes: Sequence[SampledNote], chunks: Sequence[NoteChunk]
) -> Iterator[str]:
    """Yield the defects in the origins of a split's rows, one sentence each.

    Args:
        packed: The cohort.
        split: One of its splits.
        notes: Sampled notes of the split.
        chunks: Their chunks, encoded by the reference engine.
    """
    paths = packed_paths(packed.notes, packed.month)[split]
    origins = read_origins(packed.directory / paths.origins, ORIGIN_COLUMNS)
    if len(origins) != packed.scans[split].segments:
        yield (
            f"{paths.origins} has {count_of(len(origins), 'segment')}, but the rows have {packed.scans[split].segments}"
        )
        return
    yield from _mixed_up(origins, len(read_patients(packed.directory / paths.patients)), paths.origins)
    stored_pieces, encoded_pieces = _pieces(packed.rows(split), origins, notes), defaultdict[int, list[bytes]](list)
    for chunk in chunks:
        encoded_pieces[chunk.note].append(chunk.ids)
    for index, note in enumerate(notes):
        note_pieces, expected_pieces = stored_pieces[note.record, note.number], encoded_pieces[index]
        # the pieces of a stream are in order, but chunks may be packed in any order
        is_same = (
            b"".join(note_pieces) == b"".join(expected_pieces)
            if packed.notes.concatenated
            else sorted(note_pieces) == sorted(expected_pieces)
        )
        if not is_same:
            yield f"record {note.record}, note {note.number}: not at its position in {paths.origins}"


def _mixed_up(origins: Origins, patients: int, name: str) -> Iterator[str]:
    """Yield impossible origins: chunks that are not numbered from 0, and records with two patients or none."""
    note = _note_numbers(origins[:, RECORD], origins[:, NOTE])
    order = np.lexsort((origins[:, CHUNK], note))
    ordered = note[order]
    if not np.array_equal(origins[order, CHUNK], np.arange(len(order)) - np.searchsorted(ordered, ordered)):
        yield f"{name}: the chunks of a note are not numbered from 0"
    pairs = np.unique(np.stack([origins[:, RECORD], origins[:, PATIENT]]), axis=1)
    whose = np.unique(pairs[1])
    if len(np.unique(pairs[0])) != pairs.shape[1] or not np.array_equal(whose, np.arange(patients)):
        yield f"{name}: a record belongs to two patients, or a patient has none"


def _note_numbers(records: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return one number per note, to sort and compare segments; records and note numbers are below 2^31."""
    return records << 32 | numbers


def _pieces(
    file: PackedFile, origins: Origins, notes: Sequence[SampledNote]
) -> defaultdict[tuple[int, int], list[bytes]]:
    """Return record and note → the tokens of its segments, int32, in the order of the rows."""
    pieces: defaultdict[tuple[int, int], list[bytes]] = defaultdict(list)
    sampled_numbers = np.array([note.record << 32 | note.number for note in notes], np.int64)
    is_sampled = np.isin(_note_numbers(origins[:, RECORD], origins[:, NOTE]), sampled_numbers)
    offset = 0
    for block in file:
        begins, ends = block.bounds()
        for index in np.flatnonzero(is_sampled[offset : offset + begins.size]).tolist():
            record, note = origins[offset + index, [RECORD, NOTE]].tolist()
            pieces[record, note].append(block.tokens[begins[index] : ends[index]].astype("<i4", copy=False).tobytes())
        offset += begins.size
    return pieces


def note_counts_match(packed: OpenedCohort) -> Finding:
    """Check that the present source is the same file, with the receipt's notes, drops, headers and patients."""
    receipt, ledger, source = packed.receipt, ledger_of(packed.receipt), packed.source
    where = name_of(receipt)
    late, retracted = ledger.dropped.get("header_too_long", 0), ledger.dropped.get(RETRACTED, 0)
    kept_count = source.notes - source.retracted
    counts = {
        "digest": (source.digest, receipt.inputs["cohort"]),
        # a retracted note without room is retracted in the source's count, but `header_too_long` in the ledger's
        "kept notes": (kept_count, ledger.documents + late - (source.retracted - retracted)),
        "notes": (source.notes + sum(source.dropped.values()), ledger.rows_in),
        "patients": (source.patients, packed.facts.patients + len(packed.left_out)),
        "patients without notes": (source.patients_without_notes, packed.facts.patients_without_notes),
    }
    defects = [f"{where}: the source has {what} {a}, but the receipt {b}" for what, (a, b) in counts.items() if a != b]
    drops = {r: n for r, n in ledger.dropped.items() if r not in ("header_too_long", RETRACTED)}
    if source.dropped != drops:
        defects.append(f"{where}: the source has drops {dict(source.dropped)}, but the receipt {drops}")
    digests = _digests(packed)
    strangers = len(digests - source.digests)
    # a patient whose notes have no room is in the source, but in no row
    if strangers or (not late and len(digests) != len(source.digests)):
        defects.append(
            f"{where}: {count_of(len(digests), 'patient is', 'patients are')} in the rows, {len(source.digests)} in "
            f"the source have notes, and {strangers} are only in the rows"
        )
    missing = source.dropped.get("missing_metadata", 0)
    return verdict(
        defects,
        f"{count_of(source.notes, 'note')} of {count_of(source.patients, 'patient')}, {source.headers} with a "
        f"header, {missing} dropped because of a missing field"
        + (f", {retracted} because they are removed." if retracted else "."),
        f"The source or the key changed since packing. {REBUILD}",
        facts={
            "notes": source.notes,
            "with_header": source.headers,
            "without_header": source.notes - source.headers,
            "missing_metadata": missing,
            "patients": source.patients,
        },
    )


def _digests(packed: OpenedCohort) -> set[bytes]:
    """Return the keyed digests of all patients in the rows."""
    paths = packed_paths(packed.notes, packed.month).values()
    return {digest.tobytes() for path in paths for digest in read_patients(packed.directory / path.patients)}


def round_trip(packed: OpenedCohort) -> Finding:
    """Check that sampled notes, read, rendered and encoded again, are at their positions in `origins.npy`.

    The reference engine encodes a few of them, which are searched for in all rows of their split. At level `every
    document`, the cohort is also packed again and its files are compared. The sample is seeded by the receipt's key, so
    failures repeat. Messages contain record, note and chunk.
    """
    receipt, sampled_notes, level = packed.receipt, packed.source.sampled, packed.notes.prove.level
    few = {sampled_notes[number] for number in draw_documents(receipt.key, len(sampled_notes), BY_REFERENCE).tolist()}
    defects: list[str] = []
    for index, name in enumerate(packed.notes.splits):
        notes = [note for note in sampled_notes if note.split == index]
        search, searched_notes = NoteSearch(packed, name), [note for note in notes if note in few]
        chunks = search.chunks(searched_notes)
        for chunk, is_present in zip(chunks, search.find_chunks(chunks), strict=True):
            if not is_present:
                lost = searched_notes[chunk.note]
                defects.append(
                    f"record {lost.record}, note {lost.number}: its chunk {chunk.chunk + 1} is "
                    f"not in the rows of {name}"
                )
        defects += misplaced(packed, name, searched_notes, chunks)
        # the fast engine checks the whole sample, because the much slower reference has checked only a few notes
        if not defects:
            defects += misplaced(packed, name, notes, search.by_engine().chunks(notes))
    if level == EVERY_DOCUMENT and not defects:
        defects += packed_otherwise(packed)
    compared_count = packed.source.notes if level == EVERY_DOCUMENT else len(sampled_notes)
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in defects),
        f"{count_of(compared_count, 'note')}, rendered and encoded again, are in the rows.",
        f"Source, template or tokenizer changed since packing. {REBUILD}",
        facts={"documents_compared": compared_count, "documents": packed.source.notes, "level": level},
    )


def packed_otherwise(packed: OpenedCohort) -> Iterator[str]:
    """Yield the differences between the files and a new packing of the cohort."""
    cohort = packed.cohort
    if cohort is None:
        raise ValueError("a cohort must be repacked as a whole")

    def pack(store: ArtifactStore) -> None:
        ensure_packed_cohort(replace(cohort, store=store))

    with made_again(cohort.artifact, cohort.store, pack) as folder:
        # Rows are compared by value, and also by bytes if the same libraries wrote both files.
        of_rows = {paths.rows for paths in packed_paths(packed.notes, packed.month).values()}
        for name in sorted(of_rows):
            blocks = (open_packed(where / name, masked=False) for where in (packed.directory, folder))
            for old_block, new_block in zip_longest(*blocks):
                alive()
                if old_block is None or new_block is None or not old_block.equals(new_block):
                    yield f"{name}: its rows from {(old_block or new_block).first} on differ from the repacked ones"
                    break
        yield from other_bytes(packed.directory, folder, left_out=by_content(packed.receipt, of_rows))


def ledger_balances(packed: OpenedCohort) -> Finding:
    """Check that notes in = kept + dropped, and that the quarantine lists every note dropped for a defect."""
    receipt, ledger = packed.receipt, ledger_of(packed.receipt)
    ledger.balance(name_of(receipt))
    in_splits = sum(split_facts.documents for split_facts in packed.splits.values())
    defective = {r: n for r, n in ledger.dropped.items() if r in DEFECTS}
    path = packed.directory / QUARANTINE
    quarantined: Counter[str] = Counter()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        position = orjson.loads(line)
        quarantined[position["reason"]] += position["notes"]
    defects = []
    if in_splits != ledger.documents:
        defects.append(
            f"{name_of(receipt)}: its splits have {count_of(in_splits, 'note')}, but its ledger {ledger.documents}"
        )
    if dict(quarantined) != defective:
        defects.append(f"{name_of(receipt)}: {QUARANTINE} has {dict(quarantined)}, but the ledger {defective}")
    return verdict(
        defects,
        f"{count_of(ledger.rows_in, 'note')} in, {ledger.documents} kept, {sum(ledger.dropped.values())} dropped.",
        REBUILD,
        facts={"rows_in": ledger.rows_in, "documents": ledger.documents, "dropped": sum(ledger.dropped.values())},
        table=[{"reason": reason, "notes": count} for reason, count in ledger.dropped.items()] or None,
    )


def engine_certified(packed: OpenedCohort) -> Finding:
    """Run the check of token bins on a cohort: header and text of a note are two documents for an engine."""
    ledger, special_tokens = ledger_of(packed.receipt), packed.notes.document.special_tokens
    # notes that are in no row were encoded as well
    encoded = 2 * (ledger.documents + ledger.dropped.get("header_too_long", 0) + ledger.dropped.get(RETRACTED, 0))
    facts = TokenBinsFacts(
        dtype="uint32",
        separator_id=packed.facts.separator_id,
        bos_id=packed.facts.bos_id,
        special_tokens=special_tokens,
        certificate=packed.facts.certificate,
    )
    receipt = replace(packed.receipt, ledger=replace(ledger, documents=encoded), facts=facts.to_json())
    return reencoding.engine_certified(receipt, packed.bundle, special_tokens)


def patients_in_their_split(packed: OpenedCohort) -> Finding:
    """Check that digests are sorted, distinct and counted, and that each is in the split that it selects."""
    defects, total = [], 0
    shares = list(packed.notes.splits.values())
    for index, (name, path) in enumerate(packed_paths(packed.notes, packed.month).items()):
        digests = [digest.tobytes() for digest in read_patients(packed.directory / path.patients)]
        total += len(digests)
        if digests != sorted(set(digests)):
            defects.append(f"{path.patients}: its digests are not sorted, or one occurs twice")
        if len(digests) != packed.splits[name].patients:
            defects.append(
                f"{path.patients}: {count_of(len(digests), 'patient')}, but the receipt lists "
                f"{packed.splits[name].patients}"
            )
        if strays := sum(split_of(digest, shares) != index for digest in digests):
            defects.append(
                f"{path.patients}: {count_of(strays, 'patient belongs', 'patients belong')} to a split other than "
                f"{name}"
            )
    return verdict(
        (f"{name_of(packed.receipt)}: {d}" for d in defects),
        f"{count_of(total, 'patient')}, each in one of {count_of(len(shares), 'split')}.",
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
        encode=encode_of(cohort.plan.stream),
        cohort=cohort,
    )


def _losses_within_limit(packed: OpenedCohort) -> Finding:
    assert packed.cohort is not None
    return losses_within_limit(packed.receipt, packed.cohort.plan.stream.max_loss)


# All checks except the last block, because their failures mean lost or wrong rows, training across documents, or
# patients in two splits.
COHORT_CHECKS: tuple[Check[OpenedCohort], ...] = (
    FILES_INTACT,
    Check(
        "ledger_balances",
        "Notes in = notes kept + notes dropped, by reason. Every defective note is listed in quarantine.",
        ledger_balances,
    ),
    Check(
        "rows_valid",
        "No row is empty or too long, and sampled JSON lines have all columns with valid segments, positions and "
        "labels.",
        rows_valid,
    ),
    Check(
        "labels_within_notes",
        "In MaxText's batches of sampled rows, no label is padding and none crosses into another note.",
        labels_within_notes,
    ),
    Check(
        "ids_in_vocabulary",
        "Every token id in the file is below len(tokenizer), and none is the pad id.",
        ids_in_vocabulary,
    ),
    Check(
        "tokens_conserved",
        "Tokens in rows = note tokens − truncated + repeated headers + overlaps.",
        tokens_conserved,
    ),
    Check(
        "separators_match_notes",
        "Every note begins with exactly one BOS token and ends with exactly one separator.",
        separators_match_notes,
    ),
    Check(
        "jsonl_matches_rows",
        "JSON lines and columnar rows have the same count, and sampled ones are equal.",
        jsonl_matches_rows,
    ),
    Check("engine_certified", "The engine that encoded the cohort was certified for it.", engine_certified),
    Check(
        "note_counts_match",
        "Reading the source again reproduces the receipt's counts of notes, drops by reason, headers and patients.",
        note_counts_match,
    ),
    Check(
        "round_trip",
        "Rendering and encoding a sample of notes (or all) again reproduces the tokens at the rows and positions in "
        "`origins.npy`.",
        round_trip,
        samples=True,
    ),
    Check(
        "patients_in_their_split",
        "Each patient is only in the split that the keyed digest of the id selects.",
        patients_in_their_split,
    ),
    Check(
        "no_retracted_document",
        "No removed patient or note is in the rows (checked by digest, by the source, and by a sample of token "
        "sequences).",
        no_retracted_document,
    ),
    losses_check(_losses_within_limit),
    # half-empty rows only cost time, so this check does not block
    Check(
        "packing_efficient",
        "No two rows would fit into one, so the padding is unavoidable.",
        packing_efficient,
        blocking=False,
    ),
)
