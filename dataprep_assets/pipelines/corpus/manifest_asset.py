"""The asset `<dataset>/manifest`: every source file and the frozen shard plan; registers the partitions."""

from typing import Any

import dagster as dg

from dataprep_assets.orchestration.dataset import result
from dataprep_assets.pipelines.corpus.corpus_asset import CorpusAssets, register_partitions
from dataprep_assets.pipelines.corpus.manifest import build_manifest_artifact
from resources import StorageResource


def manifest_asset(dataset: CorpusAssets) -> dg.AssetsDefinition:
    """List the source, freeze the plan, register one partition a shard."""

    @dg.asset(
        key=dataset.key("manifest"),
        **dataset.common(
            {"json", dataset.corpus.source.kind}, "Every source file, in natural order, and the shard plan."
        ),
    )
    def manifest(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store = dataset.store(storage)
        receipt, reused = build_manifest_artifact(dataset.corpus, store)
        found = dataset.manifest(storage)
        register_partitions(dataset, context.instance, found)
        summary: dict[str, Any] = {f"shards_{s}": len(found.partitions(s)) for s in dataset.corpus.splits}
        for split in dataset.corpus.splits:
            summary[f"files_{split}"] = sum(e.split == split for e in found.entries)
            summary[f"source_bytes_{split}"] = sum(e.size_bytes for e in found.entries if e.split == split)
        if commit := receipt.facts["commit"]:
            summary["commit"] = commit
        return result(receipt, store.location(dataset.corpus.artifact("manifest")), reused, summary)

    return manifest
