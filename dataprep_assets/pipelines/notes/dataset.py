"""Dataset classes of packed notes and of mixtures of packed notes: their artifacts and messages."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from dataprep_assets.engine.artifact.dataset import Dataset, MixtureShare
from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.card.card import build_card_specs
from dataprep_assets.engine.card.contents import (
    CardSource,
    CardSubject,
    CardTokenizer,
    Receipts,
    SplitCounts,
    add_attribution,
)
from dataprep_assets.engine.trace.retraction import RetractionResult
from dataprep_assets.engine.trace.trace import Tracer
from dataprep_assets.engine.yaml.mistakes import Keys, read_documents
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, CorruptSourceError, count_of
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.notes.cohorts.cohort_shards import build_cohort_shards_spec
from dataprep_assets.pipelines.notes.cohorts.cohort_source import CohortFile, list_cohorts
from dataprep_assets.pipelines.notes.cohorts.cohort_tracer import build_mixture_tracer, build_notes_tracer
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import build_packed_cohorts_spec
from dataprep_assets.pipelines.notes.cohorts.packed_files import PACKED_COHORTS, PackedCohortFacts, RowFacts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.note_tokens import join_for_encoding
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data
from dataprep_assets.pipelines.notes.reading import Note, read_notes
from dataprep_assets.pipelines.notes.remarks import find_notes_remarks
from dataprep_assets.pipelines.notes.replay.replay import build_combined_directory_spec
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets.pipelines.notes.retract import retract_patients
from dataprep_assets.pipelines.notes.tfds.linked_directory import DIRECTORIES, CombinedFacts, DirectoryFacts
from dataprep_assets.pipelines.notes.tfds.maxtext import (
    can_evaluate,
    format_combined_line,
    format_evaluation_line,
    format_maxtext_lines,
    warn_of_undeclared,
)
from dataprep_assets.pipelines.notes.tfds.tfds_directory import build_tfds_directory_spec
from dataprep_assets.project import read_project
from dataprep_assets.stores.files import digest_value, sha256_file
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.engine_certificate import (
    CHARACTERS_PER_DOCUMENT,
    ENGINE_CERTIFICATE,
    CertificateSample,
    CertifiedEngine,
    build_engine_certificate_spec,
    describe_engine,
    describe_engine_line,
)
from dataprep_assets.stream.source import describe_card_source
from dataprep_assets.stream.tokenizer import describe_boundary, describe_literals
from dataprep_assets.table import format_share

# The tokenizer of another dataset is read from that dataset's `defs.yaml`, because receipts do not contain the
# tokenizer's path.
#
# The entry point is `find_tokenizer_of_dataset`.


def find_tokenizer_of_dataset(folder: Path | None, dataset: str) -> str | None:
    """Return the folder or the Hugging Face Hub name of a dataset's tokenizer, from the dataset's `defs.yaml`.

    The search covers the project that contains ``folder``, which is the folder of a `defs.yaml`.
    Returns None if the project does not declare the dataset or the declaration is invalid, which the dataset's own
    commands report.
    """
    for path in _list_declarations(folder) if folder is not None else ():
        try:
            all_attributes = [document.attributes for document in read_documents(path)]
        except (ConfigError, OSError):
            continue
        for attributes in all_attributes:
            if isinstance(attributes, dict) and attributes.get("dataset") == dataset:
                try:
                    tokenizer = TokenizerDeclaration.model_validate(attributes.get("tokenizer")).resolve_paths(
                        path.parent
                    )
                except ValidationError:
                    return None
                return str(tokenizer.path or tokenizer.repo)
    return None


def _list_declarations(folder: Path) -> list[Path]:
    project = next((candidate for parent in folder.parents if (candidate := read_project(parent)) is not None), None)
    return sorted((folder.parent if project is None else project.defs).rglob("defs.yaml"))


# The engine of a dataset of notes is certified on notes and headers from up to six cohorts, including the first and the
# last. The certificate contains counts per class of text, but no text.

SAMPLED_COHORTS = 6
NOTES_PER_COHORT = 100


def notes_engine(notes: NotesDeclaration) -> CertifiedEngine:
    """Return the engine of a dataset of notes, to be certified on a sample of the dataset's own notes."""
    return CertifiedEngine(
        dataset=notes,
        tokenizer=notes.tokenizer,
        special_tokens=notes.document.special_tokens,
        separator=notes.document.separator,
        sample=partial(_draw_sample, notes),
    )


