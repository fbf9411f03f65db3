"""`dataprep_assets.components.TrainingBlend`: a blend of datasets for pretraining, SFT or RL, from one YAML."""

from collections.abc import Iterator
from functools import cached_property

import dagster as dg
from dagster.components.scaffold.scaffold import scaffold_with

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.component import DatasetComponent
from dataprep_assets.orchestration.dataset import Step, partition_range, worker_count
from dataprep_assets.orchestration.scaffold import TrainingBlendScaffolder
from dataprep_assets.pipelines.blend.blend_asset import NAME, blend_asset, run_trainer_lines
from dataprep_assets.pipelines.blend.blend_certificate_checks import blend_certificate_checks
from dataprep_assets.pipelines.blend.blend_checks import blend_checks
from dataprep_assets.pipelines.blend.blend_plan import has_blend_plan
from dataprep_assets.pipelines.blend.blend_plan_asset import SHARDS, BlendAssets, blend_plan_asset
from dataprep_assets.pipelines.blend.blend_plan_checks import blend_plan_checks
from dataprep_assets.pipelines.blend.blend_preview_asset import blend_preview_asset
from dataprep_assets.pipelines.blend.blend_preview_checks import blend_preview_checks
from dataprep_assets.pipelines.blend.blend_snapshot import launches
from dataprep_assets.pipelines.blend.blend_snapshot_asset import blend_snapshot_asset
from dataprep_assets.pipelines.blend.blend_snapshot_checks import blend_snapshot_checks
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.indexed_bins_asset import indexed_bins_asset
from dataprep_assets.pipelines.blend.indexed_bins_checks import indexed_bins_checks
from dataprep_assets.pipelines.blend.rl.rl_jsonl_asset import rl_jsonl_asset
from dataprep_assets.pipelines.blend.rl.rl_jsonl_checks import rl_jsonl_checks
from dataprep_assets.pipelines.blend.runs import RUNS, RunFacts
from dataprep_assets.pipelines.blend.sft.packed_sft_asset import packed_sft_asset
from dataprep_assets.pipelines.blend.sft.packed_sft_checks import packed_sft_checks
from dataprep_assets.pipelines.blend.status import stale, sweep_blend
from dataprep_assets.pipelines.blend.stream import build_blend_certificate, load_blend_certificate
from dataprep_assets.pipelines.corpus.engine_certificate_asset import engine_certificate_asset

_SHARDS = {
    "pretrain": (indexed_bins_asset, indexed_bins_checks),
    "sft": (packed_sft_asset, packed_sft_checks),
    "rl": (rl_jsonl_asset, rl_jsonl_checks),
}


STREAMED_RUNS = 64
"""Runs of a blend that streams, at most: each looks at what is known of every shard."""


def streamed_shards(blend: BlendDeclaration, total: int) -> int:
    """Shards of each run of a blend that streams: enough to keep the workers busy until its end."""
    return max(4 * worker_count(blend.workers), -(-total // STREAMED_RUNS))


@scaffold_with(TrainingBlendScaffolder)
class TrainingBlend(DatasetComponent):
    """Datasets and weights to what a trainer reads: bin/idx, packed Parquet with a loss mask, or JSON lines."""

    model = BlendDeclaration
    declaration: BlendDeclaration

    def __init__(self, declaration: BlendDeclaration) -> None:
        super().__init__(declaration)
        self._run_hash: str | None = None

    @cached_property
    def assets(self) -> BlendAssets:
        return BlendAssets(self.declaration)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        dataset, blend = self.assets, self.declaration
        shards_asset, shards_checks = _SHARDS[blend.stage]
        assets = [
            blend_plan_asset(dataset),
            blend_preview_asset(dataset),
            blend_snapshot_asset(dataset),
            shards_asset(dataset),
            blend_asset(dataset),
        ]
        checks = [
            blend_plan_checks(dataset),
            blend_preview_checks(dataset),
            blend_snapshot_checks(dataset),
            shards_checks(dataset),
            blend_checks(dataset),
        ]
        if blend.stage != "rl":
            certificate = engine_certificate_asset(
                dataset,
                lambda store: build_blend_certificate(blend, store, dataset.plan(store)),
                lambda store: load_blend_certificate(blend, store),
                deps=[dataset.key("blend_preview")],
            )
            assets.append(certificate)
            checks.append(blend_certificate_checks(dataset))
        return dg.Definitions(assets=assets, asset_checks=checks)

    def steps(self, store: ArtifactStore) -> Iterator[Step]:
        """Plan and preview, the certificate, the shards in one range or, streaming, several, then the run."""
        key = self.assets.key
        yield Step("plan and preview", [key("blend_plan"), key("blend_preview")])
        if self.declaration.stage != "rl":
            yield Step("engine certificate", [key("engine_certificate")])
        plan = self.assets.plan(store)
        self._run_hash = plan.run_hash
        done, total = 0, len(plan.partitions)
        ranges = launches(self.declaration, plan, streamed_shards(self.declaration, total))
        for shards in ranges:
            title = f"{total} shards of {len(plan.units)} datasets"
            if len(ranges) > 1:
                title = f"shards {done + 1} to {done + len(shards)} of {title}"
            yield Step(title, [key("blend_snapshot"), self.assets.shards], partition_range(shards))
            done += len(shards)
        yield Step("blend", [key(NAME)])

    def stale(self, store: ArtifactStore) -> Iterator[str]:
        behind = list(stale(self.declaration, store))
        if has_blend_plan(self.declaration, store):
            self._run_hash = self.assets.plan(store).run_hash
        return iter(behind)

    def sweep(self, store: ArtifactStore) -> None:
        sweep_blend(self.declaration, store)

    @property
    def product(self) -> tuple[str, str | None]:
        """The run of the plan that `steps` or `stale` saw last; before them it has no name, and the plan is meant."""
        return ("blend_plan", None) if self._run_hash is None else (RUNS, self._run_hash)

    def summary(self, store: ArtifactStore) -> list[str]:
        blend = self.declaration
        plan = self.assets.plan(store)
        receipt = store.require(blend.artifact(RUNS, plan.run_hash))
        facts = RunFacts.of(receipt)
        lines = [f"{'dataset':<28}{'split':<8}{'shards':>8}{'rows':>12}{'tokens':>16}{'requested':>11}{'realised':>10}"]
        for row in facts.realised:
            lines.append(
                f"{row.name:<28}{row.split:<8}{row.shards:>8,}{row.rows:>12,}{row.tokens:>16,}"
                f"{row.requested:>11.4f}{row.realised:>10.4f}"
            )
        shards = f"{len(plan.partitions):,} {SHARDS[blend.stage]}, {len(facts.empty):,} of them empty"
        lines.append(f"{shards}; run {plan.run_hash}")
        return [*lines, *(f"for the trainer: {line}" for line in run_trainer_lines(receipt))]
