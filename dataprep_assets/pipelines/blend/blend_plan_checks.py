"""Checks of `<dataset>/blend_plan`: it takes every row once, and is what it would be now."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.pipelines.blend import blend_plan_proofs
from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from resources import StorageResource

CHECKS = {
    "plan_covers_sources": "Every file is in one shard, or in consecutive rows from the first to the last.",
    "plan_is_current": "Sources, tokenizer bytes, template text and options are those that the plan froze.",
}


def blend_plan_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the plan."""
    blend = dataset.blend

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store = dataset.store(storage)
        yield "plan_covers_sources", blend_plan_proofs.plan_covers_sources(dataset.plan(store), blend.max_rows)
        yield "plan_is_current", blend_plan_proofs.plan_is_current(blend, store)

    return checks_of(dataset.key("blend_plan"), CHECKS, findings)
