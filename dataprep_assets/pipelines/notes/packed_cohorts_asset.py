"""The asset `<dataset>/packed_cohorts`, a partition a cohort (`YYYY-MM`): its notes as packed rows."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.orchestration.dataset import CPU_POOL, SHARDS_PER_RUN, DatasetAssets, worker_count
from dataprep_assets.orchestration.shards import OnProgress, report_work
from dataprep_assets.pipelines.corpus.token_bins import ShardResult
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.packed_cohorts import (
    PACKED_COHORTS,
    PackedCohortsFacts,
    build_packed_cohorts,
    cohort_works,
)
from resources import StorageResource


def cohort_partitions(notes: NotesDeclaration) -> dg.StaticPartitionsDefinition:
    """The declared months, in order: a range of them is a range of cohorts."""
    return dg.StaticPartitionsDefinition(notes.months.expected)


def packed_cohorts_asset(dataset: DatasetAssets, notes: NotesDeclaration) -> dg.AssetsDefinition:
    """Render, tokenize, split, pack and pad the notes of each cohort; one that fails holds up no other."""

    @dg.asset(
        key=dataset.key(PACKED_COHORTS),
        deps=[dataset.key("engine_certificate")],
        partitions_def=cohort_partitions(notes),
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN),
        pool=CPU_POOL,
        **dataset.common({"json", "arrow"}, "Packed rows of each birth month: `<YYYY>-<MM>.jsonl`, and as Arrow."),
    )
    def packed_cohorts(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store, workers = dataset.store(storage), worker_count(notes.workers)
        works = cohort_works(notes, store, context.partition_keys)

        def start(on_progress: OnProgress) -> Iterator[ShardResult]:
            return build_packed_cohorts(works, workers=workers, on_progress=on_progress)

        yield from report_work(
            context, dataset, PACKED_COHORTS, store, start, workers=workers, describe=_described, noun="cohort"
        )

    return packed_cohorts


def _described(_: str, receipt: Receipt) -> Mapping[str, Any]:
    """Counts of patients and rows, and how full the rows are."""
    facts = PackedCohortsFacts.of(receipt)
    shown: dict[str, Any] = {
        "patients": dg.MetadataValue.int(facts.patients),
        "patients_without_notes": dg.MetadataValue.int(facts.patients_without_notes),
        "row_length": dg.MetadataValue.int(facts.row_length),
        "layout": dg.MetadataValue.text(facts.layout),
    }
    rows = sum(split.rows for split in facts.splits.values())
    shown["rows"] = dg.MetadataValue.int(rows)
    if rows and receipt.ledger is not None:
        shown["fill"] = dg.MetadataValue.float(round(receipt.ledger.tokens / (rows * facts.row_length), 5))
    return shown
