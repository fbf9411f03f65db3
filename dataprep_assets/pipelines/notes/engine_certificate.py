"""The engine certificate of a dataset of notes, and the plan of its rows that follows from it.

The sample is of notes and headers of up to six cohorts, the first and the last among them. The certificate holds
counts and class names alone.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from dataprep_assets.errors import ConfigError, CorruptSourceError
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value, sha256_file
from dataprep_assets.integrity.receipt import Receipt, versions
from dataprep_assets.pipelines.corpus.engine_certificate import (
    CERTIFICATE,
    CHARACTERS_PER_DOCUMENT,
    FILES_SAMPLED,
    certified,
    load_bundle,
)
from dataprep_assets.pipelines.corpus.token_stream import StreamPlan
from dataprep_assets.pipelines.notes.cohort_source import CohortFile, list_cohorts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration, key_digest
from dataprep_assets.pipelines.notes.packed_rows import RowShape
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.reading import Note, read_notes
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import Certificate

__all__ = ["NotesPlan", "build_engine_certificate", "certificate_key", "load_certificate", "notes_plan"]

VERSION = 1
NOTES_PER_COHORT = 100


def _sampled(notes: NotesDeclaration) -> Mapping[str, tuple[CohortFile, Path]]:
    """The cohorts of the sample, fetched."""
    found = list(list_cohorts(notes).values())
    count = min(len(found), FILES_SAMPLED)
    chosen = [found[(len(found) - 1) * i // max(1, count - 1)] for i in range(count)]
    return {file.month: (file, file.fetch()) for file in chosen}


def certificate_key(notes: NotesDeclaration) -> str:
    """The key of the certificate: another tokenizer, mode, engine, library version or sampled file voids it."""
    return _key(notes, _sampled(notes))


def _key(notes: NotesDeclaration, sample: Mapping[str, tuple[CohortFile, Path]]) -> str:
    installed = versions()
    libraries = [installed[name] for name in ("fastokens", "tokenizers", "unicode")]
    asked = [notes.document.special_tokens, notes.tokenizer.engine, sorted(notes.tokenizer.refuse)]
    read = [notes.cohorts.model_dump(mode="json"), notes.template.model_dump(mode="json")]
    files = {}
    for month, (_, path) in sample.items():
        with unquoting(month):
            files[month] = sha256_file(path)
    digest = load_bundle(notes.tokenizer).digest
    return digest_value(["notes_engine_certificate", VERSION, digest, asked, libraries, read, files])


def build_engine_certificate(notes: NotesDeclaration, store: ArtifactStore) -> tuple[Receipt, bool]:
    """Certify the fastest engine that loads the tokenizer, on a sample of these notes, and commit the certificate.

    Returns the receipt and whether it was reused.
    """
    bundle = load_bundle(notes.tokenizer)
    sample = _sampled(notes)
    key = _key(notes, sample)

    def write(staged: Path) -> Written:
        with unquoting("engine_certificate"):
            certificate = certified(
                bundle, notes.tokenizer, notes.document.special_tokens, lambda: _texts(notes, sample)
            )
        (staged / CERTIFICATE).write_text(json.dumps(certificate.to_json(), indent=1, sort_keys=True) + "\n")
        return Written(
            inputs={"tokenizer": bundle.digest},
            facts={
                "engine": certificate.engine,
                "engine_version": certificate.engine_version,
                "reference_version": certificate.reference_version,
                "refused": list(certificate.refused),
                "reason": certificate.reason,
                "documents": sum(certificate.compared.values()),
                "months": list(sample),
            },
        )

    return ensure(notes.artifact("engine_certificate"), store, key, write)


def _texts(notes: NotesDeclaration, sample: Mapping[str, tuple[CohortFile, Path]]) -> Iterator[str]:
    """Headers and notes. A cohort that cannot be read is skipped here and refused when it is packed."""
    fields, template, key = notes.cohorts.fields, notes.header_template(), notes.patient_key.load()
    for month, (file, path) in sample.items():
        found = read_notes(file.reader(path), fields, template, key=key, month=month)
        try:
            for note in islice((note for note in found if isinstance(note, Note)), NOTES_PER_COHORT):
                yield from (note.header, note.text[:CHARACTERS_PER_DOCUMENT])
        except CorruptSourceError:
            continue


def load_certificate(notes: NotesDeclaration, store: ArtifactStore) -> Certificate:
    """The committed certificate; MissingArtifactError when it is not there."""
    directory = store.local(notes.artifact("engine_certificate"), [CERTIFICATE])
    return Certificate.from_json(json.loads((directory / CERTIFICATE).read_bytes()))


@dataclass(frozen=True, kw_only=True)
class NotesPlan:
    """All that decides the bytes of packed cohorts. Picklable; the same for every worker."""

    notes: NotesDeclaration
    stream: StreamPlan
    shape: RowShape
    tokenizer: str
    vocab_size: int
    key: bytes = field(repr=False)

    def key_parts(self) -> dict[str, Any]:
        """What of the plan enters the key of a cohort."""
        notes = self.notes
        declared = notes.model_dump(
            mode="json",
            include={"template", "row_length", "long_notes", "order", "packing", "splits", "layout", "bad_records"},
        )
        return declared | {
            # a list: shares are dealt out in the declared order
            "splits": list(notes.splits.items()),
            "format": notes.cohorts.format,
            "fields": notes.cohorts.fields.model_dump(mode="json"),
            "stream": self.stream.key_parts(),
            "shape": [list(self.shape.columns), self.shape.row_length, self.shape.pad_id],
            "pad_may_occur": notes.pad.may_occur,
            "patient_key": key_digest(self.key),
        }


def notes_plan(notes: NotesDeclaration, certificate: Certificate) -> NotesPlan:
    """The plan; ConfigError for a pad id that documents hold, and for a patient key that is not there."""
    bundle = load_bundle(notes.tokenizer)
    bos = bundle.bos(notes.document.bos)
    separator = bundle.separator(notes.document.separator).id
    stream = StreamPlan(
        tokenizer=bundle.directory,
        tokenizer_digest=bundle.digest,
        certificate=certificate.to_json(),
        special_tokens=notes.document.special_tokens,
        separator_id=separator,
        bos_id=bos.id if bos else None,
        dtype="uint32",
        text_field="",
        bad_records=notes.bad_records.policy,
        sample_rate=notes.sample_rate,
    )
    return NotesPlan(
        notes=notes,
        stream=stream,
        shape=RowShape(columns=notes.columns, row_length=notes.capacity, pad_id=pad_id(notes, bundle, stream)),
        tokenizer=bundle.name,
        vocab_size=bundle.vocab_size,
        key=notes.patient_key.load(),
    )


def pad_id(notes: NotesDeclaration, bundle: TokenizerBundle, stream: StreamPlan) -> int:
    """The pad id that ``notes`` declare, looked up in ``bundle``, the tokenizer.

    Raises ConfigError when it is not in the vocabulary; and, unless `may_occur` is declared, when documents encoded by
    ``stream`` can hold it.
    """
    pad = notes.pad
    found = bundle.token(pad.token, key="pad.token").id if pad.token is not None else pad.id
    assert found is not None
    if found >= bundle.vocab_size:
        raise ConfigError(f"pad.id: {found} is not below the {bundle.vocab_size} ids of {bundle.name}")
    if pad.may_occur:
        return found
    special = {token.id for token in bundle.special_tokens}
    why = None
    if found in (stream.separator_id, stream.bos_id):
        why = "ends or begins every document"
    elif found not in special:
        why = "is an ordinary token, which documents hold"
    elif stream.special_tokens == "match":
        why = "can come out of text with `special_tokens: match`"
    if why is not None:
        raise ConfigError(
            f"pad: id {found} {why}: a reader that masks by `!= pad` would lose real tokens. Choose an unused special "
            "token, or declare `may_occur: true`; segmentation is right in either case"
        )
    return found
