"""Notes by birth month, packed into rows that MaxText reads, and mixtures: the artifacts, and what is told of them."""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.trace.retraction import Retracted
from dataprep_assets.engine.trace.trace import Tracer
from dataprep_assets.engine.yaml.declared_templates import Keys
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.pipelines.notes.card import notes_card, replay_card
from dataprep_assets.pipelines.notes.cohorts.cohort_shards import cohort_shards_spec
from dataprep_assets.pipelines.notes.cohorts.cohort_tracer import notes_tracer, replay_tracer
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts import packed_cohorts_spec
from dataprep_assets.pipelines.notes.cohorts.packed_files import PACKED_COHORTS, PackedCohortFacts
from dataprep_assets.pipelines.notes.dataset_tokenizer import tokenizer_beside
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.notes_sample import notes_engine
from dataprep_assets.pipelines.notes.remarks import notes_remarks
from dataprep_assets.pipelines.notes.replay.replay import combined_directory_spec
from dataprep_assets.pipelines.notes.replay.replay_declaration import ReplayDeclaration
from dataprep_assets.pipelines.notes.retract import retract_patients
from dataprep_assets.pipelines.notes.tfds.linked_directory import DIRECTORIES, DirectoryFacts
from dataprep_assets.pipelines.notes.tfds.maxtext import (
    combined_line,
    evaluates,
    evaluation_line,
    maxtext_line,
    undeclared_line,
)
from dataprep_assets.pipelines.notes.tfds.tfds_directory import tfds_directory_spec
from dataprep_assets.plural import count_of
from dataprep_assets.stream.engine_certificate import engine_certificate_spec, engine_line
from dataprep_assets.stream.rendered_text import literal_lines


class Notes(Dataset):
    """Clinical notes, one file a birth month, to packed rows, shards, and a directory that TFDS and grain open."""

    component: ClassVar[str] = "PackedCohorts"
    pipeline: ClassVar[str] = "notes"
    model: ClassVar[type[NotesDeclaration]] = NotesDeclaration
    declaration: NotesDeclaration

    @classmethod
    def own_templates(cls, attributes: Any) -> Collection[Keys]:
        # Jinja's names are fields of a note
        match attributes:
            case {"template": {"engine": "jinja"}}:
                return {("template", "header")}
        return ()

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        specs = notes_specs(self.declaration)
        return [*specs, notes_card(self.declaration, specs)]

    def product(self, store: ArtifactStore) -> Artifact:
        return self.declaration.artifact(DIRECTORIES[self.declaration.formats[0]])

    def remarks(self) -> Iterable[Remark]:
        return notes_remarks(self.declaration)

    def tracer(self, store: ArtifactStore) -> Tracer:
        return notes_tracer(self.declaration, store)

    def retract(self, store: ArtifactStore, ids: Path, *, strict: bool = False) -> Retracted:
        return retract_patients(self.declaration, store, ids, strict=strict)

    def summary(self, store: ArtifactStore) -> list[str]:
        notes = self.declaration
        months = notes.months.expected_keys
        packed = [r for r in store.receipts([notes.artifact(PACKED_COHORTS, m) for m in months]) if r is not None]
        facts = [PackedCohortFacts.of(r) for r in packed]
        patients = sum(f.patients for f in facts)
        documents = sum(r.ledger.documents for r in packed if r.ledger)
        tokens = sum(r.ledger.tokens for r in packed if r.ledger)
        rows = sum(split.rows for f in facts for split in f.splits.values())
        return [
            f"{len(packed):,} of {len(months):,} cohorts, {count_of(patients, 'patient')}",
            f"{count_of(documents, 'note')}, {tokens:,} tokens",
            _filled(notes, rows, tokens),
            engine_line(notes, store),
            *literal_lines(Ledger.total(r.ledger for r in packed if r.ledger), notes.document.special_tokens),
            # hf reads no shards, so its line is the same for every format and is told once
            *dict.fromkeys(maxtext_line(notes, store, format) for format in notes.formats),
            *undeclared_line(notes, store),
            *evaluation_line(tuple(notes.splits)),
        ]


def _filled(notes: NotesDeclaration, rows: int, tokens: int) -> str:
    if notes.layout == "unpacked":
        what = "a note or a part of one each" if notes.rows == "notes" else "one stream"
        return f"{count_of(rows, 'row')} of at most {notes.capacity:,} tokens, {what}"
    filled = tokens / (rows * notes.capacity) if rows else 0
    return f"{count_of(rows, 'row')} of {notes.capacity:,}, filled to {filled:.4f}"


def notes_specs(notes: NotesDeclaration) -> list[ArtifactSpec]:
    """The graph of a dataset of notes: certificate → packed cohorts → (for each format) shards → directory."""
    months = Partitions.fixed(notes.months.expected_keys, "cohort")
    certificate = engine_certificate_spec(notes_engine(notes))
    packed = packed_cohorts_spec(notes, months=months, certificate=certificate)
    shards = [cohort_shards_spec(notes, format, packed=packed) for format in notes.formats]
    directories = [
        tfds_directory_spec(notes, format, shards=of_format)
        for format, of_format in zip(notes.formats, shards, strict=True)
    ]
    return [certificate, packed, *shards, *directories]


class Replay(Dataset):
    """Several datasets of packed rows as one directory, for training with replay."""

    component: ClassVar[str] = "CombinedCohorts"
    pipeline: ClassVar[str] = "notes"
    model: ClassVar[type[ReplayDeclaration]] = ReplayDeclaration
    declaration: ReplayDeclaration

    def tokenizer(self) -> str | None:
        """The folder of its sources' tokenizer, or its name on the hub; None if it is declared elsewhere."""
        # the first tells: sources with different tokenizers cannot be combined
        return tokenizer_beside(self.folder, self.declaration.sources[0].dataset)

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        specs = [combined_directory_spec(self.declaration, tokenizer=self.tokenizer)]
        return [*specs, replay_card(self.declaration, specs)]

    def product(self, store: ArtifactStore) -> Artifact:
        return self.declaration.artifact(DIRECTORIES[self.declaration.format])

    def remarks_on(self, source: Dataset) -> Iterable[Remark]:
        replay = self.declaration
        # splits that are declared are a choice; the default leaves others out without one
        if not isinstance(source, Notes | Replay) or "splits" in replay.model_fields_set:
            return
        if others := [split for split in source.declaration.splits if split not in replay.splits]:
            name = source.declaration.dataset
            yield Remark(
                keys=("sources",),
                sentence=f"sources: {name}: its {' and '.join(others)} is left out. Add it to `splits`, or declare "
                f"`splits: [{', '.join(replay.splits)}]`",
                hint=True,
            )

    def tracer(self, store: ArtifactStore) -> Tracer:
        return replay_tracer(self.declaration, store)

    def summary(self, store: ArtifactStore) -> list[str]:
        sources = " + ".join(source.dataset for source in self.declaration.sources)
        lines = [f"{sources}, by {self.declaration.mode}"]
        if (receipt := store.receipt(self.product(store))) is not None:
            facts = DirectoryFacts.of(receipt)
            lines.append(combined_line(self.declaration, store, facts, self.tokenizer()))
            lines += evaluation_line(self.declaration.splits) if evaluates(self.declaration, facts) else []
        return lines
