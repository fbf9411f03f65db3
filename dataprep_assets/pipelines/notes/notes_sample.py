"""The documents of a dataset of notes on which its engine is certified.

The sample has notes and headers from up to six cohorts, including the first and the last. The certificate contains only
counts and names of classes.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path

from dataprep_assets.errors import CorruptSourceError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value, sha256_file
from dataprep_assets.pipelines.notes.cohorts.cohort_source import CohortFile, list_cohorts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.note_tokens import encoded_text
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.reading import Note, read_notes
from dataprep_assets.stream.engine_certificate import (
    CHARACTERS_PER_DOCUMENT,
    ENGINE_CERTIFICATE,
    CertifiedEngine,
    Sample,
)

COHORTS_SAMPLED = 6
NOTES_PER_COHORT = 100


def notes_engine(notes: NotesDeclaration) -> CertifiedEngine:
    """The engine to certify for a dataset of notes, on its own notes."""
    return CertifiedEngine(
        dataset=notes,
        tokenizer=notes.tokenizer,
        special_tokens=notes.document.special_tokens,
        separator=notes.document.separator,
        sample=partial(_sample, notes),
    )


def _sample(notes: NotesDeclaration, store: ArtifactStore) -> Sample:
    cohorts = _sampled_cohorts(notes)
    digests, told = {}, notes.source_digests(notes.patient_key.load())
    for month, (_, path) in cohorts.items():
        with unquoting(month):
            digests[month] = told.digest_of(sha256_file(path))
    cohorts_read, template = notes.cohorts.model_dump(mode="json"), notes.template.key_parts()
    return Sample(
        kind="notes_engine_certificate",
        parts=[[cohorts_read, template], digests],
        # Only digests, because the pattern may contain names of source files; one for all cohorts, which need not be
        # distinguished.
        sources={
            "sampled cohorts": digest_value(digests),
            "cohorts.pattern": digest_value(cohorts_read["pattern"]),
        },
        settings={
            "cohorts": {name: value for name, value in cohorts_read.items() if name != "pattern"},
            "template": template,
        },
        months=list(cohorts),
        texts=lambda: _texts(notes, cohorts),
        guard=partial(unquoting, ENGINE_CERTIFICATE),
    )


def _sampled_cohorts(notes: NotesDeclaration) -> Mapping[str, tuple[CohortFile, Path]]:
    """The cohorts of the sample, fetched."""
    found = list(list_cohorts(notes).values())
    count = min(len(found), COHORTS_SAMPLED)
    # evenly spread, the first and the last among them; `max` is for a single month
    chosen = [found[(len(found) - 1) * i // max(1, count - 1)] for i in range(count)]
    return {file.month: (file, file.fetch()) for file in chosen}


def _texts(notes: NotesDeclaration, sample: Mapping[str, tuple[CohortFile, Path]]) -> Iterator[str]:
    """Headers and notes. A cohort that cannot be read is skipped here and refused when it is packed."""
    fields, template, key = notes.cohorts.fields, notes.header_template(), notes.patient_key.load()
    for month, (file, path) in sample.items():
        try:
            found = read_notes(file.reader(path), fields, template, key=key, month=month)
            for note in islice((note for note in found if isinstance(note, Note)), NOTES_PER_COHORT):
                text = encoded_text(note.header, note.text[:CHARACTERS_PER_DOCUMENT], notes.template.encode)
                yield from (note.header, text)
        except CorruptSourceError:
            continue
