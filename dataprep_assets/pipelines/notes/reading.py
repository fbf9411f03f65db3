"""Reads the notes from a cohort's records; anything that cannot be a note is counted by reason.

A note is its text, its rendered header, its date and its patient's keyed digest; ids, names and metadata do not leave
this module. A defect of a patient's record drops all its notes, a defect of a note only that note.

Entry points: `read_notes`, `patient_digest`, `note_digest`, `DEFECTS`.
"""

import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dataprep_assets.fields import value_at
from dataprep_assets.pipelines.notes.declaration import OBJECT_KEY, NoteFields
from dataprep_assets.pipelines.notes.rendering import CannotRenderError, HeaderTemplate, MissingFieldError, as_text
from dataprep_assets.sources.cohorts import CohortReader, PatientRecord
from dataprep_assets.sources.readers.row_files import BadRecord

EMPTY = "empty_note"
"""A note without text, or with only white space: dropped under every policy, and not a defect."""
MISSING_METADATA = "missing_metadata"
"""A header without one of its fields: `template.missing` says whether it is a defect."""
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
"""Reasons for which the policy of bad records decides."""

DIGEST_BYTES = 16
# a key that is not there; None is JSON's null, which has reasons of its own
_ABSENT: Any = object()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_AND_MONTH = re.compile(r"\d{4}-\d{2}")


@dataclass(frozen=True, slots=True)
class Note:
    """One note. `record` and `number` are its place in the cohort, from 1; `date` is microseconds since 1970, UTC."""

    record: int
    number: int
    patient: bytes = field(repr=False)
    header: str = field(repr=False)
    text: str = field(repr=False)
    date: int = field(repr=False)


@dataclass(frozen=True, slots=True)
class DroppedNote:
    """Dropped notes: where, why, how many. `number` is 0 for a whole record; an unreadable one counts as one note."""

    record: int
    number: int
    byte: int
    reason: str
    notes: int = 1


@dataclass(frozen=True, slots=True)
class RecordStart:
    """A patient's record without a defect; its notes follow."""

    patient: bytes = field(repr=False)
    notes: int


def patient_digest(key: bytes, patient_id: str) -> bytes:
    """The digest of a patient, 16 bytes: the start of HMAC-SHA256 of the id in UTF-8."""
    # The word before it keeps digests of patients, of notes and of the key itself apart.
    return hmac.digest(key, b"patient\0" + patient_id.encode(), "sha256")[:DIGEST_BYTES]


def note_digest(key: bytes, note: Note) -> bytes:
    """The digest of a note, 32 bytes: its patient's, and 16 of an HMAC-SHA256 of its text. Equal notes have one."""
    # With the patient: a text that several patients have is another entry for each.
    return note.patient + hmac.digest(key, b"note\0" + note.patient + note.text.encode(), "sha256")[:DIGEST_BYTES]


