"""The assets `<dataset>/tfrecord_shards` and `<dataset>/array_record_shards`, a partition a cohort."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.orchestration.dataset import CPU_POOL, SHARDS_PER_RUN, DatasetAssets, worker_count
from dataprep_assets.orchestration.shards import OnProgress, report_work
from dataprep_assets.pipelines.corpus.token_bins import ShardResult
from dataprep_assets.pipelines.notes.cohort_shards import COHORT_SHARDS, CohortShardsFacts, build_shards, shards_works
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.packed_cohorts import PACKED_COHORTS
from dataprep_assets.pipelines.notes.packed_cohorts_asset import cohort_partitions
from resources import StorageResource

_KINDS: dict[FileFormat, set[str]] = {"tfrecord": {"tensorflow", "file"}, "array_record": {"file"}}


def cohort_shards_asset(dataset: DatasetAssets, notes: NotesDeclaration, format: FileFormat) -> dg.AssetsDefinition:
    """Write the rows of each cohort as shards of at most `rows_per_shard` examples."""

    @dg.asset(
        key=dataset.key(COHORT_SHARDS[format]),
        deps=[dataset.key(PACKED_COHORTS)],
        partitions_def=cohort_partitions(notes),
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN),
        pool=CPU_POOL,
        **dataset.common(_KINDS[format], f"Shards of at most {notes.rows_per_shard} examples of each cohort."),
    )
    def cohort_shards(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store, workers = dataset.store(storage), worker_count(notes.workers)
        works = shards_works(notes, store, context.partition_keys, format)

        def start(on_progress: OnProgress) -> Iterator[ShardResult]:
            return build_shards(works, workers=workers, on_progress=on_progress)

        yield from report_work(
            context, dataset, COHORT_SHARDS[format], store, start, workers=workers, describe=_described, noun="cohort"
        )

    return cohort_shards


def _described(_: str, receipt: Receipt) -> Mapping[str, Any]:
    splits = CohortShardsFacts.of(receipt).splits
    lengths = [rows for split in splits.values() for rows in split.shard_lengths]
    return {"shards": dg.MetadataValue.int(len(lengths)), "rows": dg.MetadataValue.int(sum(lengths))}
