"""Cohort files of a declared source: the file of each month, and its path on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import SourceError, count_of
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data, hide_source_names
from dataprep_assets.planning.manifest import ManifestEntry, SourceFile, is_hidden
from dataprep_assets.sources.cohorts import CohortReader, find_cohorts, find_compression, parse_month
from dataprep_assets.stream.source import open_source


@dataclass(frozen=True)
class CohortFile:
    """The file of one month in the source's listing; messages and `repr` never contain its name."""

    notes: NotesDeclaration
    month: str
    listed: SourceFile

    def __repr__(self) -> str:
        return f"CohortFile({self.month})"

    @property
    def bytes(self) -> int:
        """Size of the file as stored, in bytes."""
        return self.listed.size_bytes

    def fetch(self) -> Path:
        """Download the file if it is remote and return its local path; SourceErrors do not contain its name."""
        access = open_source(self.notes.source)
        file = self.listed
        # Build a manifest entry, because sources fetch only such entries. Notes have no manifest, so the fields of the
        # shard plan stay empty.
        entry = ManifestEntry(
            ordinal=0,
            split="",
            chunk="",
            file_index=0,
            path=file.relpath,
            relpath=file.relpath,
            size_bytes=file.size_bytes,
            compression=find_compression(file.relpath),
            format=self.notes.cohorts.format,
            sha256=file.sha256,
            etag=file.etag,
            commit=None,
        )
        with hide_source_names(self.month):
            access.fetch([entry])
            return access.path(entry)

    def open_reader(self, path: Path) -> CohortReader:
        """Return a reader of the downloaded file; its messages contain the month."""
        return CohortReader(
            path,
            self.notes.cohorts.format,
            find_compression(self.listed.relpath),
            self.month,
            self.notes.bad_records.max_record_bytes,
        )


def list_cohorts(notes: NotesDeclaration) -> Mapping[str, CohortFile]:
    """Return month → file for the declared months with a file, in order.

    Raises SourceError if the source cannot be listed, if two files have the same month, or if a month of
    `months.allow_missing` has a file.
    """
    # Hide file names, because a source's errors may contain them. Errors of `find_cohorts` contain only months, which
    # may be shown.
    with hide_source_names(notes.dataset, lambda relpath: parse_month(relpath, notes.cohorts.pattern)):
        source_files = open_source(notes.source).list().files
        files = [file for file in source_files if is_hidden(notes.cohorts.pattern) or not is_hidden(file.relpath)]
    with hide_quoted_data(notes.dataset):
        cohort_files = find_cohorts(
            files, notes.cohorts.pattern, notes.months.expected_keys, notes.months.allow_missing
        )
    return {month: CohortFile(notes, month, file) for month, file in cohort_files.items()}


def build_missing_file_error(months: list[str]) -> SourceError:
    """Return the error for declared months without a file."""
    names = ", ".join(months[:8]) + (", …" if len(months) > 8 else "")
    return SourceError(
        f"{count_of(len(months), 'declared month has', 'declared months have')} no file in the source: {names}. Add "
        "the files, correct cohorts.pattern, or list the months in months.allow_missing"
    )
