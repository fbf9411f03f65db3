"""Retraction list of a dataset of notes.

The list contains patients whose notes must not be in the dataset (after an objection or withdrawn consent), and single
notes (such as a note that was filed with the wrong patient). It is a JSON Lines file next to the YAML, like a corpus's
list. `dataprep retract` writes it::

    {"patient": "9e3779b97f4a7c15f39cc0605cedc834", "key": "3b1c8f0e5d2a9746"}
    {"patient": "9e3779b97f4a7c15f39cc0605cedc834", "note": "1f83d9abfb41bd6b5be0cd19137e2179", "key": …}

`patient` is the keyed digest of the patient's id, as in `patients.bin`. `note` is the keyed digest of the note's text.
`key` is the digest of the key. The list never contains ids. It also contains no positions in a file, because an edit of
the file would change them. In memory, an entry is the patient's digest, followed by the note's digest for a single
note.

A month's key contains only the entries that apply to the month, so new entries rebuild only the months with these
patients. The month's own files list the entries that applied: `patients.bin` has the patients in the rows,
`retracted.bin` the patients whose notes were left out, and `retracted_notes.bin` the single notes.
"""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.curation.retractions import append_lines
from dataprep_assets.errors import ConfigError, DataprepError, count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.cohorts.packed_files import (
    PACKED_COHORTS,
    PATIENTS,
    RETRACTED_NOTES,
    RETRACTED_PATIENTS,
    read_patients,
)
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.patient_key import digest_key
from dataprep_assets.pipelines.notes.reading import DIGEST_BYTES
from dataprep_assets.stores.files import digest_value


def read_entries(path: Path | None, key: bytes) -> frozenset[bytes]:
    """Return the entries of a retraction list; empty if the file does not exist.

    Args:
        path: The list.
        key: The patient key; the digests must have been computed with it.

    Raises ConfigError, naming the line, for a line that is not a retraction or was written with a different key.
    """
    if path is None or not path.exists():
        return frozenset()
    return frozenset(
        _read_digest(path, number, line, digest_key(key))
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if line.strip()
    )


def _read_digest(path: Path, number: int, line: bytes, key: str) -> bytes:
    try:
        value = load_untrusted_json(line)
        digest, line_key = bytes.fromhex(value["patient"]), value["key"]
        note = bytes.fromhex(value["note"]) if "note" in value else b""
        is_valid = len(digest) == DIGEST_BYTES and len(note) in (0, DIGEST_BYTES) and isinstance(line_key, str)
    except (ValueError, TypeError, KeyError):  # do not chain this error, because it may quote an id
        is_valid = False
    if not is_valid:
        raise ConfigError(
            f'{path}: line {number}: must be a retraction, e.g., {{"patient": "32 hex digits", "key": "16 hex '
            'digits"} (for a single note also "note": "32 hex digits"). Correct the line, or write the list with '
            "`dataprep retract`"
        )
    if line_key != key:
        raise ConfigError(
            f"{path}: line {number}: the digest was made with a different patient key. The dataset's key has the "
            f"digest {key}. Delete the line, and retract these patients again with the current key"
        )
    return digest + note


def add_retractions(path: Path, key: bytes, digests: Iterable[bytes]) -> int:
    """Add new entries to a list atomically; return the number of new entries.

    Args:
        path: The list, which is created if it does not exist.
        key: The patient key.
        digests: The entries to add, computed with the patient key.

    Raises the errors of `read_entries` and `append_lines`.
    """
    entries = dict.fromkeys(digests)

    def build_missing_lines() -> list[dict[str, str]]:
        listed_entries = read_entries(path, key)
        return [
            _build_line(entry[:DIGEST_BYTES], entry[DIGEST_BYTES:], key)
            for entry in entries
            if entry not in listed_entries
        ]

    return append_lines(path, build_missing_lines)


def _build_line(patient: bytes, note: bytes, key: bytes) -> dict[str, str]:
    return {"patient": patient.hex(), **({"note": note.hex()} if note else {}), "key": digest_key(key)}


@dataclass(frozen=True, kw_only=True)
class CohortPatients:
    """Digests of a packed cohort's patients and retracted notes.

    `held` has the patients in the rows, `left_out` the retracted patients, and `notes` the single retracted notes.
    """

    held: frozenset[bytes]
    left_out: frozenset[bytes]
    notes: frozenset[bytes] = frozenset()

    def has_patient(self, entry: bytes) -> bool:
        """Return whether an entry must still be left out: its patient is in the rows and its note was not left out."""
        return entry[:DIGEST_BYTES] in self.held and entry not in self.notes

    @property
    def emptied(self) -> frozenset[bytes]:
        """Patients whose notes were all retracted individually."""
        return frozenset(note[:DIGEST_BYTES] for note in self.notes) - self.held

    def __repr__(self) -> str:
        return f"CohortPatients({len(self.held)}, {len(self.left_out)})"


