"""The artifacts `<dataset>/tfrecord_shards` and `<dataset>/array_record_shards`, one partition per cohort.

The rows of each cohort as shards that trainers read. `sharded_cohort` makes them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from dataprep_assets.execution.jobs import Outcome, TaskJob, run_tasks
from dataprep_assets.execution.pool import worker_count
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Shown
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, Proofs
from dataprep_assets.graph.verdicts import of_all_partitions, prove_all
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.cohort_shards_proofs import SHARD_PROOFS, prove_cohort_shards
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.packed_files import PACKED_COHORTS
from dataprep_assets.pipelines.notes.sharded_cohort import (
    COHORT_SHARDS,
    VERSION,
    CohortShardsFacts,
    ShardedCohort,
    ensure_sharded_cohort,
)

_KINDS: dict[FileFormat, set[str]] = {"tfrecord": {"tensorflow", "file"}, "array_record": {"file"}}


def cohort_shards_spec(notes: NotesDeclaration, format: FileFormat, *, packed: ArtifactSpec) -> ArtifactSpec:
    """The shards in one format.

    Args:
        notes: The dataset.
        format: One of its formats.
        packed: The packed cohorts, whose partitions the shards share.
    """
    return ArtifactSpec(
        declaration=notes,
        name=COHORT_SHARDS[format],
        version=VERSION,
        description=f"Shards of at most {notes.rows_per_shard} examples of each cohort.",
        kinds=_KINDS[format],
        inputs=(packed,),
        partitions=packed.partitions,
        pool="cpu",
        recipes=partial(_recipes, notes, format),
        build=partial(_build, notes, format),
        metadata=_metadata,
        columns=dict.fromkeys(notes.columns, _column_type(notes)),
        proofs=Proofs(proofs=SHARD_PROOFS, examine=partial(_examine, notes, format)),
    )


def _column_type(notes: NotesDeclaration) -> str:
    # as an Example stores integers; TFDS casts them to the int32 of its features.json
    return "list<int64>" if notes.stored_length is None else f"list<int64>[{notes.stored_length}]"


def sharded_cohorts(
    notes: NotesDeclaration, store: ArtifactStore, months: Iterable[str], format: FileFormat = "tfrecord"
) -> list[ShardedCohort]:
    """The shards in one format of the given months of ``notes``, to be made or proven, in their order.

    A month whose packed cohort is not in ``store`` fails alone, when its shards are built.
    """
    chosen = list(months)
    packed = [notes.artifact(PACKED_COHORTS, month) for month in chosen]
    return [
        ShardedCohort(
            artifact=notes.artifact(COHORT_SHARDS[format], month),
            packed=artifact,
            store=store,
            notes=notes,
            format=format,
            month=month,
            source_bytes=0 if receipt is None else receipt.total_bytes,
        )
        for month, artifact, receipt in zip(chosen, packed, store.receipts(packed), strict=True)
    ]


def _build(notes: NotesDeclaration, format: FileFormat, request: BuildRequest) -> Iterator[Outcome]:
    cohorts = sharded_cohorts(notes, request.store, request.partitions, format)
    return run_tasks(
        [TaskJob(cohort, ensure_sharded_cohort) for cohort in cohorts],
        workers=request.workers,
        engine=notes.engine,
        progress=request.progress,
    )


def _recipes(
    notes: NotesDeclaration, format: FileFormat, store: ArtifactStore, months: Sequence[str | None]
) -> Iterator[Recipe]:
    for cohort in sharded_cohorts(notes, store, [month or "" for month in months], format):
        yield cohort.recipe(store.require(cohort.packed))


def _examine(
    notes: NotesDeclaration, format: FileFormat, store: ArtifactStore, examined: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    workers = worker_count(notes.workers)
    cohorts = {cohort.month: cohort for cohort in sharded_cohorts(notes, store, examined, format)}
    return of_all_partitions(
        store,
        SHARD_PROOFS,
        notes.months.expected,
        examined,
        artifact=partial(notes.artifact, COHORT_SHARDS[format]),
        prove=lambda months: prove_all(
            [cohorts[month] for month in months], prove_cohort_shards, workers, engine=notes.engine
        ),
        noun="cohort",
    )


def _metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    lengths = [rows for split in CohortShardsFacts.of(receipt).splits.values() for rows in split.shard_lengths]
    return {"shards": len(lengths), "rows": sum(lengths)}
