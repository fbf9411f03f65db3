"""The asset `<dataset>/task_folder`, a partition a task (or a task × version): its files where the trainer looks."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.orchestration.dataset import SHARDS_PER_RUN, DatasetAssets, table
from dataprep_assets.orchestration.shards import report_shards
from dataprep_assets.pipelines.corpus.token_bins import ShardResult
from dataprep_assets.pipelines.tasks.declaration import ARTIFACT, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.migration import migrate_task
from dataprep_assets.pipelines.tasks.record import MigrationRecord, read_record
from dataprep_assets.pipelines.tasks.routes import partitions, route_of, task_line, task_value
from resources import StorageResource


def task_partitions(declaration: TaskMigrationDeclaration) -> dg.StaticPartitionsDefinition:
    """The tasks of a declaration; where all versions of one are wanted, a partition is a task and a version."""
    return dg.StaticPartitionsDefinition(partitions(declaration))


def task_folder_asset(dataset: DatasetAssets, declaration: TaskMigrationDeclaration) -> dg.AssetsDefinition:
    """Migrate each task folder; one that cannot be migrated holds up no other."""

    @dg.asset(
        key=dataset.key(ARTIFACT),
        partitions_def=task_partitions(declaration),
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN),
        **dataset.common({"json", "file"}, _about(declaration)),
    )
    def task_folder(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store = dataset.store(storage)

        def outcomes() -> Iterator[ShardResult]:
            for partition in context.partition_keys:
                try:
                    done = migrate_task(declaration, store, partition)
                except DataprepError as error:
                    yield ShardResult(partition=partition, error=error)
                else:
                    untouched = done.reused and not done.placed
                    yield ShardResult(partition=partition, receipt=done.receipt, reused=untouched)

        def describe(partition: str, _: Receipt) -> Mapping[str, Any]:
            record = read_record(store.local(declaration.artifact(ARTIFACT, partition)))
            return {} if record is None else _described(declaration, partition, record)

        yield from report_shards(context, dataset, ARTIFACT, store, outcomes(), describe=describe, noun="task")

    return task_folder


def _about(declaration: TaskMigrationDeclaration) -> str:
    """The asset's page in the UI, in Markdown: what it is, and what is wanted of each task."""
    tasks = []
    for name, task in declaration.tasks.items():
        files = ", ".join(file.name for file in declaration.contract(name).files.values())
        tasks.append(f"| {name} | {task.version} | {task.mode} | {files} |")
    about = (
        "Task folders of the old project, where the new project's trainer looks. A partition is a task, or a task and "
        "a version; its metadata says which file came from where, how rows differ from the original, and what `TASK` "
        "has to be in a training script."
    )
    listed = "\n".join(["| task | version | mode | files |", "|---|---|---|---|", *tasks])
    return "\n\n".join(part for part in (declaration.description, about, listed) if part)


def _described(declaration: TaskMigrationDeclaration, partition: str, record: MigrationRecord) -> dict[str, Any]:
    """What came from where, how it differs from its original, and the value for a training script."""
    route = route_of(declaration, partition)
    shown: dict[str, Any] = {
        "TASK": dg.MetadataValue.text(task_value(route)),
        "training_script_line": dg.MetadataValue.text(task_line(route)),
        "version": dg.MetadataValue.text(record.version),
        "what_came_from_where": table(record.origin_table()),
        "files_absent": dg.MetadataValue.int(len(record.absent)),
    }
    shown |= {f"rows_{file.split}": dg.MetadataValue.int(file.rows) for file in record.files}
    if record.differences:
        shown[f"difference_from_{record.compared_with}"] = table(record.difference_table())
    for split, difference in record.differences.items():
        shown[f"rows_changed_{split}"] = dg.MetadataValue.int(difference.changed)
        shown[f"labels_changed_{split}"] = dg.MetadataValue.int(difference.relabelled)
    if record.history:
        shown["files_replaced"] = dg.MetadataValue.int(len(record.history))
    if record.ignored_files:
        shown["files_that_the_trainer_never_reads"] = table([{"file": name} for name in record.ignored_files])
    if record.unordered_versions:
        shown["versions_passed_over"] = table([v.model_dump() for v in record.unordered_versions])
    return shown