def read_cohort_patients(store: ArtifactStore, cohort: Artifact, receipt: Receipt) -> CohortPatients:
    """Return the patients and retractions of a finished cohort; raise FormatError for a damaged file.

    Args:
        store: Store of the cohort.
        cohort: The cohort's artifact.
        receipt: The cohort's receipt.
    """
    widths = {PATIENTS: DIGEST_BYTES, RETRACTED_PATIENTS: DIGEST_BYTES, RETRACTED_NOTES: 2 * DIGEST_BYTES}
    # Compare only the file name, because each of several splits has its own folder with a `patients.bin`.
    names = [file.path for file in receipt.files if PurePosixPath(file.path).name in widths]
    directory = store.local(cohort, names)
    digests_by_file: dict[str, set[bytes]] = {name: set() for name in widths}
    for path in names:
        name = PurePosixPath(path).name
        digests_by_file[name].update(digest.tobytes() for digest in read_patients(directory / path, widths[name]))
    return CohortPatients(
        held=frozenset(digests_by_file[PATIENTS]),
        left_out=frozenset(digests_by_file[RETRACTED_PATIENTS]),
        notes=frozenset(digests_by_file[RETRACTED_NOTES]),
    )


def find_matching_retractions(listed_keys: Set[bytes], cohort_patients: CohortPatients) -> tuple[str, ...]:
    """Return the entries among `listed_keys` that apply to a cohort, as sorted hex strings.

    A note's entry applies to every cohort with the note's patient, because its cohort is unknown before packing.
    """
    patients = cohort_patients.held | cohort_patients.left_out
    # Also match patients whose notes were all retracted individually (`emptied`), because these patients are neither
    # in `held` nor in `left_out`.
    listed_digests = cohort_patients.notes | cohort_patients.emptied
    return tuple(
        sorted(entry.hex() for entry in listed_keys if entry[:DIGEST_BYTES] in patients or entry in listed_digests)
    )


def summarize_entries(entries: Sequence[str]) -> str:
    """Summarize hex entries for a recipe as counts and one digest, because receipts have no patients' digests."""
    # Hex has two digits per byte, and a note's entry is twice as long as a patient's.
    patients = sum(len(entry) == 2 * DIGEST_BYTES for entry in entries)
    notes = f" and {count_of(len(entries) - patients, 'note')}" if patients < len(entries) else ""
    return f"{count_of(patients, 'patient')}{notes} ({digest_value(list(entries))[:16]})"


def find_current_retractions(store: ArtifactStore, cohort: Artifact, listed_keys: Set[bytes]) -> tuple[str, ...]:
    """Return the entries of the list that apply to the current cohort, as sorted hex strings.

    The result is empty for a missing or unreadable cohort. Such a cohort is built anyway, and its files then list the
    entries that applied.

    Args:
        store: Store of the cohort.
        cohort: The cohort's artifact.
        listed_keys: Entries of the list.
    """
    if not listed_keys:
        return ()
    try:
        receipt = store.receipt(cohort)
        if receipt is None:
            return ()
        patients = read_cohort_patients(store, cohort, receipt)
    except (DataprepError, OSError):
        return ()
    return find_matching_retractions(listed_keys, patients)


def find_retracted_artifacts(
    notes: NotesDeclaration, store: ArtifactStore, unplanned: Iterable[Artifact]
) -> list[Artifact]:
    """Return the obsolete artifacts that contain or may contain retracted notes; packed cohorts come last.

    An incomplete artifact may contain retracted notes. Shards are judged by the packed cohort of their month.

    Args:
        notes: The dataset, with its retraction list and the patient key of the list's digests.
        store: Store of the artifacts.
        unplanned: Obsolete artifacts, which are not part of a plan.
    """
    if notes.retractions is None or not notes.retractions.exists():
        return []
    # Load the key only if there are artifacts.
    unplanned_artifacts = list(unplanned)
    entries = read_entries(notes.retractions, notes.patient_key.load()) if unplanned_artifacts else frozenset[bytes]()

    def is_affected(artifact: Artifact) -> bool:
        packed_cohort = replace(artifact, name=PACKED_COHORTS)
        try:
            receipt = store.receipt(packed_cohort)
            # Treat shards of an earlier build of the cohort as affected, because they may contain patients that the
            # current cohort leaves out.
            if receipt is None or not (artifact == packed_cohort or is_built_from(artifact, receipt)):
                return True
            return any(map(read_cohort_patients(store, packed_cohort, receipt).has_patient, entries))
        except (DataprepError, OSError):
            return True

    def is_built_from(artifact: Artifact, cohort: Receipt) -> bool:
        artifact_receipt = store.receipt(artifact)
        return artifact_receipt is not None and cohort.content in artifact_receipt.inputs.values()

    artifacts = [artifact for artifact in unplanned_artifacts if is_affected(artifact)] if entries else []
    return sorted(artifacts, key=lambda artifact: artifact.name == PACKED_COHORTS)
