"""Dataset class of blends for pretraining, SFT or RL: their artifacts and messages."""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
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
from dataprep_assets.engine.staleness.estimate import Estimate, estimated
from dataprep_assets.engine.trace.trace import Tracer
from dataprep_assets.engine.yaml.mistakes import Keys
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.execution.pool import worker_count
from dataprep_assets.formats import packed_rows
from dataprep_assets.formats.croissant import ParquetColumn
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.pipelines.blend.blend import BLEND, blend_run, blend_spec, run_lines
from dataprep_assets.pipelines.blend.blend_sample import blend_engine
from dataprep_assets.pipelines.blend.blend_tracer import blend_tracer
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.indexed_bins import INDEXED_BINS
from dataprep_assets.pipelines.blend.plan.blend_plan import blend_plan_spec
from dataprep_assets.pipelines.blend.plan.blend_preview import blend_preview_spec
from dataprep_assets.pipelines.blend.plan.blend_snapshot import blend_snapshot_spec
from dataprep_assets.pipelines.blend.plan.discovery import open_place
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, PlannedUnit, has_blend_plan, load_blend_plan
from dataprep_assets.pipelines.blend.remarks import blend_remarks
from dataprep_assets.pipelines.blend.rl_manifest import rl_manifest_spec
from dataprep_assets.pipelines.blend.runs import RUNS, RunFacts
from dataprep_assets.pipelines.blend.sft.packed_sft import PACKED_SFT, template_lines, turns_lines
from dataprep_assets.pipelines.blend.stage_shards import SHARDS, blend_shards_spec
from dataprep_assets.pipelines.blend.stream import blend_dtype, blend_separator
from dataprep_assets.planning.cost import Machine, Products, SplitSizes, density_of
from dataprep_assets.stream.engine_certificate import engine_and_reason, engine_certificate_spec, engine_line
from dataprep_assets.stream.tokenizer import literal_lines, load_bundle


def blend_cost(blend: BlendDeclaration, store: ArtifactStore, machine: Machine) -> Estimate:
    """Estimate the cost of a pretraining blend.

    Args:
        blend: The dataset.
        store: Store of its artifacts.
        machine: The machine that builds it.

    Raises ConfigError if the blend has no plan yet.
    """
    if not has_blend_plan(blend, store):
        raise ConfigError(
            f"plan: {blend.dataset}: its plan does not exist yet, and needs row counts. Materialize `blend_plan` first"
        )
    plan = load_blend_plan(blend, store)
    local = isinstance(store, LocalArtifacts)
    return estimated(
        [_reading(blend, unit) for unit in plan.units],
        machine,
        store,
        artifacts=[blend.artifact(INDEXED_BINS, partition) for partition in plan.partitions],
        bytes_per_token=token_dtype(blend_dtype(blend)).itemsize,
        products=Products(copies=int(local), uploads=int(not local), joined=False),
        density=density_of(entry for unit in plan.units for entry in unit.entries),
    )


def _reading(blend: BlendDeclaration, unit: PlannedUnit) -> SplitSizes:
    """Return the sizes of one dataset's files and shards."""
    shards = [unit.shards[index] for index in unit.chosen]
    files = {part.entry.relpath: part.entry.size_bytes for shard in shards for part in shard.parts}
    return SplitSizes(
        split=unit.name,
        files=tuple(files.values()),
        shards=tuple(shard.total_bytes for shard in shards),
        mirrored=open_place(unit.dataset, blend.sources).access.mirrored,
    )


STREAMED_RUNS = 64
"""Maximum number of runs of a streaming blend, because each run reads the state of every shard."""


