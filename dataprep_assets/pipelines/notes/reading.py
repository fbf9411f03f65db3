"""Reader of the notes in a cohort's records, which counts invalid notes by reason.

A note consists of its text, its rendered header, its date and its patient's keyed digest. Ids, names and metadata never
leave this module. A defect in a patient's record drops all notes of the record. A defect in a note drops only that
note.

Entry points: `read_notes`, `digest_patient`, `digest_note`, `DEFECTS`.
"""

import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dataprep_assets.fields import value_at
from dataprep_assets.pipelines.notes.declaration import OBJECT_KEY, NoteFields
from dataprep_assets.pipelines.notes.rendering import HeaderTemplate, MissingFieldError, RenderError, convert_to_text
from dataprep_assets.sources.cohorts import CohortReader, PatientRecord
from dataprep_assets.sources.readers.row_files import BadRecord

EMPTY = "empty_note"
"""Reason for a note whose text is empty or white space; it is dropped under every policy and is not a defect."""
MISSING_METADATA = "missing_metadata"
"""Reason for a header with a missing field; `template.missing` determines whether this is a defect."""
DEFECTS = (
    "bad_json",
    "invalid_utf8",
    "not_an_object",
    "missing_patient_id",
    "bad_patient_id",
    "duplicate_patient",
    "bad_birth_date",
    "wrong_birth_month",
    "missing_notes",
    "notes_not_a_list",
    "note_not_an_object",
    "missing_text",
    "null_text",
    "text_not_a_string",
    "bad_date",
    "bad_metadata",
    "header_too_long",
)
"""Reasons that the policy for bad records handles."""

DIGEST_BYTES = 16
# This value marks a missing key. None cannot mark a missing key, because None is JSON's null, which is reported with a
# different reason.
_ABSENT: Any = object()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_AND_MONTH = re.compile(r"\d{4}-\d{2}")


@dataclass(frozen=True, slots=True)
class Note:
    """A note; `record` and `number` (from 1) are its position in the cohort; `date` is in microseconds since 1970."""

    record: int
    number: int
    patient: bytes = field(repr=False)
    header: str = field(repr=False)
    text: str = field(repr=False)
    date: int = field(repr=False)


@dataclass(frozen=True, slots=True)
class DroppedNote:
    """Position, reason and count of dropped notes; `number` is 0 for a record, and an unreadable record counts as 1."""

    record: int
    number: int
    byte: int
    reason: str
    notes: int = 1


@dataclass(frozen=True, slots=True)
class RecordStart:
    """Start of a patient's record that has no defect; the record's notes follow."""

    patient: bytes = field(repr=False)
    notes: int


def digest_patient(key: bytes, patient_id: str) -> bytes:
    """Return a patient's digest: the first 16 bytes of HMAC-SHA256 of the id in UTF-8."""
    # The prefix prevents collisions with the digests of notes and of the key.
    return hmac.digest(key, b"patient\0" + patient_id.encode(), "sha256")[:DIGEST_BYTES]


def digest_note(key: bytes, note: Note) -> bytes:
    """Return a note's digest: the patient's digest and 16 bytes of an HMAC-SHA256; equal notes have equal digests."""
    # Include the patient, so that a text that several patients share has a different digest for each patient.
    return note.patient + hmac.digest(key, b"note\0" + note.patient + note.text.encode(), "sha256")[:DIGEST_BYTES]


