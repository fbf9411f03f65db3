"""Asks the source of notes for changes: which months have a file, and of what size."""

from functools import partial

from dataprep_assets.engine.staleness.source_watch import SourceIdentity, SourceWatch, identity_of, in_words, time_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.notes.cohorts.cohort_source import CohortFile, list_cohorts
from dataprep_assets.pipelines.notes.cohorts.packed_files import PACKED_COHORTS
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.privacy import source_errors_without_names
from dataprep_assets.sources.access import LocalTree
from dataprep_assets.sources.upstream import UpstreamPartitions
from dataprep_assets.stream.source import open_source


def notes_watch(notes: NotesDeclaration) -> SourceWatch:
    """How the cohort files are asked for changes. Neither descriptions nor errors contain a file's name."""
    return SourceWatch(identity=partial(_identity, notes), changes=partial(_changes, notes))


def _identity(notes: NotesDeclaration, _: ArtifactStore) -> SourceIdentity:
    files = list_cohorts(notes)
    return identity_of(
        [[month, file.bytes] for month, file in files.items()],
        [[month, _stamp(notes, month, file)] for month, file in files.items()],
    )


def _stamp(notes: NotesDeclaration, month: str, file: CohortFile) -> int | str:
    """What reveals an edit that keeps the size: the file's modification time, or its version in the bucket."""
    access = open_source(notes.source)
    if not isinstance(access, LocalTree | UpstreamPartitions) or access.mirrored:
        return file.listed.etag or ""
    with source_errors_without_names(month):
        return time_of(access.path(file.listed), month)


def _changes(notes: NotesDeclaration, store: ArtifactStore) -> str:
    """The changes since the present cohorts, whose receipts have the sizes of their files."""
    files, months = list_cohorts(notes), notes.months.expected_keys
    receipts = store.receipts([notes.artifact(PACKED_COHORTS, month) for month in months])
    packed = {month: receipt for month, receipt in zip(months, receipts, strict=True) if receipt is not None}
    return in_words(
        [
            (len(files.keys() - packed.keys()), "cohort", "new"),
            (
                sum(
                    # an edit that keeps the size is told by the stamps
                    (ledger := packed[month].ledger) is not None and ledger.source_bytes != file.bytes
                    for month, file in files.items()
                    if month in packed
                ),
                "cohort",
                "changed",
            ),
        ]
    )
