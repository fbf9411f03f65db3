"""A blend of datasets for pretraining, SFT or RL: its artifacts, and what a person is told of them."""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec, Partitions
from dataprep_assets.engine.staleness.estimate import Estimate
from dataprep_assets.engine.trace.trace import Tracer
from dataprep_assets.engine.yaml.declared_templates import Keys
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.pipelines.blend.blend import blend_run, blend_spec, run_lines
from dataprep_assets.pipelines.blend.blend_sample import blend_engine
from dataprep_assets.pipelines.blend.blend_tracer import blend_tracer
from dataprep_assets.pipelines.blend.card import blend_card
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.output.launch_ranges import launches, streamed_shards
from dataprep_assets.pipelines.blend.plan.blend_plan import blend_plan_spec
from dataprep_assets.pipelines.blend.plan.blend_preview import blend_preview_spec
from dataprep_assets.pipelines.blend.plan.blend_snapshot import blend_snapshot_spec
from dataprep_assets.pipelines.blend.plan.cost import blend_cost
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.remarks import blend_remarks
from dataprep_assets.pipelines.blend.rl_manifest import rl_manifest_spec
from dataprep_assets.pipelines.blend.runs import RunFacts
from dataprep_assets.pipelines.blend.sft.packed_sft import turns_lines
from dataprep_assets.pipelines.blend.stage_shards import SHARDS, blend_shards_spec
from dataprep_assets.planning.cost import Machine
from dataprep_assets.plural import count_of
from dataprep_assets.stream.engine_certificate import engine_certificate_spec, engine_line
from dataprep_assets.stream.rendered_text import literal_lines


class Blend(Dataset):
    """Datasets and weights to what a trainer reads: bin/idx, packed Parquet with a loss mask, or JSON lines."""

    component: ClassVar[str] = "TrainingBlend"
    pipeline: ClassVar[str] = "blend"
    model: ClassVar[type[BlendDeclaration]] = BlendDeclaration
    declaration: BlendDeclaration

    @classmethod
    def own_templates(cls, attributes: Any) -> Collection[Keys]:
        # a chat template is Jinja; a path to one may be `{{ env.TEMPLATES }}/chat.jinja`
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
            lines += turns_lines(blend, receipts)
        if blend.stage != "rl":
            lines.append(engine_line(blend, store))
            total = Ledger.total(made.ledger for made in receipts if made.ledger)
            lines += literal_lines(
                total, blend.pretrain_options.special_tokens if blend.stage == "pretrain" else "text"
            )
        return [*lines, *(f"for the trainer: {line}" for line in run_lines(receipt))]


def blend_specs(blend: BlendDeclaration) -> list[ArtifactSpec]:
    """The graph of a blend: plan → preview → snapshots and certificate → shards → blend run (→ RL manifest)."""
    partitions = Partitions(
        dynamic=f"{blend.dataset}_shards",
        keys=lambda store: load_blend_plan(blend, store).partitions,
        ranges=partial(_ranges, blend),
    )
    plan = blend_plan_spec(blend, plans=partitions)
    preview = blend_preview_spec(blend, plan=plan)
    snapshot = blend_snapshot_spec(blend, partitions=partitions, preview=preview)
    certificates = []
    if blend.stage != "rl":  # records are not tokenized
        certificates = [engine_certificate_spec(blend_engine(blend), inputs=(preview,))]
    shards = blend_shards_spec(blend, partitions=partitions, inputs=(snapshot, *certificates))
    run = blend_spec(blend, shards=shards)
    manifests = [rl_manifest_spec(blend, run=run)] if blend.stage == "rl" else []
    return [plan, preview, *certificates, snapshot, shards, run, *manifests]


def _ranges(blend: BlendDeclaration, store: ArtifactStore) -> Sequence[Sequence[str]]:
    plan = load_blend_plan(blend, store)
    return launches(blend, plan, streamed_shards(blend, len(plan.partitions)))