class _NoteRefusedError(Exception):
    """Error for an invalid record or note, which contains only the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_notes(
    reader: CohortReader, fields: NoteFields, template: HeaderTemplate, *, key: bytes, month: str
) -> Iterator[RecordStart | Note | DroppedNote]:
    """Yield the notes of a cohort in source order; the notes of each record follow its `RecordStart`.

    ``fields`` locates the parts of a record, ``template`` renders the header, and ``key`` is the secret of
    `digest_patient`. A declared birth date must be in ``month`` (`YYYY-MM`). An invalid record or note is yielded as
    `DroppedNote`. Raises the reader's errors.
    """
    patients: set[bytes] = set()
    parts = _RecordParts(fields, template, key, month)
    for record in reader:
        if isinstance(record, BadRecord):
            yield DroppedNote(record.row, 0, record.byte, record.reason)
            continue
        try:
            # Read the notes before the patient, so that all notes of a record with an invalid patient are counted.
            notes = parts.read_notes(record)
        except _NoteRefusedError as error:
            yield DroppedNote(record.row, 0, record.byte, error.reason)
            continue
        try:
            patient = parts.read_patient(record)
            # Reject a second record of a patient unless each record is one note, because then a patient with several
            # notes has several records.
            if fields.notes is not None and patient in patients:
                raise _NoteRefusedError("duplicate_patient")
        except _NoteRefusedError as error:
            # Count at least one note, because the ledger must also show a dropped record without notes.
            yield DroppedNote(record.row, 0, record.byte, error.reason, max(1, len(notes)))
            continue
        # Add the patient last, so that an invalid record does not make the patient's next record a duplicate.
        patients.add(patient)
        yield RecordStart(patient, len(notes))
        for number, note in enumerate(notes, 1):
            try:
                yield parts.read_note(record, number, note, patient)
            except _NoteRefusedError as error:
                yield DroppedNote(record.row, number, record.byte, error.reason)


class _RecordParts:
    """Extractor of the declared parts of a record."""

    def __init__(self, fields: NoteFields, template: HeaderTemplate, key: bytes, month: str) -> None:
        self._template, self._key, self._month = template, key, month
        self._id = None if fields.patient_id == OBJECT_KEY else fields.patient_id
        self._notes = None if fields.notes is None else fields.notes
        self._text = fields.text
        self._date = None if fields.date is None else fields.date
        self._date_format = fields.date_format
        self._birth = None if fields.birth_date is None else fields.birth_date
        # Read only the fields that the template uses, because other fields may be missing or of any type.
        self._patient_fields = {n: p for n, p in fields.patient.items() if n in template.used}
        self._note_fields = {n: p for n, p in fields.note.items() if n in template.used}

    def read_patient(self, record: PatientRecord) -> bytes:
        value = record.key if self._id is None else value_at(record.value, self._id, _ABSENT)
        if value is _ABSENT or value is None or value == "":
            raise _NoteRefusedError("missing_patient_id")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise _NoteRefusedError("bad_patient_id")
        if (
            self._birth is not None
            and self._parse_birth_month(value_at(record.value, self._birth, _ABSENT)) != self._month
        ):
            raise _NoteRefusedError("wrong_birth_month")
        # Convert with `str`, so that 7 and "7" are the same patient, both in records and in lists of ids.
        return digest_patient(self._key, str(value))

    def _parse_birth_month(self, value: Any) -> str:
        if not isinstance(value, str):
            raise _NoteRefusedError("bad_birth_date")
        # Accept every text that begins with `YYYY-MM`, because `fromisoformat` would reject a date without a day.
        if self._date_format is None and _YEAR_AND_MONTH.match(value):
            return value[:7]
        try:
            return _parse_date(value, self._date_format).strftime("%Y-%m")
        except ValueError:
            failed = True
        # Raise the error outside the handler, so that the handled error, which quotes the date, does not become the
        # context of the new error.
        assert failed
        raise _NoteRefusedError("bad_birth_date")

    def read_notes(self, record: PatientRecord) -> list[Any]:
        if self._notes is None:
            return [record.value]
        notes = value_at(record.value, self._notes, _ABSENT)
        if notes is _ABSENT:
            raise _NoteRefusedError("missing_notes")
        if notes is not None and not isinstance(notes, list):
            raise _NoteRefusedError("notes_not_a_list")
        # Treat null like an empty list, because both mean a patient without notes.
        return notes or []

    def read_note(self, record: PatientRecord, number: int, note: Any, patient: bytes) -> Note:
        if not isinstance(note, dict):
            raise _NoteRefusedError("note_not_an_object")
        text = value_at(note, self._text, _ABSENT)
        if not isinstance(text, str):
            raise _NoteRefusedError(
                "missing_text" if text is _ABSENT else "null_text" if text is None else "text_not_a_string"
            )
        if not text or text.isspace():
            raise _NoteRefusedError(EMPTY)
        date = 0 if self._date is None else self._parse_time(value_at(note, self._date, _ABSENT))
        return Note(record.row, number, patient, self._render_header(record.value, note), text, date)

    def _render_header(self, record: Mapping[str, Any], note: Mapping[str, Any]) -> str:
        try:
            values = {name: _read_value(record, path) for name, path in self._patient_fields.items()}
            values |= {name: _read_value(note, path) for name, path in self._note_fields.items()}
            return self._template(values)
        except MissingFieldError:
            reason = MISSING_METADATA
        except RenderError:
            reason = "bad_metadata"
        raise _NoteRefusedError(reason)

    def _parse_time(self, value: Any) -> int:
        try:
            if isinstance(value, str):
                moment = _parse_date(value, self._date_format)
                # Treat a date without an offset as UTC, because the machine's time zone must not affect the order of
                # notes. Compute with integers, because a float of seconds would be rounded.
                aware_time = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
                return (aware_time.days * 86_400 + aware_time.seconds) * 1_000_000 + aware_time.microseconds
            # Numbers are seconds. Below this bound, the number of microseconds fits into the spool's int64.
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12:
                return int(value * 1_000_000)
        except (ValueError, OverflowError):
            pass
        raise _NoteRefusedError("bad_date")


def _parse_date(value: str, date_format: str | None) -> datetime:
    return datetime.fromisoformat(value) if date_format is None else datetime.strptime(value, date_format)


def _read_value(record: Mapping[str, Any], path: str) -> str | None:
    value = value_at(record, path, _ABSENT)
    return None if value is _ABSENT else convert_to_text(value)
