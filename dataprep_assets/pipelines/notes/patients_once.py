"""Refuses a patient in several months before the first month is packed.

The directory of all months would refuse it (`tfds_directory`), but only after hours of packing. Here the
patients of months that are not packed yet are read from the source, without a note being rendered or encoded, and those
of packed months from their `patients.bin`.

Entry point: `require_patients_once`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import DataprepError, IntegrityError
from dataprep_assets.graph.finding import first_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.packed_cohort import PackedCohort
from dataprep_assets.pipelines.notes.packed_files import PACKED_COHORTS
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.reading import DIGEST_BYTES, Note, note_digest, patients_with_text, read_notes
from dataprep_assets.pipelines.notes.retractions import cohort_patients

Digests = NDArray[np.void]


def require_patients_once(notes: NotesDeclaration, store: ArtifactStore, cohorts: Sequence[PackedCohort]) -> None:
    """Raise IntegrityError naming the months that share patients, unless ``notes`` allow it or nothing is left to pack.

    ``cohorts`` are those of the run; ``store`` has those that were packed before. An unreadable file is ignored here:
    packing it reports what is wrong.
    """
    if notes.duplicate_patients != "fail":
        return
    packed = _packed(notes, store)
    # a month without a file fails by itself when it is packed
    in_run = {cohort.month: cohort for cohort in cohorts if cohort.file is not None}
    todo = [month for month in in_run if month not in packed]
    if not todo:
        return
    of_month = packed | {month: _of_source(in_run[month]) for month in todo}
    if not (months := _sharing(of_month)):
        return
    # A record counted above may have no note that is kept, and a packed month may be packed anew in this run: what it
    # has of them now is read completely before anything is refused.
    of_month |= {month: _of_notes(in_run[month]) for month in months if month in in_run}
    if months := _sharing(of_month):
        every = np.concatenate([of_month[month] for month in months])
        twice = int(np.count_nonzero(np.unique(every, return_counts=True)[1] > 1))
        raise IntegrityError(
            f"{notes.dataset}: patients in several cohorts: {twice}, of {first_of(months, 8)}. Nothing was packed. "
            "Correct the source, or declare `duplicate_patients: allow`"
        )


def _packed(notes: NotesDeclaration, store: ArtifactStore) -> dict[str, Digests]:
    """Month → the patients in its rows, for the packed months."""
    found = {}
    artifacts = [notes.artifact(PACKED_COHORTS, month) for month in notes.months.expected]
    for artifact, receipt in zip(artifacts, store.receipts(artifacts), strict=True):
        if receipt is not None and artifact.partition is not None:
            found[artifact.partition] = _array(cohort_patients(store, artifact, receipt).held)
    return found


def _of_source(cohort: PackedCohort) -> Digests:
    """The patients of a month's file who have a note with text, even if it has other defects."""
    return _array(_read(cohort, whole=False))


def _of_notes(cohort: PackedCohort) -> Digests:
    """The patients of a month's file who have a note that would be packed."""
    return _array(_read(cohort, whole=True))


def _read(cohort: PackedCohort, *, whole: bool) -> set[bytes]:
    found: set[bytes] = set()
    with suppress(DataprepError), unquoting(cohort.month):
        found.update(_digests(cohort, whole=whole))
    return found - cohort.plan.retracted


def _digests(cohort: PackedCohort, *, whole: bool) -> Iterator[bytes]:
    assert cohort.file is not None
    notes, key = cohort.plan.notes, cohort.plan.key
    reader, fields, template = cohort.file.reader(cohort.file.fetch()), notes.cohorts.fields, notes.header_template()
    if not whole:
        yield from patients_with_text(reader, fields, template, key=key, month=cohort.month)
        return
    for item in read_notes(reader, fields, template, key=key, month=cohort.month):
        if isinstance(item, Note) and note_digest(key, item) not in cohort.plan.retracted:
            yield item.patient


def _array(digests: frozenset[bytes] | set[bytes]) -> Digests:
    return np.frombuffer(b"".join(sorted(digests)), np.dtype((np.void, DIGEST_BYTES)))


def _sharing(of_month: Mapping[str, Digests]) -> list[str]:
    """The months, in order, that have a patient of another one."""
    # with an empty array, because concatenate refuses none at all
    every = np.concatenate([*of_month.values(), np.zeros(0, np.dtype((np.void, DIGEST_BYTES)))])
    distinct, counts = np.unique(every, return_counts=True)
    twice = distinct[counts > 1]
    return sorted(month for month, digests in of_month.items() if twice.size and np.isin(digests, twice).any())
