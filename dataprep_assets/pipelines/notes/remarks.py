"""Remarks on notes before packing, for `dataprep check` and the beginning of `dataprep run`.

The checks are cheap: they read a local tokenizer, the patient key, the retraction list, a folder's listing, and the
first records of some months. Remarks never contain a source file's name, a patient or a key.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, OutOfMemoryError, SourceError, TokenizerError, os_error_reason
from dataprep_assets.formats.tensorflow import array_record
from dataprep_assets.pipelines.notes.cohorts.cohort_source import CohortFile, build_missing_file_error, list_cohorts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.notes_plan import find_pad_id
from dataprep_assets.pipelines.notes.retractions import read_entries
from dataprep_assets.sources.cohorts import PatientRecord
from dataprep_assets.sources.readers.first_rows import ROWS, sample_files
from dataprep_assets.sources.readers.unreadable import describe_place
from dataprep_assets.stream.declaration import LocalSource
from dataprep_assets.stream.source import is_mirrored
from dataprep_assets.stream.tokenizer import find_local_tokenizer, find_separator_remarks
from dataprep_assets.tokenization.bundle import TokenizerBundle


def find_notes_remarks(notes: NotesDeclaration) -> Iterator[Remark]:
    """Yield remarks on the tokenizer and its tokens, the patient key, the retraction list, and the months."""
    try:
        bundle = find_local_tokenizer(notes.tokenizer, notes.document.special_tokens)
    except TokenizerError as error:
        yield Remark(keys=("tokenizer",), sentence=str(error))
        bundle = None
    if bundle is not None:
        yield from _check_tokens(notes, bundle)
    try:
        key = notes.patient_key.load()
    except ConfigError as error:
        yield Remark(keys=("patient_key",), sentence=str(error))
    else:
        try:
            read_entries(notes.retractions, key)
        except ConfigError as error:
            yield Remark(keys=("retractions",), sentence=str(error))
    if "array_record" in notes.formats:
        try:
            array_record.require()
        except ConfigError as error:
            yield Remark(keys=("formats",), sentence=str(error))
    if not is_mirrored(notes.source):
        yield from _check_months(notes)


def _check_tokens(notes: NotesDeclaration, bundle: TokenizerBundle) -> Iterator[Remark]:
    remarks = list(
        find_separator_remarks(
            bundle, notes.document.separator, notes.document.special_tokens, ("document", "separator")
        )
    )
    yield from remarks
    try:
        bos = bundle.choose_bos(notes.document.bos, notes.document.special_tokens)
    except TokenizerError as error:
        yield Remark(keys=("document", "bos"), sentence=str(error))
        return
    # Skip the check of the pad after an error, because this check needs the separator.
    if any(not remark.hint for remark in remarks):
        return
    try:
        separator = bundle.choose_separator(notes.document.separator, notes.document.special_tokens).id
        find_pad_id(notes, bundle, separator_id=separator, bos_id=bos.id if bos else None)
    except (ConfigError, TokenizerError) as error:
        yield Remark(keys=("pad",), sentence=str(error))


def _check_months(notes: NotesDeclaration) -> Iterator[Remark]:
    """Yield remarks on a folder that cannot be listed and on declared months without a cohort file."""
    if isinstance(notes.source, LocalSource) and not notes.source.path.is_dir():
        sentence = f"source.path: {notes.source.path}: folder does not exist"
        yield Remark(keys=("source", "path"), sentence=sentence, of_source=True)
        return
    try:
        cohorts = list_cohorts(notes)
    except SourceError as error:
        yield Remark(keys=("source",), sentence=str(error), of_source=True)
        return
    yield from _check_files(list(cohorts.values()))
    if missing := [month for month in notes.months.expected_keys if month not in cohorts]:
        yield Remark(keys=("months",), sentence=str(build_missing_file_error(missing)), of_source=True)


def _check_files(cohorts: Sequence[CohortFile]) -> Iterator[Remark]:
    """Yield remarks on files whose content does not match their name, for a sample of months."""
    for cohort in sample_files(cohorts):
        if (fault := _find_fault(cohort)) is not None:
            yield Remark(keys=("source",), sentence=fault, of_source=True)
            return


def _find_fault(cohort: CohortFile) -> str | None:
    """Describe the defect of a month's first records if all are unreadable; return None if any can be read."""
    try:
        reader = cohort.open_reader(cohort.fetch())
        first_record = None
        for record in islice(reader, ROWS):
            if isinstance(record, PatientRecord):
                return None
            first_record = first_record or record
    except (SourceError, OutOfMemoryError) as error:
        return str(error)
    except OSError as error:
        return f"{cohort.month}: {os_error_reason(error)}"
    return None if first_record is None else str(reader.build_unreadable_error(describe_place(first_record)))