def streamed_shards(blend: BlendDeclaration, total: int) -> int:
    """Return the number of shards per run of a streaming blend with `total` shards, enough to keep the workers busy."""
    return max(4 * worker_count(blend.workers), -(-total // STREAMED_RUNS))


def launches(blend: BlendDeclaration, plan: BlendPlan, at_once: int) -> list[list[str]]:
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


_ABOUT = {
    "input_ids": "Token ids of a packed row.",
    "loss_mask": "1 if the label is in the loss, else 0.",
    "seq_start_id": "Start positions of the sequences in the row.",
}


def blend_card(blend: BlendDeclaration, specs: Sequence[ArtifactSpec]) -> ArtifactSpec:
    """Return the data card of a blend, for the blend run that its trainer reads."""
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
    datasets = {unit.dataset.name: unit.dataset for unit in blend.data_blend().units()}
    return [attributed(_source(unit), datasets[unit.dataset.name]) for unit in load_blend_plan(blend, store).units]


def _source(unit: PlannedUnit) -> CardSource:
    scheme, address, _ = unit.dataset.path.partition("://")
    return CardSource(
        name=unit.name,
        kind=scheme if address else "local",
        place=unit.dataset.path if address else None,
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
        engine=engine_and_reason(receipts),
        chat_template=next(iter(template_lines(_of_shards(blend, receipts))), None),
    )


def _of_shards(blend: BlendDeclaration, receipts: Receipts) -> list[Receipt]:
    """Return the receipts of packed conversations; empty for other stages."""
    if blend.stage != "sft":
        return []
    return [receipt for spec, of_spec in receipts.items() if spec.name == PACKED_SFT for receipt in of_spec]


def _splits(run: Receipt) -> list[SplitCounts]:
    """Return the counts of the blend run by split: rows and, if not 0, tokens."""
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


class Blend(Dataset):
    """Weighted datasets as files for a trainer: bin/idx, packed Parquet with a loss mask, or JSON Lines."""

    component: ClassVar[str] = "TrainingBlend"
    pipeline: ClassVar[str] = "blend"
    model: ClassVar[type[BlendDeclaration]] = BlendDeclaration
    declaration: BlendDeclaration

    @classmethod
    def own_templates(cls, attributes: Any) -> Collection[Keys]:
        # a chat template is Jinja, but the path of a template may also contain Jinja: `{{ env.TEMPLATES }}/chat.jinja`
        match attributes:
            case {"sft": {"chat_template": str(template)}} if "{%" in template or "messages" in template:
                return {("sft", "chat_template")}
        return ()

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        specs = blend_specs(self.declaration)
        return [*specs, blend_card(self.declaration, specs)]

    def product(self, store: ArtifactStore) -> Artifact:
        return blend_run(self.declaration, store)

    def remarks(self) -> Iterator[Remark]:
        return blend_remarks(self.declaration)

    def cost(self, store: ArtifactStore, machine: Machine) -> Estimate:
        if self.declaration.stage != "pretrain":
            return super().cost(store, machine)
        return blend_cost(self.declaration, store, machine)

    def tracer(self, store: ArtifactStore) -> Tracer:
        return blend_tracer(self.declaration, store, self.specs)

    def summary(self, store: ArtifactStore) -> list[str]:
        blend = self.declaration
        plan = load_blend_plan(blend, store)
        receipt = store.require(blend_run(blend, store))
        facts = RunFacts.of(receipt)
        lines = [f"{'dataset':<28}{'split':<8}{'shards':>8}{'rows':>12}{'tokens':>16}{'requested':>11}{'realised':>10}"]
        for row in facts.realised:
            lines.append(
                f"{row.name:<28}{row.split:<8}{row.shards:>8,}{row.rows:>12,}{row.tokens:>16,}"
                f"{row.requested:>11.4f}{row.realised:>10.4f}"
            )
        name, empty = SHARDS[blend.stage].name, len(facts.empty)
        shards = f"{count_of(len(plan.partitions), 'shard')} in {name}, {empty:,} empty"
        lines.append(shards + f"; run {plan.run_hash}")
        made = store.receipts([blend.artifact(name, partition) for partition in plan.partitions])
        receipts = [receipt for receipt in made if receipt is not None]
        if blend.stage == "sft":
            lines += [*turns_lines(blend, receipts), *template_lines(receipts)]
        if blend.stage != "rl":
            lines.append(engine_line(blend, store))
            total = Ledger.total(made.ledger for made in receipts if made.ledger)
            lines += literal_lines(
                total, blend.pretrain_options.special_tokens if blend.stage == "pretrain" else "text"
            )
        return lines

    def trainer_lines(self, store: ArtifactStore) -> list[str]:
        return run_lines(store.require(blend_run(self.declaration, store)))


def blend_specs(blend: BlendDeclaration) -> list[ArtifactSpec]:
    """Return the artifacts of a blend: plan → preview → snapshots and certificate → shards → run (→ RL manifest)."""
    partitions = Partitions(
        dynamic=f"{blend.dataset}_shards",
        keys=lambda store: load_blend_plan(blend, store).partitions,
        ranges=partial(_ranges, blend),
    )
    plan = blend_plan_spec(blend, plans=partitions)
    preview = blend_preview_spec(blend, plan=plan)
    snapshot = blend_snapshot_spec(blend, partitions=partitions, preview=preview)
    certificates = []
    if blend.stage != "rl":  # RL records are not tokenized
        certificates = [engine_certificate_spec(blend_engine(blend), inputs=(preview,))]
    shards = blend_shards_spec(blend, partitions=partitions, inputs=(snapshot, *certificates))
    run = blend_spec(blend, shards=shards)
    manifests = [rl_manifest_spec(blend, run=run)] if blend.stage == "rl" else []
    return [plan, preview, *certificates, snapshot, shards, run, *manifests]


def _ranges(blend: BlendDeclaration, store: ArtifactStore) -> Sequence[Sequence[str]]:
    plan = load_blend_plan(blend, store)
    return launches(blend, plan, streamed_shards(blend, len(plan.partitions)))