class _NoteRefusedError(Exception):
    """Carries only the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_notes(
    reader: CohortReader, fields: NoteFields, template: HeaderTemplate, *, key: bytes, month: str
) -> Iterator[RecordStart | Note | DroppedNote]:
    """The notes of a cohort in source order; each patient's follow an `RecordStart`.

    ``fields`` says where the parts of a record are, ``template`` renders the header, ``key`` is the secret of
    `patient_digest`; a declared birth date must be in ``month`` (`YYYY-MM`). A record or note that cannot be
    used is yielded as `DroppedNote`. Raises what the reader raises.
    """
    patients: set[bytes] = set()
    parts = _Parts(fields, template, key, month)
    for record in reader:
        if isinstance(record, BadRecord):
            yield DroppedNote(record.row, 0, record.byte, record.reason)
            continue
        try:
            # Before the patient: a record that is refused for its patient counts with all of its notes.
            notes = parts.notes(record)
        except _NoteRefusedError as refused:
            yield DroppedNote(record.row, 0, record.byte, refused.reason)
            continue
        try:
            patient = parts.patient(record)
            # where each record is one note, a patient has several
            if fields.notes is not None and patient in patients:
                raise _NoteRefusedError("duplicate_patient")
        except _NoteRefusedError as refused:
            # as one note at least: what is dropped has to be in the count of what was read
            yield DroppedNote(record.row, 0, record.byte, refused.reason, max(1, len(notes)))
            continue
        # only now: a record that is refused does not make a later one of the same patient a duplicate
        patients.add(patient)
        yield RecordStart(patient, len(notes))
        for number, note in enumerate(notes, 1):
            try:
                yield parts.note(record, number, note, patient)
            except _NoteRefusedError as refused:
                yield DroppedNote(record.row, number, record.byte, refused.reason)


class _Parts:
    """Finds the declared parts of a record."""

    def __init__(self, fields: NoteFields, template: HeaderTemplate, key: bytes, month: str) -> None:
        self._template, self._key, self._month = template, key, month
        self._id = None if fields.patient_id == OBJECT_KEY else fields.patient_id
        self._notes = None if fields.notes is None else fields.notes
        self._text = fields.text
        self._date = None if fields.date is None else fields.date
        self._date_format = fields.date_format
        self._birth = None if fields.birth_date is None else fields.birth_date
        # what the header does not use may be missing or of any kind
        self._of_patient = {n: p for n, p in fields.patient.items() if n in template.used}
        self._of_note = {n: p for n, p in fields.note.items() if n in template.used}

    def patient(self, record: PatientRecord) -> bytes:
        value = record.key if self._id is None else value_at(record.value, self._id, _ABSENT)
        if value is _ABSENT or value is None or value == "":
            raise _NoteRefusedError("missing_patient_id")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise _NoteRefusedError("bad_patient_id")
        if self._birth is not None and self._birth_month(value_at(record.value, self._birth, _ABSENT)) != self._month:
            raise _NoteRefusedError("wrong_birth_month")
        # 7 and "7" are one patient, in records and in lists of ids alike
        return patient_digest(self._key, str(value))

    def _birth_month(self, value: Any) -> str:
        if not isinstance(value, str):
            raise _NoteRefusedError("bad_birth_date")
        # also `YYYY-MM` alone, which fromisoformat refuses
        if self._date_format is None and _YEAR_AND_MONTH.match(value):
            return value[:7]
        try:
            return _parsed(value, self._date_format).strftime("%Y-%m")
        except ValueError:
            failed = True
        # Raised outside of the handler: the error that quotes the date must not be the context of this one.
        assert failed
        raise _NoteRefusedError("bad_birth_date")

    def notes(self, record: PatientRecord) -> list[Any]:
        if self._notes is None:
            return [record.value]
        notes = value_at(record.value, self._notes, _ABSENT)
        if notes is _ABSENT:
            raise _NoteRefusedError("missing_notes")
        if notes is not None and not isinstance(notes, list):
            raise _NoteRefusedError("notes_not_a_list")
        # null is a list without notes: the patient is counted as one who has none
        return notes or []

    def note(self, record: PatientRecord, number: int, note: Any, patient: bytes) -> Note:
        if not isinstance(note, dict):
            raise _NoteRefusedError("note_not_an_object")
        text = value_at(note, self._text, _ABSENT)
        if not isinstance(text, str):
            raise _NoteRefusedError(
                "missing_text" if text is _ABSENT else "null_text" if text is None else "text_not_a_string"
            )
        if not text or text.isspace():
            raise _NoteRefusedError(EMPTY)
        date = 0 if self._date is None else self._when(value_at(note, self._date, _ABSENT))
        return Note(record.row, number, patient, self._header(record.value, note), text, date)

    def _header(self, record: Mapping[str, Any], note: Mapping[str, Any]) -> str:
        try:
            values = {name: _value(record, path) for name, path in self._of_patient.items()}
            values |= {name: _value(note, path) for name, path in self._of_note.items()}
            return self._template(values)
        except MissingFieldError:
            reason = MISSING_METADATA
        except CannotRenderError:
            reason = "bad_metadata"
        raise _NoteRefusedError(reason)

    def _when(self, value: Any) -> int:
        try:
            if isinstance(value, str):
                moment = _parsed(value, self._date_format)
                # Without an offset it is UTC: the machine's zone must not order notes. In integers, because a float of
                # seconds would be rounded.
                since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
                return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
            # seconds; below this bound their microseconds fit in the spool's int64
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12:
                return int(value * 1_000_000)
        except (ValueError, OverflowError):
            pass
        raise _NoteRefusedError("bad_date")


def _parsed(value: str, date_format: str | None) -> datetime:
    return datetime.fromisoformat(value) if date_format is None else datetime.strptime(value, date_format)


def _value(record: Mapping[str, Any], path: str) -> str | None:
    value = value_at(record, path, _ABSENT)
    return None if value is _ABSENT else as_text(value)
