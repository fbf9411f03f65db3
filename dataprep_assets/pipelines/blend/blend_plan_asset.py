"""The asset `<dataset>/blend_plan`: which files, or rows of files, make each shard; registers the shards' partitions.

A blend is `<dataset>/blend_plan → blend_preview → blend_snapshot, engine_certificate → indexed_bins | packed_sft |
rl_jsonl → blend`, in one group named after the dataset.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dagster as dg

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.dataset import NETWORK_POOL, DatasetAssets, result, table
from dataprep_assets.orchestration.dynamic_partitions import register_in_order
from dataprep_assets.pipelines.blend.blend_plan import build_blend_plan, load_blend_plan
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan, PlannedUnit
from resources import StorageResource

SHARDS = {"pretrain": "indexed_bins", "sft": "packed_sft", "rl": "rl_jsonl"}
"""The artifact that a stage's shards are."""


@dataclass(frozen=True)
class BlendAssets(DatasetAssets):
    """A training blend. Its shards, `<name in the blend>-<shard>`, are dynamic partitions, which the plan registers."""

    declaration: BlendDeclaration

    @property
    def blend(self) -> BlendDeclaration:
        """The declaration."""
        return self.declaration

    @cached_property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """The chosen shards of every dataset of the blend."""
        return dg.DynamicPartitionsDefinition(name=f"{self.blend.dataset}_shards")

    @property
    def shards(self) -> dg.AssetKey:
        """The key of the asset that makes the shards."""
        return self.key(SHARDS[self.blend.stage])

    def plan(self, store: ArtifactStore) -> BlendPlan:
        """The committed plan."""
        return load_blend_plan(self.blend, store)


def blend_plan_asset(dataset: BlendAssets) -> dg.AssetsDefinition:
    """List every source, freeze the plan, register one partition a shard."""
    blend = dataset.blend

    @dg.asset(
        key=dataset.key("blend_plan"),
        pool=NETWORK_POOL,
        **dataset.common({"json"}, "Every source file by its content, and the shards of each dataset."),
    )
    def blend_plan(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store = dataset.store(storage)
        receipt, reused = build_blend_plan(blend, store)
        plan = dataset.plan(store)
        register_in_order(context.instance, dataset.partitions, plan.partitions)
        extra = {
            "run_hash": plan.run_hash,
            "datasets": len(plan.units),
            "shards": len(plan.partitions),
            "source_bytes": sum(unit.size_bytes for unit in plan.units),
            "plan_table": table([plan_row(blend, unit) for unit in plan.units]),
        }
        return result(receipt, store.place(blend.artifact("blend_plan")), reused, extra)

    return blend_plan


def plan_row(blend: BlendDeclaration, unit: PlannedUnit) -> dict[str, str | int | float]:
    """A dataset's row of `plan_table`, with the columns that Nemotron's W&B table of a stage has."""
    dataset, sample = unit.dataset, blend.sample
    row: dict[str, Any] = {
        "dataset_name": unit.name,
        "path": dataset.path,
        "size": unit.size_bytes,
        "weight": dataset.weight,
        "split": dataset.split or unit.split,
        "subset": dataset.subset,
        "num_shards": len(unit.shards),
    }
    if blend.stage == "pretrain":
        pretrain = blend.pretrain_options
        row |= {"dtype": pretrain.dtype, "min_doc_chars": pretrain.min_doc_chars}
        row |= {"max_doc_tokens": pretrain.max_doc_tokens}
    elif blend.stage == "sft":
        sft = blend.sft_options
        row |= {"pack_size": sft.pack_size, "algorithm": sft.algorithm, "max_doc_tokens": sft.max_doc_tokens}
    row |= {"max_rows": blend.max_rows, "sample": len(unit.chosen) if sample else None}
    row |= {"files": len(unit.entries), "commit": unit.commit, "plan_hash": unit.plan_hash, "status": "planned"}
    return {name: "" if value is None else value for name, value in row.items()}
