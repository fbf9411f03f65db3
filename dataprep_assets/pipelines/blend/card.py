"""What the data card of a blend says in addition to its receipts: licenses, the shares as rows and tokens."""

from collections.abc import Sequence
from functools import partial

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import data_card_spec
from dataprep_assets.engine.card.contents import (
    CardRecords,
    CardSource,
    CardSubject,
    CardTokenizer,
    Receipts,
    SplitCounts,
    attributed,
)
from dataprep_assets.formats import packed_rows
from dataprep_assets.formats.croissant import ParquetColumn
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend import BLEND
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.plan import PlannedUnit, load_blend_plan
from dataprep_assets.pipelines.blend.runs import RUNS, RunFacts
from dataprep_assets.pipelines.blend.stream import blend_separator
from dataprep_assets.stream.engine_certificate import told_engine
from dataprep_assets.stream.tokenizer import load_bundle

_ABOUT = {
    "input_ids": "Token ids of a packed row.",
    "loss_mask": "1 where a label is trained, else 0.",
    "seq_start_id": "Where each sequence of the row begins.",
}


def blend_card(blend: BlendDeclaration, specs: Sequence[ArtifactSpec]) -> ArtifactSpec:
    """The data card of a blend, for the blend run that its trainer reads."""
    (run,) = (spec for spec in specs if spec.name == BLEND)
    return data_card_spec(
        CardSubject(
            declaration=blend,
            specs=specs,
            products=(run,),
            counted=(run,),
            sources=partial(_sources, blend),
            tokenizer=partial(_tokenizer, blend),
            splits=lambda receipts: _splits(receipts[run][0]),
            records=lambda receipts: _records(receipts[run][0]),
        )
    )


def _sources(blend: BlendDeclaration, store: ArtifactStore, _: Receipts) -> list[CardSource]:
    declared = {unit.dataset.name: unit.dataset for unit in blend.data_blend().units()}
    return [attributed(_source(unit), declared[unit.dataset.name]) for unit in load_blend_plan(blend, store).units]


def _source(unit: PlannedUnit) -> CardSource:
    scheme, there, _ = unit.dataset.path.partition("://")
    return CardSource(
        name=unit.name,
        kind=scheme if there else "local",
        place=unit.dataset.path if there else None,
        revision=unit.commit,
        files=len(unit.entries),
        bytes=unit.size_bytes,
    )


def _tokenizer(blend: BlendDeclaration, receipts: Receipts) -> CardTokenizer | None:
    if blend.tokenizer is None:
        return None
    bundle = load_bundle(blend.tokenizer)
    separator = blend_separator(blend, bundle) if blend.stage == "pretrain" else None
    return CardTokenizer(
        name=bundle.name,
        sha256=bundle.digest,
        vocab_size=bundle.vocab_size,
        separator=separator.content if separator is not None else None,
        separator_id=separator.id if separator is not None else None,
        engine=told_engine(receipts),
    )


def _splits(run: Receipt) -> list[SplitCounts]:
    """The counts of what the blend run uses, by split: rows and, if there are any, tokens."""
    rows = RunFacts.of(run).realised
    counts = []
    for split in dict.fromkeys(row.split for row in rows):
        members = [row for row in rows if row.split == split]
        tokens = sum(row.tokens for row in members)
        counts.append(SplitCounts(split=split, rows=sum(row.rows for row in members), tokens=tokens or None))
    return counts


def _records(run: Receipt) -> list[CardRecords]:
    facts = RunFacts.of(run)
    if facts.stage != "sft":
        return []
    columns = tuple(ParquetColumn(name=name, about=_ABOUT[name]) for name in packed_rows.COLUMNS)
    return [
        CardRecords(artifact=f"{RUNS}/{facts.run_hash}", split=split, prefix=f"splits/{split}/", columns=columns)
        for split in facts.used
    ]