def _draw_sample(notes: NotesDeclaration, store: ArtifactStore) -> CertificateSample:
    cohorts = _fetch_sampled_cohorts(notes)
    digests, source_digests = {}, notes.source_digests(notes.patient_key.load())
    for month, (_, path) in cohorts.items():
        with hide_quoted_data(month):
            digests[month] = source_digests.digest_of(sha256_file(path))
    cohorts_read, template = notes.cohorts.model_dump(mode="json"), notes.template.key_parts()
    return CertificateSample(
        kind="notes_engine_certificate",
        parts=[[cohorts_read, template], digests],
        # Store only digests, because the pattern may contain names of source files. One digest covers all cohorts.
        sources={
            "sampled cohorts": digest_value(digests),
            "cohorts.pattern": digest_value(cohorts_read["pattern"]),
        },
        settings={
            "cohorts": {name: value for name, value in cohorts_read.items() if name != "pattern"},
            "template": template,
        },
        months=list(cohorts),
        texts=lambda: _read_texts(notes, cohorts),
        guard=partial(hide_quoted_data, ENGINE_CERTIFICATE),
    )


def _fetch_sampled_cohorts(notes: NotesDeclaration) -> Mapping[str, tuple[CohortFile, Path]]:
    """Choose and download the cohorts of the sample; return month → file and local path."""
    files = list(list_cohorts(notes).values())
    count = min(len(files), SAMPLED_COHORTS)
    # Space the sample evenly, including the first and the last month. `max` avoids a division by zero for a single
    # month.
    sampled_files = [files[(len(files) - 1) * i // max(1, count - 1)] for i in range(count)]
    return {file.month: (file, file.fetch()) for file in sampled_files}


def _read_texts(notes: NotesDeclaration, sample: Mapping[str, tuple[CohortFile, Path]]) -> Iterator[str]:
    """Yield the headers and texts of notes; skip unreadable cohorts, because packing rejects them."""
    fields, template, key = notes.cohorts.fields, notes.compile_header(), notes.patient_key.load()
    for month, (file, path) in sample.items():
        try:
            items = read_notes(file.open_reader(path), fields, template, key=key, month=month)
            for note in islice((note for note in items if isinstance(note, Note)), NOTES_PER_COHORT):
                text = join_for_encoding(note.header, note.text[:CHARACTERS_PER_DOCUMENT], notes.template.encode)
                yield from (note.header, text)
        except CorruptSourceError:
            continue


def describe_notes_card(notes: NotesDeclaration, specs: Sequence[ArtifactSpec]) -> CardSubject:
    """Return the facts for the data card of notes, which lists the directories for trainers and counts the cohorts."""
    return CardSubject(
        declaration=notes,
        specs=specs,
        products=[spec for spec in specs if spec.name in DIRECTORIES.values()],
        counted=[spec for spec in specs if spec.name == PACKED_COHORTS],
        sources=partial(_list_card_sources, notes),
        tokenizer=lambda receipts: replace(
            _find_tokenizer(_select_cohorts(receipts)[0], notes.document.separator),
            engine=describe_engine(receipts),
        ),
        splits=partial(_count_splits, notes),
    )


def _select_cohorts(receipts: Receipts) -> Sequence[Receipt]:
    (cohort_receipts,) = (spec_receipts for spec, spec_receipts in receipts.items() if spec.name == PACKED_COHORTS)
    return cohort_receipts


def _list_card_sources(notes: NotesDeclaration, _: ArtifactStore, receipts: Receipts) -> list[CardSource]:
    source, cohorts = describe_card_source(notes.source), _select_cohorts(receipts)
    size = sum(receipt.ledger.source_bytes for receipt in cohorts if receipt.ledger is not None)
    return [CardSource(**{**vars(source), "files": len(cohorts), "bytes": size})]


def _count_splits(notes: NotesDeclaration, receipts: Receipts) -> list[SplitCounts]:
    facts = [PackedCohortFacts.from_receipt(receipt) for receipt in _select_cohorts(receipts)]
    return [
        SplitCounts(
            split=split,
            documents=sum(month.splits[split].documents for month in facts),
            tokens=sum(month.splits[split].tokens.in_rows for month in facts),
        )
        for split in notes.splits
    ]


def _find_tokenizer(receipt: Receipt, separator: str | None = None) -> CardTokenizer:
    facts = RowFacts.from_receipt(receipt)
    return CardTokenizer(
        name=facts.tokenizer,
        sha256=receipt.inputs["tokenizer"],
        vocab_size=facts.vocab_size,
        separator=separator if separator != "auto" else None,
        separator_id=facts.separator_id,
    )


def describe_mixture_card(replay: MixtureDeclaration, specs: Sequence[ArtifactSpec]) -> CardSubject:
    """Return the facts for the data card of a mixture, whose sources are datasets with their own cards."""
    (directory,) = specs

    def sources(_: ArtifactStore, __: Receipts) -> list[CardSource]:
        return [add_attribution(CardSource(name=s.dataset, kind="dataset"), s) for s in replay.sources]

    def splits(receipts: Receipts) -> list[SplitCounts]:
        facts = DirectoryFacts.from_receipt(receipts[directory][0])
        return [SplitCounts(split=split, rows=counts.rows) for split, counts in facts.splits.items()]

    return CardSubject(
        declaration=replay,
        specs=specs,
        products=specs,
        counted=specs,
        sources=sources,
        tokenizer=lambda receipts: _find_tokenizer(receipts[directory][0]),
        splits=splits,
    )


class Notes(Dataset):
    """Clinical notes, one file per birth month, as packed rows, shards, and a directory for TFDS and grain."""

    component: ClassVar[str] = "PackedCohorts"
    pipeline: ClassVar[str] = "notes"
    document_noun: ClassVar[str] = "note"
    model: ClassVar[type[NotesDeclaration]] = NotesDeclaration
    declaration: NotesDeclaration

    @classmethod
    def list_own_templates(cls, attributes: Any) -> Collection[Keys]:
        # Do not resolve `{{ … }}` in a Jinja header, because the names in a header are fields of a note.
        match attributes:
            case {"template": {"engine": "jinja"}}:
                return {("template", "header")}
        return ()

    @cached_property
    def card_subject(self) -> CardSubject:
        return describe_notes_card(self.declaration, notes_specs(self.declaration))

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        return [*self.card_subject.specs, *build_card_specs(self.card_subject)]

    def product(self, store: ArtifactStore) -> Artifact:
        return self.declaration.artifact(DIRECTORIES[self.declaration.formats[0]])

    def remarks(self) -> Iterable[Remark]:
        return find_notes_remarks(self.declaration)

    def describe_boundaries(self) -> str:
        policy = self.declaration.document
        return describe_boundary(
            self.declaration.tokenizer,
            separator=policy.separator,
            bos=policy.bos,
            special_tokens=policy.special_tokens,
        )

    def tracer(self, store: ArtifactStore) -> Tracer:
        return build_notes_tracer(self.declaration, store)

    def retract(self, store: ArtifactStore, ids: Path, *, strict: bool = False) -> RetractionResult:
        return retract_patients(self.declaration, store, ids, strict=strict)

    def summary(self, store: ArtifactStore) -> list[str]:
        notes = self.declaration
        months = notes.months.expected_keys
        receipts = [r for r in store.receipts([notes.artifact(PACKED_COHORTS, m) for m in months]) if r is not None]
        facts = [PackedCohortFacts.from_receipt(r) for r in receipts]
        patients = sum(f.patients for f in facts)
        documents = sum(r.ledger.documents for r in receipts if r.ledger)
        tokens = sum(r.ledger.tokens for r in receipts if r.ledger)
        rows = sum(split.rows for f in facts for split in f.splits.values())
        return [
            f"{len(receipts):,} of {count_of(len(months), 'cohort')}, {count_of(patients, 'patient')}",
            f"{count_of(documents, 'note')}, {count_of(tokens, 'token')}",
            _describe_fill(notes, rows, tokens),
            describe_engine_line(notes, store),
            *describe_literals(Ledger.total(r.ledger for r in receipts if r.ledger), notes.document.special_tokens),
            *warn_of_undeclared(notes, store),
        ]

    def describe_trainers(self, store: ArtifactStore) -> list[str]:
        return [*format_maxtext_lines(self.declaration, store), *format_evaluation_line(tuple(self.declaration.splits))]


def _describe_fill(notes: NotesDeclaration, rows: int, tokens: int) -> str:
    if notes.layout == "unpacked":
        content = "one note or part of a note each" if notes.rows == "notes" else "one stream"
        return f"{count_of(rows, 'row')} of at most {count_of(notes.capacity, 'token')}, {content}"
    fill = tokens / (rows * notes.capacity) if rows else 0
    return f"{count_of(rows, 'row')} of {count_of(notes.capacity, 'token')}, filled to {format_share(fill)}"


def notes_specs(notes: NotesDeclaration) -> list[ArtifactSpec]:
    """Return the specs of a dataset of notes: certificate → packed cohorts → shards and directory per format."""
    months = Partitions.from_keys(notes.months.expected_keys, "cohort")
    certificate = build_engine_certificate_spec(notes_engine(notes))
    cohorts = build_packed_cohorts_spec(notes, months=months, certificate=certificate)
    shards = [build_cohort_shards_spec(notes, format, spec=cohorts) for format in notes.formats]
    directories = [
        build_tfds_directory_spec(notes, format, shards=shard_spec)
        for format, shard_spec in zip(notes.formats, shards, strict=True)
    ]
    return [certificate, cohorts, *shards, *directories]


class CohortMixture(Dataset):
    """Several datasets of packed rows as one directory, for training with replay."""

    component: ClassVar[str] = "CombinedCohorts"
    pipeline: ClassVar[str] = "notes"
    model: ClassVar[type[MixtureDeclaration]] = MixtureDeclaration
    declaration: MixtureDeclaration

    def tokenizer(self) -> str | None:
        """Return the folder or the Hugging Face Hub name of the sources' tokenizer; None if it is not found."""
        # Use the first source, because all sources have the same tokenizer: sources with different tokenizers cannot be
        # combined.
        return find_tokenizer_of_dataset(self.folder, self.declaration.sources[0].dataset)

    @cached_property
    def card_subject(self) -> CardSubject:
        specs = [build_combined_directory_spec(self.declaration, tokenizer=self.tokenizer)]
        return describe_mixture_card(self.declaration, specs)

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        return [*self.card_subject.specs, *build_card_specs(self.card_subject)]

    def product(self, store: ArtifactStore) -> Artifact:
        return self.declaration.artifact(DIRECTORIES[self.declaration.format])

    def find_source_remarks(self, source: Dataset) -> Iterable[Remark]:
        replay = self.declaration
        # Skip splits that are declared, because the user chose them. Only the default could omit a source's splits
        # unnoticed.
        if not isinstance(source, Notes | CohortMixture) or "splits" in replay.model_fields_set:
            return
        if splits := [split for split in source.declaration.splits if split not in replay.splits]:
            name, is_one = source.declaration.dataset, len(splits) == 1
            splits_are, them = (
                (f"split {splits[0]} is", "it") if is_one else (f"splits {', '.join(splits)} are", "them")
            )
            yield Remark(
                keys=("sources",),
                sentence=f"sources: {name}: its {splits_are} not used. Add {them} to `splits`, or declare "
                f"`splits: [{', '.join(replay.splits)}]` to leave {them} out",
                hint=True,
            )

    def tracer(self, store: ArtifactStore) -> Tracer:
        return build_mixture_tracer(self.declaration, store)

    def read_mixture(self, store: ArtifactStore) -> list[MixtureShare]:
        receipt = store.receipt(self.product(store))
        shares = {} if receipt is None else CombinedFacts.from_receipt(receipt).shares
        return [
            MixtureShare(split=split, name=name, requested=share.wanted, realized=share.share)
            for split, by_source in shares.items()
            for name, share in by_source.items()
        ]

    def summary(self, store: ArtifactStore) -> list[str]:
        sources = " + ".join(source.dataset for source in self.declaration.sources)
        return [f"{sources} (`mode: {self.declaration.mode}`)"]

    def describe_trainers(self, store: ArtifactStore) -> list[str]:
        if (receipt := store.receipt(self.product(store))) is None:
            return []
        facts = DirectoryFacts.from_receipt(receipt)
        evaluated = format_evaluation_line(self.declaration.splits) if can_evaluate(self.declaration, facts) else []
        return [format_combined_line(self.declaration, store, facts, self.tokenizer()), *evaluated]
