"""The artifact `<dataset>/task_folder`, one partition per task (or version of one): its files, for the trainer."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.graph.losses import Loss
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Shown, Table
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, Partitions, Proof, Proofs
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.migration import VERSION, migrate_task, recipe_now
from dataprep_assets.pipelines.tasks.record import MigrationRecord, UnorderedVersion, read_record
from dataprep_assets.pipelines.tasks.routes import partitions, route_of, task_line, task_value
from dataprep_assets.pipelines.tasks.source_watch import tasks_watch
from dataprep_assets.pipelines.tasks.task_folder_findings import examine
from dataprep_assets.pipelines.tasks.task_folder_proofs import TASK_PROOFS, proofs_for


def task_folder_spec(declaration: TaskMigrationDeclaration) -> ArtifactSpec:
    """The task folders of a migration; one that cannot be migrated does not stop the others."""
    every = partitions(declaration)
    return ArtifactSpec(
        declaration=declaration,
        name=TASK_FOLDER,
        version=VERSION,
        description=_about(declaration),
        kinds={"json", "file"},
        partitions=Partitions.fixed(every, "task"),
        watch=tasks_watch(declaration, every),
        recipes=partial(_recipes, declaration),
        build=partial(_build, declaration),
        metadata=partial(_metadata, declaration),
        losses=partial(_losses, declaration),
        proofs=Proofs(proofs=_proofs(declaration), examine=partial(examine, declaration, every)),
    )


def _proofs(declaration: TaskMigrationDeclaration) -> tuple[Proof, ...]:
    """The proofs that the contracts of the declared tasks need."""
    asked = {proof for task in declaration.tasks for proof in proofs_for(declaration.contract(task))}
    return tuple(proof for proof in TASK_PROOFS if proof in asked)


def _recipes(
    declaration: TaskMigrationDeclaration, store: ArtifactStore, chosen: Sequence[str | None]
) -> Iterator[Recipe]:
    for partition in chosen:
        yield recipe_now(declaration, store, partition or "")


def _build(declaration: TaskMigrationDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    for partition in request.partitions:
        try:
            done = migrate_task(declaration, request.store, partition)
        except DataprepError as error:
            yield Outcome(partition=partition, error=error)
        else:
            # files that were put back are work done, even if the artifact that describes them was current
            yield Outcome.of(done.receipt, done.reused and not done.placed)


def _about(declaration: TaskMigrationDeclaration) -> str:
    """The asset's description in the UI, in Markdown: what it is, and what is declared for each task."""
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


def _losses(declaration: TaskMigrationDeclaration, store: ArtifactStore, receipts: Sequence[Receipt]) -> Iterator[Loss]:
    """Files that are not there or never read, rows of the original without a row, and folders that are no version."""
    passed_over: dict[tuple[str, str], Loss] = {}
    for receipt in receipts:
        partition = receipt.partition or ""
        if (record := read_record(store.local(declaration.artifact(TASK_FOLDER, partition)))) is None:
            continue
        passed_over |= {(record.task, one.name): _not_a_version(record, one) for one in record.unordered_versions}
        files = len(record.files) + len(record.absent) + len(record.ignored_files)
        yield Loss(
            action="left out",
            reason="never_read",
            count=len(record.ignored_files),
            of=files,
            unit="file",
            part=partition,
            files=dict.fromkeys(record.ignored_files, 1),
        )
        for absent in record.absent:
            yield Loss(
                action="left out",
                reason="absent",
                kind=absent.cause,
                count=1,
                of=files,
                unit="file",
                part=partition,
                files={absent.name: 1},
            )
        for split, difference in record.differences.items():
            file = record.file(split)
            yield Loss(
                action="left out",
                reason="no_row_of_its_id",
                kind=f"rows of the {record.compared_with}",
                count=difference.missing,
                of=difference.original_rows,
                unit="row",
                part=f"{partition}, {split}",
                files={} if file is None else {file.name: difference.missing},
            )
    yield from passed_over.values()


def _not_a_version(record: MigrationRecord, folder: UnorderedVersion) -> Loss:
    return Loss(
        action="left out",
        reason="not_a_version",
        kind=folder.reason,
        count=1,
        of=0,  # which folders are versions is known of the chosen ones alone
        unit="folder",
        part=record.task,
        files={folder.name: 1},
    )


def _metadata(declaration: TaskMigrationDeclaration, store: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    partition = receipt.partition or ""
    record = read_record(store.local(declaration.artifact(TASK_FOLDER, partition)))
    return {} if record is None else _described(declaration, partition, record)


def _described(declaration: TaskMigrationDeclaration, partition: str, record: MigrationRecord) -> dict[str, Shown]:
    """Metadata: where the files came from, how they differ from the original, and the value for a training script."""
    route = route_of(declaration, partition)
    shown: dict[str, Shown] = {
        "TASK": task_value(route),
        "training_script_line": task_line(route.target),
        "version": record.version,
        "what_came_from_where": Table(record.origin_table()),
        "files_absent": len(record.absent),
    }
    shown |= {f"rows_{file.split}": file.rows for file in record.files}
    if record.differences:
        shown[f"difference_from_{record.compared_with}"] = Table(record.difference_table())
    for split, difference in record.differences.items():
        shown[f"rows_changed_{split}"] = difference.changed
        shown[f"labels_changed_{split}"] = difference.relabelled
    if record.history:
        shown["files_replaced"] = len(record.history)
    if record.ignored_files:
        shown["files_that_the_trainer_never_reads"] = Table([{"file": name} for name in record.ignored_files])
    if record.unordered_versions:
        shown["versions_passed_over"] = Table([v.model_dump() for v in record.unordered_versions])
    return shown
