"""The asset `<dataset>/blend_preview`: what the blend will be, before anything is fetched or tokenized."""

from dataclasses import asdict
from typing import Any

import dagster as dg

from dataprep_assets.orchestration.dataset import result, table
from dataprep_assets.orchestration.share_plot import plotted
from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_preview import BlendPreviewFacts, build_blend_preview
from resources import StorageResource


def blend_preview_asset(dataset: BlendAssets) -> dg.AssetsDefinition:
    """Look at a sample of every dataset; its check stops the run where a dataset would round to nothing."""
    blend = dataset.blend

    @dg.asset(
        key=dataset.key("blend_preview"),
        deps=[dataset.key("blend_plan")],
        **dataset.common({"json"}, "Rows, tokens, epochs and realisable weights of each dataset, from a sample of it."),
    )
    def blend_preview(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store = dataset.store(storage)
        receipt, reused = build_blend_preview(blend, store, dataset.plan(store))
        facts = BlendPreviewFacts.of(receipt)
        rows = [asdict(source) for source in facts.sources]
        extra: dict[str, Any] = {"preview": table(rows), "requested_and_realisable": plotted(rows, "realisable")}
        extra |= {"expected_rows": facts.rows, "expected_tokens": facts.tokens, "expected_shards": facts.shards}
        extra |= {"bytes_to_fetch": facts.bytes_to_fetch, "disk_bytes": facts.disk_bytes}
        extra["rounds_to_zero"] = ", ".join(facts.rounds_to_zero) or "none"
        return result(receipt, store.place(blend.artifact("blend_preview")), reused, extra)

    return blend_preview
