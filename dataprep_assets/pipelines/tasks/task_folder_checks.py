"""Checks of `<dataset>/task_folder`: what a person finds only when the training run fails, or never.

A check has one result for all tasks of the declaration, not one a partition: reading every folder takes seconds, so a
result always speaks of all that was migrated, also of folders that somebody changed since, and one table answers
"which tasks may be trained on". Its summary names every failing task; the table has one row a task, the failing ones
first and with their first defects. A task that was never migrated fails when the run is about it (a run of the checks
alone is about every task), and is else listed as not migrated yet.
"""

from collections.abc import Iterator, Mapping, Sequence

import dagster as dg

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.finding import Finding, Row, first_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.checks import checks_of
from dataprep_assets.orchestration.dataset import DatasetAssets, partitions_of_run
from dataprep_assets.pipelines.tasks.declaration import ARTIFACT, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.migrated_proofs import as_migrated
from dataprep_assets.pipelines.tasks.record import read_record
from dataprep_assets.pipelines.tasks.routes import partitions, route_of
from dataprep_assets.pipelines.tasks.task_folder_proofs import TASK_PROOFS, proofs_for, prove_task_folder
from resources import StorageResource

REPORTS = ("ids_unique", "row_counts", "validation_untouched", "no_train_text_in_validation")
"""What is told in red without failing the run; every other check blocks.

A check blocks when the trainer would stop, would train on other samples than the file's rows, or would learn a wrong
label: that training is wasted. These four are about data that trains as it stands. Other numbers of rows than the
original's (`version_4-3` has 700, with repeated ids) may be an experiment, and must not fail the run of the 24 good
versions beside it. A changed validation file, or one that shares texts with train, spoils what is measured, and that
can be measured again.
"""

_DEFECTS_SHOWN = 5
"""Defects of one task in the table; a hundred more of the same kind tell nobody more."""


def task_folder_checks(dataset: DatasetAssets, declaration: TaskMigrationDeclaration) -> dg.AssetChecksDefinition:
    """The checks that the contracts of the declared tasks ask for."""
    asked = {name for task in declaration.tasks for name in proofs_for(declaration.contract(task))}
    descriptions = {name: what for name, what in TASK_PROOFS.items() if name in asked}

    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store, every = dataset.store(storage), partitions(declaration)
        meant = partitions_of_run(context.run, every)
        proven = {p: _proven(declaration, store, p) for p in every if p in meant or _is_there(declaration, store, p)}
        waiting = [p for p in every if p not in proven]
        for name in descriptions:
            # a check that is asked of unmigrated tasks alone has no result: skipped, neither passed nor failed
            if of_tasks := {partition: proofs[name] for partition, proofs in proven.items() if name in proofs}:
                yield name, _of_all_tasks(of_tasks, waiting)

    return checks_of(dataset.key(ARTIFACT), descriptions, findings, reports=REPORTS)


def _is_there(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> bool:
    """Whether a partition was migrated; a damaged receipt is there too, and fails."""
    try:
        return store.receipt(declaration.artifact(ARTIFACT, partition)) is not None
    except DataprepError:
        return True


def _proven(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> Mapping[str, Finding]:
    """Every proof of a task. Without an artifact, a folder that somebody else made is judged all the same."""
    try:
        route = route_of(declaration, partition)
        artifact = declaration.artifact(ARTIFACT, partition)
        record = read_record(store.local(artifact)) if store.receipt(artifact) else None
        if record is None and not route.target.exists():
            return _all_failed(
                declaration, partition, f"was never migrated: {route.target} is not there. Materialize it"
            )
        folder = TaskFolder.of(route, record, sensitive=declaration.sensitive)
        return {**prove_task_folder(folder), "as_migrated": as_migrated(folder)}
    except DataprepError as error:
        return _all_failed(declaration, partition, str(error))


def _all_failed(declaration: TaskMigrationDeclaration, partition: str, why: str) -> Mapping[str, Finding]:
    task = partition.partition(".")[0]
    return dict.fromkeys(proofs_for(declaration.contract(task)), Finding(passed=False, summary=why))


def _of_all_tasks(found: Mapping[str, Finding], waiting: Sequence[str]) -> Finding:
    """One finding of a proof over the tasks that it is asked of. A warning when no failing task has worse."""
    failed = [p for p, f in found.items() if not f.passed and not f.warning]
    warned = [p for p, f in found.items() if not f.passed and f.warning]
    passed = [p for p, f in found.items() if f.passed]
    bad = [*failed, *warned]
    facts: dict[str, int | float | str] = {
        "tasks_judged": len(found),
        "tasks_failed": len(failed),
        "tasks_warned": len(warned),
        "tasks_not_migrated_yet": len(waiting),
    }
    if len(found) == 1:
        facts |= next(iter(found.values())).facts
    rows = [row for p in [*bad, *passed] for row in _rows(p, found[p])]
    rows += [{"task": p, "verdict": "not migrated yet"} for p in waiting]
    first = (bad or passed)[0]
    told = f"{first}: {found[first].summary}"
    if bad:
        summary = f"{len(bad)} of {len(found)} tasks: {first_of(bad, 6)}. {told}"
    else:
        summary = f"All {len(found)} tasks pass. {told}" if len(found) > 1 else told
    return Finding(passed=not bad, warning=not failed, facts=facts, summary=summary, table=tuple(rows))


def _rows(partition: str, finding: Finding) -> Iterator[Row]:
    """A task's row of the table, and a few of its defects when it has several."""
    verdict = "passes" if finding.passed else "warns" if finding.warning else "fails"
    yield {"task": partition, "verdict": verdict, **finding.facts, "what": finding.summary}
    defects = [row["defect"] for row in finding.table if "defect" in row]
    if len(defects) > 1:
        yield from ({"task": partition, "verdict": verdict, "what": d} for d in defects[:_DEFECTS_SHOWN])
