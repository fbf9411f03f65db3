"""Dataset class of blends for pretraining, SFT, pairs or RL: its artifacts, data card, cost estimate and summary."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.rewriters.declaration import replaces_personal_data
from dataprep_assets.engine.artifact.dataset import Dataset, MixtureShare
from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.card.card import build_card_specs
from dataprep_assets.engine.card.contents import (
    CardRecords,
    CardSource,
    CardSubject,
    CardTokenizer,
    Receipts,
    SplitCounts,
    add_attribution,
)
from dataprep_assets.engine.staleness.estimate import Estimate, estimate_cost
from dataprep_assets.engine.trace.document_table import DocumentTable
from dataprep_assets.engine.trace.retraction import RetractionResult
from dataprep_assets.engine.trace.sample import RowSample
from dataprep_assets.engine.trace.trace import Tracer
from dataprep_assets.engine.yaml.mistakes import Keys
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.execution.pool import choose_worker_count
from dataprep_assets.formats import packed_rows
from dataprep_assets.formats.conversations import preference_rows
from dataprep_assets.formats.croissant import ParquetColumn
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.blend.blend import BLEND, build_blend_spec, describe_run, find_blend_run
from dataprep_assets.pipelines.blend.blend_sample import build_blend_engine
from dataprep_assets.pipelines.blend.blend_tracer import build_blend_tracer
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.indexed_bins import INDEXED_BINS
from dataprep_assets.pipelines.blend.output.rl_manifest import build_rl_manifest_spec
from dataprep_assets.pipelines.blend.pairs.pairs import PAIRS, describe_pairs
from dataprep_assets.pipelines.blend.plan.blend_plan import build_blend_plan_spec
from dataprep_assets.pipelines.blend.plan.blend_preview import build_blend_preview_spec
from dataprep_assets.pipelines.blend.plan.blend_snapshot import build_blend_snapshot_spec
from dataprep_assets.pipelines.blend.plan.discovery import open_place
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, PlannedUnit, has_blend_plan, load_blend_plan
from dataprep_assets.pipelines.blend.remarks import find_blend_remarks
from dataprep_assets.pipelines.blend.removal.retract import retract_rows
from dataprep_assets.pipelines.blend.removal.retracted_left import find_retracted_blend_artifacts
from dataprep_assets.pipelines.blend.runs import RUNS, RunFacts
from dataprep_assets.pipelines.blend.sft.packed_sft import (
    PACKED_SFT,
    describe_contents,
    describe_templates,
    describe_turns,
)
from dataprep_assets.pipelines.blend.sft.row_remarks import describe_rows
from dataprep_assets.pipelines.blend.sft.shard import PACKED
from dataprep_assets.pipelines.blend.stage_shards import SHARDS, build_blend_shards_spec
from dataprep_assets.pipelines.blend.stage_views import load_declared_views
from dataprep_assets.pipelines.blend.stream import choose_dtype, find_separator
from dataprep_assets.pipelines.blend.table.table_spec import build_row_table_spec
from dataprep_assets.pipelines.blend.view import BlendView, build_view_spec, list_view_lines
from dataprep_assets.planning.cost import Machine, Products, SplitSizes, measure_density
from dataprep_assets.stream.engine_certificate import (
    build_engine_certificate_spec,
    describe_engine,
    describe_engine_line,
)
from dataprep_assets.stream.stream_index import is_within, read_document_lengths
from dataprep_assets.stream.tokenizer import describe_boundary, describe_literals, load_declared_tokenizer
from dataprep_assets.table import align_rows, format_share

_ROWS_AT_ONCE = 1 << 12
"""Packed rows that are read at a time."""


def estimate_blend_cost(blend: BlendDeclaration, store: ArtifactStore, machine: Machine) -> Estimate:
    """Estimate the cost of a pretraining blend.

    Args:
        blend: The declaration.
        store: The store of the blend's artifacts.
        machine: The machine that builds the blend.

    Raises ConfigError if the blend has no plan yet.
    """
    if not has_blend_plan(blend, store):
        raise ConfigError(
            f"plan: {blend.dataset}: the plan, which has the row counts, does not exist yet. Build `blend_plan` first"
        )
    plan = load_blend_plan(blend, store)
    local = isinstance(store, LocalArtifacts)
    return estimate_cost(
        [_measure_reading(blend, unit) for unit in plan.units],
        machine,
        store,
        artifacts=[blend.artifact(INDEXED_BINS, partition) for partition in plan.partitions],
        bytes_per_token=token_dtype(choose_dtype(blend)).itemsize,
        products=Products(copies=int(local), uploads=int(not local), joined=False),
        density=measure_density(entry for unit in plan.units for entry in unit.entries),
    )


def _measure_reading(blend: BlendDeclaration, unit: PlannedUnit) -> SplitSizes:
    """Return the sizes in bytes of a dataset's planned files and of its chosen shards."""
    shards = [unit.shards[index] for index in unit.chosen]
    files = {part.entry.relpath: part.entry.size_bytes for shard in shards for part in shard.parts}
    return SplitSizes(
        split=unit.name,
        files=tuple(files.values()),
        shards=tuple(shard.total_bytes for shard in shards),
        mirrored=open_place(unit.dataset, blend.sources).access.mirrored,
    )


