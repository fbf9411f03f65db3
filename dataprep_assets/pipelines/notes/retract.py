"""Finds the patients of a dataset of notes that a list of ids names, by the digests of its months, and counts by month.

An id is read, digested with the patient key and discarded: it is in no message, list or result. Errors name a wrong
line of the list by its number.
"""

import json
from pathlib import Path

from dataprep_assets.documents.retractions import id_lines
from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.retraction import Held, NotFound, Retracted
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.packed_files import PACKED_COHORTS
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.reading import patient_digest
from dataprep_assets.pipelines.notes.retractions import add_patients, cohort_patients, retracted_patients
from dataprep_assets.stream.source import open_source


def read_patient_ids(path: Path, key: bytes) -> list[tuple[int, bytes]]:
    """Read a list of patients' ids: number of the line and digest of the id.

    A line is a plain id, or `{"patient": …}` with a string or an integer, as in the records.

    Args:
        path: The list.
        key: The patient key.

    Raises ConfigError for an empty list and, naming the line, for any other form.
    """
    return [(number, _digest(path, number, line, key)) for number, line in id_lines(path)]


def _digest(path: Path, number: int, line: bytes, key: bytes) -> bytes:
    found: object = None
    try:
        text = line.decode().strip()
        found = json.loads(text).get("patient") if text.startswith("{") else text
        if isinstance(found, str | int) and not isinstance(found, bool) and found != "":
            return patient_digest(key, str(found))
    except ValueError:  # not chained: it may quote the line
        pass
    raise ConfigError(f'--ids {path}: line {number}: give the id of a patient, or {{"patient": …}}')


def retract_patients(notes: NotesDeclaration, store: ArtifactStore, path: Path, *, strict: bool = False) -> Retracted:
    """Put the patients that a list of ids names on a dataset's retraction list.

    Args:
        notes: The dataset.
        store: Where its packed cohorts are.
        path: The list of ids.
        strict: Write nothing unless every patient is found, or was retracted before.

    Raises ConfigError for a list of ids, or a retraction list, that is empty or malformed, naming the line. A dataset
    that was never built holds no patients.
    """
    assert notes.retractions is not None, "a located declaration has a list"
    with unquoting(notes.dataset):
        return _retract(notes, store, path, notes.retractions, strict=strict)


def _retract(notes: NotesDeclaration, store: ArtifactStore, path: Path, listing: Path, *, strict: bool) -> Retracted:
    key = notes.patient_key.load()
    given = read_patient_ids(path, key)
    wanted = {digest for _, digest in given}
    dropped = set(retracted_patients(listing, key))
    held: set[bytes] = set()
    months, files = [], set()
    expected = notes.months.expected
    left = [month for month in store.partitions(notes.dataset, PACKED_COHORTS) if month not in expected]
    artifacts = [notes.artifact(PACKED_COHORTS, month) for month in (*expected, *left)]
    for artifact, receipt in zip(artifacts, store.receipts(artifacts), strict=True):
        if receipt is None:
            continue
        of_month = cohort_patients(store, artifact, receipt)
        dropped |= of_month.left_out
        if here := wanted & of_month.held:
            held |= here
            files.add(receipt.inputs["cohort"])
            month = str(artifact.partition)
            months.append(Held(partition=month, counts=(len(here),), planned=month in expected))
    not_found = tuple(NotFound(line=n) for n, digest in given if digest not in held and digest not in dropped)
    source = open_source(notes.source)
    return Retracted(
        list=listing,
        given=len(given),
        already=sum(digest in dropped and digest not in held for _, digest in given),
        found=len(held),
        added=add_patients(listing, key, () if strict and not_found else (digest for _, digest in given)),
        not_found=not_found,
        counted=("patient",),
        held=tuple(months),
        artifact=PACKED_COHORTS,
        partitions="month",
        kept="they stay on the list, and their notes are left out if they come later",
        files=frozenset(files),
        # the names of its files may name patients
        copies=(source.storage,) if source.mirrored and months else (),
    )
