"""Checks of `<dataset>/blend_preview`: the blend can be what it is asked to be, and there is room for it."""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_preview import BlendPreviewFacts
from dataprep_assets.pipelines.blend.blend_preview_proofs import nothing_rounds_to_zero
from dataprep_assets.pipelines.corpus import snapshot_proofs
from resources import StorageResource

CHECKS = {
    "nothing_rounds_to_zero": "Every dataset with a weight has data, and its share is at least one training sample.",
    "disk_headroom": "What is to be fetched and made will fit, with 20 % to spare.",
}


def blend_preview_checks(dataset: BlendAssets) -> dg.AssetChecksDefinition:
    """All checks of the preview."""
    blend = dataset.blend

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store = dataset.store(storage)
        receipt = store.require(blend.artifact("blend_preview"))
        yield "nothing_rounds_to_zero", nothing_rounds_to_zero(receipt)
        facts = BlendPreviewFacts.of(receipt)
        needed = facts.bytes_to_fetch + facts.disk_bytes
        yield "disk_headroom", snapshot_proofs.disk_headroom(store.root, needed)

    return checks_of(dataset.key("blend_preview"), CHECKS, findings, reports=("disk_headroom",))
