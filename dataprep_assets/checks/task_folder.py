"""Checks of `<dataset>/task_folder`: what a person finds only when the training run fails, or never.

One result a check for all tasks of the declaration, with a table of those that fail it: reading them all takes seconds.
"""

from collections.abc import Iterator

import dagster as dg

from dataprep_assets.assets.dataset import DatasetAssets, partitions_of_run
from dataprep_assets.builds.tasks.declaration import ARTIFACT, TaskMigrationDeclaration
from dataprep_assets.builds.tasks.migration import partitions, work_of
from dataprep_assets.builds.tasks.record import read_record
from dataprep_assets.checks.findings import checks_of, summarized
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.proofs.finding import Finding
from dataprep_assets.proofs.task_folder import TASK_PROOFS, TaskFolder, proofs_for, prove_task_folder
from resources import StorageResource

REPORTS = ("row_counts", "labels_equal_original", "validation_untouched", "no_train_text_in_validation")
"""What is told without stopping: a version may differ from the reference on purpose."""


def task_folder_checks(dataset: DatasetAssets, declaration: TaskMigrationDeclaration) -> dg.AssetChecksDefinition:
    """The checks that the contracts of the declared tasks ask for."""
    asked = {name for task in declaration.tasks for name in proofs_for(declaration.contract(task))}
    descriptions = {name: what for name, what in TASK_PROOFS.items() if name in asked}

    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store, every = dataset.store(storage), partitions(declaration)
        found = {partition: _proven(declaration, store, partition) for partition in every}
        for name in descriptions:
            of_tasks = {partition: proofs[name] for partition, proofs in found.items() if name in proofs}
            yield name, summarized(of_tasks, partitions_of_run(context.run, every), 0, noun="task")

    return checks_of(dataset.key(ARTIFACT), descriptions, findings, reports=REPORTS)


def _proven(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> dict[str, Finding]:
    try:
        work = work_of(declaration, partition)
        artifact = declaration.artifact(ARTIFACT, partition)
        record = read_record(store.local(artifact)) if store.receipt(artifact) else None
        return prove_task_folder(TaskFolder.of(work, record, sensitive=declaration.sensitive))
    except DataprepError as error:
        task = partition.partition(".")[0]
        return dict.fromkeys(proofs_for(declaration.contract(task)), Finding(passed=False, summary=str(error)))
