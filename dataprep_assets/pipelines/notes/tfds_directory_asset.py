"""The assets `<dataset>/tfds_directory` and `<dataset>/array_record_directory`: what a trainer's loader opens."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.orchestration.dataset import DatasetAssets, result, table
from dataprep_assets.pipelines.notes.cohort_shards import NAMES as SHARDS
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration, ReplayDeclaration
from dataprep_assets.pipelines.notes.replay import build_replay
from dataprep_assets.pipelines.notes.tfds_directory import NAMES, build_tfds_directory, maxtext_settings
from resources import StorageResource

_DESCRIPTIONS: dict[FileFormat, str] = {
    "tfrecord": "All cohorts under TFDS names, with `dataset_info.json` and `features.json`: tfds.builder reads it.",
    "array_record": "All cohorts as ArrayRecord files under TFDS names: grain reads it.",
}


def tfds_directory_asset(dataset: DatasetAssets, notes: NotesDeclaration, format: FileFormat) -> dg.AssetsDefinition:
    """Name the shards of all cohorts as TFDS wants them and describe them; refuses gaps and duplicates."""

    @dg.asset(
        key=dataset.key(NAMES[format]),
        deps=[dataset.key(SHARDS[format])],
        **dataset.common({"tensorflow", "file"}, _DESCRIPTIONS[format]),
    )
    def tfds_directory(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store = dataset.store(storage)
        receipt, reused = build_tfds_directory(notes, store, format)
        settings = maxtext_settings(notes, store, format)
        extra = {
            **_counts(receipt),
            "months": receipt.facts["months"],
            "patients": receipt.facts["patients"],
            "patients_in_several_cohorts": receipt.facts["patients_in_several_cohorts"],
            "maxtext": dg.MetadataValue.md("```\n" + " ".join(f"{k}={v}" for k, v in settings.items()) + "\n```"),
        }
        return result(receipt, store.location(notes.artifact(NAMES[format])), reused, extra)

    return tfds_directory


def combined_directory_asset(dataset: DatasetAssets, replay: ReplayDeclaration) -> dg.AssetsDefinition:
    """Combine the directories of several datasets, shard by shard."""
    name = NAMES[replay.format]

    @dg.asset(
        key=dataset.key(name),
        deps=[dg.AssetKey([source.dataset, name]) for source in replay.sources],
        **dataset.common({"tensorflow", "file"}, f"Several datasets as one, by `{replay.mode}`; see provenance.json."),
    )
    def combined_directory(context: dg.AssetExecutionContext, storage: StorageResource) -> dg.MaterializeResult[Any]:
        store = dataset.store(storage)
        receipt, reused = build_replay(replay, store)
        return result(receipt, store.location(replay.artifact(name)), reused, _counts(receipt))

    return combined_directory


def _counts(receipt: Receipt) -> Mapping[str, Any]:
    splits = receipt.facts.get("splits", {})
    rows = [{"split": name, **{k: v for k, v in of.items() if isinstance(v, int)}} for name, of in splits.items()]
    return {"splits": table(rows)} if rows else {}