MAX_STREAMED_RUNS = 64
"""Maximum number of runs of a streaming blend, because each run reads the state of every shard."""


def count_shards_per_run(blend: BlendDeclaration, total: int) -> int:
    """Return the number of shards per run of a streaming blend with `total` shards, enough to keep the workers busy."""
    return max(4 * choose_worker_count(blend.workers), -(-total // MAX_STREAMED_RUNS))


def group_into_runs(blend: BlendDeclaration, plan: BlendPlan, at_once: int) -> list[list[str]]:
    """Return the partitions of `plan`, grouped into runs by the blend's `execution_mode`.

    A run downloads all its sources before it builds a shard. A single run of all shards (`batch`) therefore starts
    building after the last download. Runs of `at_once` shards (`streaming`) build the first shards earlier.
    """
    partitions = plan.partitions
    mode = blend.execution_mode
    if mode == "auto":
        remote = any(open_place(unit.dataset, blend.sources).access.mirrored for unit in plan.units)
        mode = "streaming" if remote else "batch"
    size = len(partitions) if mode == "batch" else at_once
    return [partitions[start : start + size] for start in range(0, len(partitions), size)]


def describe_blend_card(blend: BlendDeclaration, specs: Sequence[ArtifactSpec]) -> CardSubject:
    """Return the facts for the data card of a blend, which describes the run that trainers read."""
    (run,) = (spec for spec in specs if spec.name == BLEND)
    is_padded = blend.stage == "sft" and blend.sft_options.pad_to_multiple > 1
    return CardSubject(
        declaration=blend,
        specs=specs,
        products=(*(spec for spec in specs if spec.name in blend.views), run),
        counted=(run,),
        sources=partial(_list_sources, blend),
        tokenizer=partial(_describe_tokenizer, blend),
        splits=lambda receipts: _count_splits(receipts[run][0]),
        records=lambda receipts: _describe_records(receipts[run][0], is_padded),
    )


def _list_sources(blend: BlendDeclaration, store: ArtifactStore, _: Receipts) -> list[CardSource]:
    datasets = {unit.dataset.name: unit.dataset for unit in blend.load_data_blend().list_units()}
    return [
        add_attribution(_describe_source(unit), datasets[unit.dataset.name])
        for unit in load_blend_plan(blend, store).units
    ]


def _describe_source(unit: PlannedUnit) -> CardSource:
    scheme, address, _ = unit.dataset.path.partition("://")
    return CardSource(
        name=unit.name,
        kind=scheme if address else "local",
        place=unit.dataset.path if address else None,
        revision=unit.commit,
        files=len(unit.entries),
        bytes=unit.size_bytes,
    )


def _describe_tokenizer(blend: BlendDeclaration, receipts: Receipts) -> CardTokenizer | None:
    if blend.tokenizer is None:
        return None
    bundle = load_declared_tokenizer(blend.tokenizer)
    separator = find_separator(blend, bundle) if blend.stage == "pretrain" else None
    return CardTokenizer(
        name=bundle.name,
        sha256=bundle.digest,
        vocab_size=bundle.vocab_size,
        separator=separator.content if separator is not None else None,
        separator_id=separator.id if separator is not None else None,
        engine=describe_engine(receipts),
        chat_template=next(iter(describe_templates(_select_shard_receipts(blend, receipts))), None),
        conversations="; ".join(describe_rows(_select_shard_receipts(blend, receipts))) or None,
    )


def _select_shard_receipts(blend: BlendDeclaration, receipts: Receipts) -> list[Receipt]:
    """Return the receipts of packed conversations or of pairs; empty for other stages."""
    name = {"sft": PACKED_SFT, "pairs": PAIRS}.get(blend.stage)
    return [receipt for spec, of_spec in receipts.items() if spec.name == name for receipt in of_spec]


def _count_splits(run: Receipt) -> list[SplitCounts]:
    """Return the counts of the blend run by split: rows and, if not 0, tokens."""
    rows = RunFacts.from_receipt(run).realised
    counts = []
    for split in dict.fromkeys(row.split for row in rows):
        members = [row for row in rows if row.split == split]
        tokens = sum(row.tokens for row in members)
        counts.append(SplitCounts(split=split, rows=sum(row.rows for row in members), tokens=tokens or None))
    return counts


def _describe_records(run: Receipt, is_padded: bool) -> list[CardRecords]:
    facts = RunFacts.from_receipt(run)
    if facts.stage not in ("sft", "pairs"):
        return []
    names, descriptions = preference_rows.COLUMN_TYPES, preference_rows.COLUMN_DESCRIPTIONS
    if facts.stage == "sft":
        names, descriptions = packed_rows.list_column_types(is_padded), packed_rows.COLUMN_DESCRIPTIONS
    columns = tuple(ParquetColumn(name=name, about=descriptions[name]) for name in names)
    return [
        CardRecords(artifact=f"{RUNS}/{facts.run_hash}", split=split, prefix=f"splits/{split}/", columns=columns)
        for split in facts.used
    ]


def _read_conversation_lengths(store: ArtifactStore, artifacts: Sequence[Artifact]) -> NDArray[np.int64]:
    """Return the number of tokens of each sequence of packed shards, without padding: int64, shape `(sequences,)`."""
    files = [packed_rows.open_packed_file(store.local(artifact, [PACKED]) / PACKED) for artifact in artifacts]
    blocks = (block for file in files for block in file.without_padding().blocks(_ROWS_AT_ONCE))
    return np.concatenate([np.zeros(0, np.int64), *(block.lengths for block in blocks)])


class Blend(Dataset):
    """Weighted datasets as files for a trainer: bin/idx, packed Parquet, preference pairs, or JSON Lines."""

    component: ClassVar[str] = "TrainingBlend"
    pipeline: ClassVar[str] = "blend"
    model: ClassVar[type[BlendDeclaration]] = BlendDeclaration
    declaration: BlendDeclaration

    @classmethod
    def list_own_templates(cls, attributes: Any) -> Collection[Keys]:
        # Return only an inline chat template, in which Dagster must not expand Jinja. A path may contain Jinja that
        # Dagster must expand, such as `{{ env.TEMPLATES }}/chat.jinja`.
        match attributes:
            case {"sft": {"chat_template": str(template)}} if "{%" in template or "messages" in template:
                return {("sft", "chat_template")}
            case {"pairs": {"chat_template": str(template)}} if "{%" in template or "messages" in template:
                return {("pairs", "chat_template")}
        return ()

    @cached_property
    def card_subject(self) -> CardSubject:
        return describe_blend_card(self.declaration, build_blend_specs(self.declaration))

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        return [*self.card_subject.specs, *build_card_specs(self.card_subject)]

    def load_views(self) -> list[BlendView[Any]]:
        return list(load_declared_views(self.declaration))

    def product(self, store: ArtifactStore) -> Artifact:
        return find_blend_run(self.declaration, store)

    def remarks(self) -> Iterator[Remark]:
        return find_blend_remarks(self.declaration)

    def find_trial_remarks(self) -> Iterable[Remark]:
        if not self.declaration.has_table:
            return ()
        from dataprep_assets.curation.trial import find_trial_remarks
        from dataprep_assets.pipelines.blend.screening.row_trial import build_trial

        return find_trial_remarks(partial(build_trial, self.declaration))

    def describe_boundaries(self) -> str:
        blend, options = self.declaration, self.declaration.pretrain_options
        if blend.stage != "pretrain" or blend.tokenizer is None:
            return ""
        return describe_boundary(
            blend.tokenizer,
            separator=options.separator if options.add_eos else None,
            bos="auto" if options.add_bos else "none",
            special_tokens=options.special_tokens,
        )

    def cost(self, store: ArtifactStore, machine: Machine) -> Estimate:
        if self.declaration.stage != "pretrain":
            return super().cost(store, machine)
        return estimate_blend_cost(self.declaration, store, machine)

    def tracer(self, store: ArtifactStore) -> Tracer:
        return build_blend_tracer(self.declaration, store, self.specs)

    def list_sampled_artifacts(self, store: ArtifactStore) -> list[Artifact]:
        return [self.product(store)] if has_blend_plan(self.declaration, store) else []

    def sample(self, store: ArtifactStore, count: int, seed: str) -> RowSample:
        sample = self.tracer(store).sample(count, seed)
        run, splits = store.require(find_blend_run(self.declaration, store)), defaultdict[str, list[str]](list)
        for split, partitions in RunFacts.from_receipt(run).used.items():
            for partition in dict.fromkeys(partitions):
                splits[partition].append(split)
        rows = (replace(row, run_split=", ".join(splits[row.partition])) for row in sample)
        return replace(sample, rows=rows)

    @property
    def row_noun(self) -> str:
        return "packed row" if self.declaration.stage == "sft" else "row"

    def read_lengths(self, store: ArtifactStore, max_bytes: int) -> NDArray[np.int64] | None:
        blend = self.declaration
        name = {"pretrain": INDEXED_BINS, "sft": PACKED_SFT}.get(blend.stage)
        if name is None:
            return None
        artifacts = [blend.artifact(name, partition) for partition in load_blend_plan(blend, store).partitions]
        if blend.stage == "pretrain":
            return read_document_lengths(store, artifacts, max_bytes)
        return _read_conversation_lengths(store, artifacts) if is_within(store, artifacts, PACKED, max_bytes) else None

    def retract(self, store: ArtifactStore, ids: Path, *, strict: bool = False) -> RetractionResult:
        return retract_rows(self.declaration, store, ids, strict=strict)

    @property
    def has_rules(self) -> bool:
        return bool(self.declaration.rules)

    def documents(self, store: ArtifactStore) -> DocumentTable:
        from dataprep_assets.pipelines.blend.table.blend_documents import BlendDocuments

        return BlendDocuments(self.declaration, store)

    def summary(self, store: ArtifactStore) -> list[str]:
        blend = self.declaration
        plan = load_blend_plan(blend, store)
        receipt = store.require(find_blend_run(blend, store))
        facts = RunFacts.from_receipt(receipt)
        header = ("dataset", "split", "shards", "rows", "tokens", "requested", "realized")
        rows = [
            (
                *(row.name, row.split, f"{row.shards:,}", f"{row.rows:,}", f"{row.tokens:,}"),
                *(format_share(row.requested), format_share(row.realised)),
            )
            for row in facts.realised
        ]
        lines = list(align_rows([header, *rows], right=range(2, len(header))))
        name, empty = SHARDS[blend.stage].name, len(facts.empty)
        shards = f"{count_of(len(plan.partitions), 'shard')} in {name}, {empty:,} empty"
        receipts = self._load_shard_receipts(store)
        lines += [describe_contents(receipts)] if blend.stage == "sft" else []
        lines += [describe_pairs(receipts)] if blend.stage == "pairs" else []
        lines.append(shards + f"; run {plan.run_hash}")
        if blend.decontaminate is not None:
            from dataprep_assets.curation.benchmarks.coverage import describe_recorded_coverage

            # Read one shard only, because all shards search for the same items.
            lines += describe_recorded_coverage(next((receipt.facts.get("benchmarks", {}) for receipt in receipts), {}))
        if blend.stage == "sft":
            lines += [*describe_rows(receipts), *describe_turns(blend, receipts), *describe_templates(receipts)]
        if blend.stage == "pairs":
            lines += [*describe_rows(receipts), *describe_templates(receipts)]
        if blend.stage != "rl":
            lines.append(describe_engine_line(blend, store))
            total = Ledger.total(finished.ledger for finished in receipts if finished.ledger)
            lines += describe_literals(
                total, blend.pretrain_options.special_tokens if blend.stage == "pretrain" else "text"
            )
        return lines

    def read_mixture(self, store: ArtifactStore) -> list[MixtureShare]:
        if not has_blend_plan(self.declaration, store):
            return []
        receipt = store.receipt(find_blend_run(self.declaration, store))
        return [
            MixtureShare(
                split=row.split,
                name=row.name,
                requested=row.requested,
                available=row.realisable,
                realized=row.realised,
                epochs=row.epochs,
                tokens=row.tokens,
            )
            for row in (() if receipt is None else RunFacts.from_receipt(receipt).realised)
        ]

    def describe_totals(self, store: ArtifactStore) -> list[str]:
        return [describe_contents(self._load_shard_receipts(store))] if self.declaration.stage == "sft" else []

    def _load_shard_receipts(self, store: ArtifactStore) -> list[Receipt]:
        blend = self.declaration
        partitions = load_blend_plan(blend, store).partitions
        finished = store.receipts([blend.artifact(SHARDS[blend.stage].name, partition) for partition in partitions])
        return [receipt for receipt in finished if receipt is not None]

    def describe_trainers(self, store: ArtifactStore) -> list[str]:
        blend = self.declaration
        lines = describe_run(store.require(find_blend_run(blend, store)))
        if blend.stage == "sft" and blend.sft_options.pad_to_multiple > 1:
            lines.append(f"pad_seq_to_mult={blend.sft_options.pad_to_multiple}")
        return [*lines, *list_view_lines(blend, store, load_declared_views(blend))]


def build_blend_specs(blend: BlendDeclaration) -> list[ArtifactSpec]:
    """Return the specs of a blend's artifacts, inputs first.

    The artifacts are the plan, the preview, the engine certificate (not for RL), the snapshots, the
    signatures and duplicates (only with `duplicates`), the shards, the document table (only with taggers, rules or
    duplicates), the run, the manifest (only for RL), and the views.
    """
    partitions = Partitions(
        dynamic=f"{blend.dataset}_shards",
        keys=lambda store: load_blend_plan(blend, store).partitions,
        ranges=partial(_cut_ranges, blend),
    )
    plan = build_blend_plan_spec(blend, plans=partitions, find_retracted=partial(find_retracted_blend_artifacts, blend))
    preview = build_blend_preview_spec(blend, plan=plan)
    snapshot = build_blend_snapshot_spec(blend, partitions=partitions, preview=preview)
    certificates = []
    if blend.stage != "rl":  # RL records are not tokenized, so they need no certificate
        certificates = [build_engine_certificate_spec(build_blend_engine(blend), inputs=(preview,))]
    duplicates = []
    if blend.duplicates is not None:
        # Import the module here, because most blends have no duplicates, and every command calls this function.
        from dataprep_assets.pipelines.blend.duplicates.duplicates import build_duplicates_spec, build_signatures_spec

        signatures = build_signatures_spec(blend, partitions=partitions, inputs=(snapshot, *certificates))
        duplicates = [signatures, build_duplicates_spec(blend, signatures=signatures)]
    shards = build_blend_shards_spec(blend, partitions=partitions, inputs=(snapshot, *certificates, *duplicates[1:]))
    tables = [build_row_table_spec(blend, partitions=partitions, shards=shards)] if blend.has_table else []
    # The checks of the table block the run if rules drop too many rows, or if personal data is left.
    has_blocking_table = blend.dropping_names or replaces_personal_data(blend.rewrite)
    run = build_blend_spec(blend, inputs=(shards, *(tables if has_blocking_table else ())))
    manifests = [build_rl_manifest_spec(blend, run=run)] if blend.stage == "rl" else []
    views = [build_view_spec(blend, view, run=run) for view in load_declared_views(blend)]
    return [plan, preview, *certificates, snapshot, *duplicates, shards, *tables, run, *manifests, *views]


def _cut_ranges(blend: BlendDeclaration, store: ArtifactStore) -> Sequence[Sequence[str]]:
    plan = load_blend_plan(blend, store)
    return group_into_runs(blend, plan, count_shards_per_run(blend, len(plan.partitions)))
