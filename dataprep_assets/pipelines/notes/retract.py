"""Search for listed patients and notes by the digests of a dataset's months, with counts per month.

An id is read, digested with the patient key and discarded. It never appears in a message, list or result. As in
`dataprep trace`, `month:record:note` names a note, and `month:record` names all notes of a record's patient. They are
looked up in the source, and only their digests are kept. Errors give the number of an invalid line in the list.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.curation.retractions import read_id_lines
from dataprep_assets.engine.trace.retraction import NOT_BUILT, RetractedAmount, RetractionResult, UnmatchedLine
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.notes.cohorts.cohort_source import list_cohorts
from dataprep_assets.pipelines.notes.cohorts.packed_files import PACKED_COHORTS
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data
from dataprep_assets.pipelines.notes.reading import DIGEST_BYTES, Note, digest_note, digest_patient, read_notes
from dataprep_assets.pipelines.notes.retractions import add_retractions, read_cohort_patients, read_entries
from dataprep_assets.stream.source import open_source

_POSITION = re.compile(r"(?P<month>\d{4}-\d{2}):(?P<record>[1-9]\d*)(:(?P<note>[1-9]\d*))?")


class NotePosition(NamedTuple):
    """A position in the source: month, and record and note from 1; note 0 is the whole record."""

    month: str
    record: int
    note: int


def read_list(path: Path, key: bytes) -> list[tuple[int, bytes | NotePosition]]:
    """Parse a list of ids; return each line's number with the digest of its id or its position in the source.

    A line is a plain id, `{"patient": …}` with a string or an integer, as in the records, or `month:record[:note]`.

    Args:
        path: The list.
        key: The patient key.

    Raises ConfigError for an empty list and, naming the line, for any other form.
    """
    return [(number, _parse_line(path, number, line, key)) for number, line in read_id_lines(path)]


def _parse_line(path: Path, number: int, line: bytes, key: bytes) -> bytes | NotePosition:
    patient_id: object = None
    try:
        text = line.decode().strip()
        if match := _POSITION.fullmatch(text):
            return NotePosition(match["month"], int(match["record"]), int(match["note"] or 0))
        patient_id = load_untrusted_json(text).get("patient") if text.startswith("{") else text
        if isinstance(patient_id, str | int) and not isinstance(patient_id, bool) and patient_id != "":
            return digest_patient(key, str(patient_id))
    except ValueError:  # do not chain this error, because it may quote the line
        pass
    raise ConfigError(
        f'--ids {path}: line {number}: must be the id of a patient, {{"patient": …}}, a note as month:record:note, '
        "or a record as month:record"
    )


def retract_patients(
    notes: NotesDeclaration, store: ArtifactStore, path: Path, *, strict: bool = False
) -> RetractionResult:
    """Add listed patients and notes to a dataset's retraction list.

    Args:
        notes: The dataset.
        store: Store of the packed cohorts.
        path: The list of ids.
        strict: Write the entries only if every entry is found or was retracted before.

    Raises ConfigError, naming the line, for an empty or malformed list of ids or retraction list, and for a position in
    a month whose source changed since it was packed. A dataset that was never built contains no patients.
    """
    assert notes.retractions is not None, "a located declaration has a list"
    with hide_quoted_data(notes.dataset):
        return _retract(notes, store, path, notes.retractions, strict=strict)


def _retract(
    notes: NotesDeclaration, store: ArtifactStore, path: Path, listing: Path, *, strict: bool
) -> RetractionResult:
    """Add the entries of the list of ids at `path` to the retraction list `listing`."""
    key = notes.patient_key.load()
    lines = read_list(path, key)
    entries_by_position = _find_entries(
        notes, store, [entry for _, entry in lines if isinstance(entry, NotePosition)], key
    )
    # Use None for a position without a note, because such a position is reported as not found.
    entries = [
        (number, entries_by_position.get(entry) if isinstance(entry, NotePosition) else entry)
        for number, entry in lines
    ]
    listed_before = set(read_entries(listing, key))
    new_digests = {digest for _, digest in entries if digest is not None} - listed_before
    dropped_digests = set(listed_before)
    # Count single notes separately only if a new entry is for a single note, because this count would otherwise always
    # be 0.
    kinds = (
        [DIGEST_BYTES, 2 * DIGEST_BYTES] if any(len(entry) > DIGEST_BYTES for entry in new_digests) else [DIGEST_BYTES]
    )
    held_digests: set[bytes] = set()
    emptied: set[bytes] = set()
    months, files = [], set()
    expected_months = notes.months.expected_keys
    # Include stored months that are no longer declared, because they contain patients until `dataprep prune` removes
    # the months.
    undeclared_months = [
        month for month in store.partitions(notes.dataset, PACKED_COHORTS) if month not in expected_months
    ]
    artifacts = [notes.artifact(PACKED_COHORTS, month) for month in (*expected_months, *undeclared_months)]
    for artifact, receipt in zip(artifacts, store.receipts(artifacts), strict=True):
        if receipt is None:
            continue
        cohort_patients = read_cohort_patients(store, artifact, receipt)
        dropped_digests |= cohort_patients.left_out | cohort_patients.notes
        emptied |= cohort_patients.emptied
        if month_digests := set(filter(cohort_patients.has_patient, new_digests)):
            held_digests |= month_digests
            files.add(receipt.inputs["cohort"])
            month = str(artifact.partition)
            counts = tuple(sum(len(entry) == kind for entry in month_digests) for kind in kinds)
            months.append(RetractedAmount(partition=month, counts=counts, planned=month in expected_months))

    # Treat a patient as retracted if all notes of the patient were retracted individually.
    known_digests = dropped_digests | emptied

    def is_known(digest: bytes | None) -> bool:
        return (
            digest is not None
            and digest not in held_digests
            and (digest in known_digests or digest[:DIGEST_BYTES] in dropped_digests)
        )

    # These entries are in the source, but only in months that are not packed yet.
    unpacked_entries = {
        entry for entry in entries_by_position.values() if entry in new_digests - held_digests and not is_known(entry)
    }
    found_digests = held_digests | unpacked_entries
    not_found = tuple(
        UnmatchedLine(line=n) for n, digest in entries if digest not in found_digests and not is_known(digest)
    )
    source = open_source(notes.source)
    return RetractionResult(
        list=listing,
        given=len(entries),
        already=sum(is_known(digest) for _, digest in entries),
        found=len(found_digests),
        left_out={NOT_BUILT: len(unpacked_entries)} if unpacked_entries else {},
        # With `strict`, add nothing if a patient or note was not found. Otherwise, also add patients that were not
        # found, because these patients may appear later.
        added=add_retractions(
            listing, key, () if strict and not_found else filter(None, (entry for _, entry in entries))
        ),
        not_found=not_found,
        counted=("patient", "note")[: len(kinds)],
        held=tuple(months),
        artifact=PACKED_COHORTS,
        partitions="month",
        kept="If notes of listed patients appear later, they are left out",
        files=frozenset(files),
        # Show only the location, because file names may contain patients' names.
        copies=(source.storage,) if source.mirrored and months else (),
    )


def _find_entries(
    notes: NotesDeclaration, store: ArtifactStore, positions: Sequence[NotePosition], key: bytes
) -> dict[NotePosition, bytes]:
    """Return position → retraction entry (of the note, or of the record's patient) for all notes of listed months.

    Raises ConfigError if a month's source changed since it was packed, because its records may have moved.
    """
    entries: dict[NotePosition, bytes] = {}
    files = list_cohorts(notes) if positions else {}
    template, names_single_notes = notes.compile_header(), notes.cohorts.fields.notes is None
    for month in sorted({position.month for position in positions} & files.keys() & set(notes.months.expected_keys)):
        file = files[month]
        reader = file.open_reader(file.fetch())
        for item in read_notes(reader, notes.cohorts.fields, template, key=key, month=month):
            if isinstance(item, Note):
                entries[NotePosition(month, item.record, item.number)] = digest_note(key, item)
                # The position of a whole record identifies the record's patient or, if each record is one note, the
                # record's note.
                entries[NotePosition(month, item.record, 0)] = (
                    digest_note(key, item) if names_single_notes else item.patient
                )
        # Compare last, because the reader's digest covers the file only after a complete read.
        receipt = store.receipt(notes.artifact(PACKED_COHORTS, month))
        if receipt is not None and receipt.inputs["cohort"] != notes.source_digests(key).digest_of(reader.sha256):
            raise ConfigError(
                f"{month}: the source has changed since packing, so records and notes may have different numbers. Run "
                f"`dataprep run {notes.dataset}` first, then use the numbers that `dataprep trace` shows"
            )
    return entries
