"""What the data cards of packed notes, and of combinations of them, say in addition to receipts."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import data_card_spec
from dataprep_assets.engine.card.contents import (
    CardSource,
    CardSubject,
    CardTokenizer,
    Receipts,
    SplitCounts,
    attributed,
)
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.cohorts.packed_files import PACKED_COHORTS, PackedCohortFacts, RowFacts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.replay.replay_declaration import ReplayDeclaration
from dataprep_assets.pipelines.notes.tfds.linked_directory import DIRECTORIES, DirectoryFacts
from dataprep_assets.stream.engine_certificate import told_engine
from dataprep_assets.stream.source import card_source


def notes_card(notes: NotesDeclaration, specs: Sequence[ArtifactSpec]) -> ArtifactSpec:
    """The data card of a dataset of notes: its directories are what trainers read, its cohorts are counted."""
    return data_card_spec(
        CardSubject(
            declaration=notes,
            specs=specs,
            products=[spec for spec in specs if spec.name in DIRECTORIES.values()],
            counted=[spec for spec in specs if spec.name == PACKED_COHORTS],
            sources=partial(_note_sources, notes),
            tokenizer=lambda receipts: replace(
                _tokenizer(_cohorts(receipts)[0], notes.document.separator), engine=told_engine(receipts)
            ),
            splits=partial(_note_splits, notes),
        )
    )


def _cohorts(receipts: Receipts) -> Sequence[Receipt]:
    (found,) = (every for spec, every in receipts.items() if spec.name == PACKED_COHORTS)
    return found


def _note_sources(notes: NotesDeclaration, _: ArtifactStore, receipts: Receipts) -> list[CardSource]:
    source, cohorts = card_source(notes.source), _cohorts(receipts)
    size = sum(receipt.ledger.source_bytes for receipt in cohorts if receipt.ledger is not None)
    return [CardSource(**{**vars(source), "files": len(cohorts), "bytes": size})]


def _note_splits(notes: NotesDeclaration, receipts: Receipts) -> list[SplitCounts]:
    facts = [PackedCohortFacts.of(receipt) for receipt in _cohorts(receipts)]
    return [
        SplitCounts(
            split=split,
            documents=sum(month.splits[split].documents for month in facts),
            tokens=sum(month.splits[split].tokens.in_rows for month in facts),
        )
        for split in notes.splits
    ]


def _tokenizer(receipt: Receipt, separator: str | None = None) -> CardTokenizer:
    facts = RowFacts.of(receipt)
    return CardTokenizer(
        name=facts.tokenizer,
        sha256=receipt.inputs["tokenizer"],
        vocab_size=facts.vocab_size,
        separator=separator if separator != "auto" else None,
        separator_id=facts.separator_id,
    )


def replay_card(replay: ReplayDeclaration, specs: Sequence[ArtifactSpec]) -> ArtifactSpec:
    """The data card of a combination: its sources are datasets, which have cards of their own."""
    (directory,) = specs

    def sources(_: ArtifactStore, __: Receipts) -> list[CardSource]:
        return [attributed(CardSource(name=s.dataset, kind="dataset"), s) for s in replay.sources]

    def splits(receipts: Receipts) -> list[SplitCounts]:
        facts = DirectoryFacts.of(receipts[directory][0])
        return [SplitCounts(split=split, rows=counts.rows) for split, counts in facts.splits.items()]

    return data_card_spec(
        CardSubject(
            declaration=replay,
            specs=specs,
            products=specs,
            counted=specs,
            sources=sources,
            tokenizer=lambda receipts: _tokenizer(receipts[directory][0]),
            splits=splits,
        )
    )
