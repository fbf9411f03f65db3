"""One finding of each proof for all task folders of a declaration.

A proof has one finding for all tasks, not one per partition: reading every folder takes seconds, so a finding always
covers everything that was migrated, including folders that somebody changed since, and one table answers "which tasks
may be trained on". Its summary names every failing task; the table has one row per task, failing ones first, with their
first defects. A task that was never migrated fails if the run is about it (a run of only the checks is about every
task), and is otherwise listed as not migrated yet. A task without readable files is reported by one proof, and listed
by the others as not examined.

Entry point: `examine`.
"""

from collections.abc import Iterator, Mapping, Sequence

from dataprep_assets.errors import DataprepError, IntegrityError
from dataprep_assets.graph.finding import Finding, Row, first_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.migrated_proofs import as_migrated
from dataprep_assets.pipelines.tasks.migration import TaskFolderFacts
from dataprep_assets.pipelines.tasks.record import MigrationRecord, read_record
from dataprep_assets.pipelines.tasks.routes import route_of
from dataprep_assets.pipelines.tasks.task_folder_proofs import TASK_PROOFS, proofs_for, prove_task_folder

_ABOUT_ARTIFACTS = "as_migrated"
"""The proof that reports a migration that was not made, cannot be made, or whose artifact is damaged."""
_DEFECTS_SHOWN = 5
"""Most defects of one task in the table."""


def examine(
    declaration: TaskMigrationDeclaration, every: Sequence[str], store: ArtifactStore, examined: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    """The finding of each proof over all task folders.

    Args:
        declaration: The migration.
        every: All its partitions.
        store: Where its artifacts are.
        examined: The partitions of the run: one of these that was never migrated fails.
    """
    proven = {p: _proven(declaration, store, p) for p in every if p in examined or _is_there(declaration, store, p)}
    waiting = [p for p in every if p not in proven]
    for proof in TASK_PROOFS:
        # a proof without a task to examine has no finding: it is skipped, neither passed nor failed
        if of_tasks := {p: findings[proof.name] for p, findings in proven.items() if proof.name in findings}:
            asked = [p for p in proven if proof in proofs_for(declaration.contract(p.partition(".")[0]))]
            yield proof.name, _of_all_tasks(of_tasks, [p for p in asked if p not in of_tasks], waiting)


def _is_there(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> bool:
    """Whether a partition was migrated; a damaged receipt is there too, and fails."""
    try:
        return store.receipt(declaration.artifact(TASK_FOLDER, partition)) is not None
    except DataprepError:
        return True


def _proven(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> Mapping[str, Finding]:
    """Every proof of a task. Without an artifact, a folder that somebody else made is still examined."""
    artifact = declaration.artifact(TASK_FOLDER, partition)
    record, damage = None, None
    try:
        # asked first and apart: without a route there is no folder to examine, whoever made it
        route = route_of(declaration, partition)
    except DataprepError as error:
        return {_ABOUT_ARTIFACTS: Finding(passed=False, summary=str(error))}
    try:
        # a damaged record is the finding of one proof; the files in the project can be examined without it
        receipt = store.receipt(artifact)
        record = read_record(store.local(artifact)) if receipt else None
        if receipt is not None:
            _refuse_other(receipt, record, store.location(artifact))
    except DataprepError as error:
        damage = Finding(passed=False, summary=str(error))
    if record is None and damage is None and not route.target.exists():
        why = f"was never migrated: {route.target} is not there. Materialize it"
        return {_ABOUT_ARTIFACTS: Finding(passed=False, summary=why)}
    folder = TaskFolder.of(route, record, sensitive=declaration.sensitive)
    return {**prove_task_folder(folder), _ABOUT_ARTIFACTS: damage or as_migrated(folder)}


def _refuse_other(receipt: Receipt, record: MigrationRecord | None, location: str) -> None:
    """Raise IntegrityError unless a receipt is that of the record beside it."""
    if record is None:
        raise IntegrityError(f"{location}: the record of the migration is missing. Migrate this task again")
    made_of = {file.source: file.sha256 for file in record.files}
    if TaskFolderFacts.of(receipt) != TaskFolderFacts.told_by(record) or dict(receipt.inputs) != made_of:
        raise IntegrityError(f"{location}: receipt and record of the migration contradict each other. Migrate it again")


def _of_all_tasks(found: Mapping[str, Finding], unjudged: Sequence[str], waiting: Sequence[str]) -> Finding:
    """One finding of a proof over its tasks. A warning if all failing tasks only warn.

    `unjudged` are tasks without readable files, `waiting` those that were never migrated.
    """
    failed = [p for p, f in found.items() if not f.passed and not f.warning]
    warned = [p for p, f in found.items() if not f.passed and f.warning]
    passed = [p for p, f in found.items() if f.passed]
    bad = [*failed, *warned]
    facts: dict[str, int | float | str] = {
        "tasks_judged": len(found),
        "tasks_failed": len(failed),
        "tasks_warned": len(warned),
        "tasks_not_judged": len(unjudged),
        "tasks_not_migrated_yet": len(waiting),
    }
    # numbers of one task can be plotted as they are; those of several have the same names, and are in the table
    if len(found) == 1:
        facts |= next(iter(found.values())).facts
    rows = [row for p in [*bad, *passed] for row in _rows(p, found[p])]
    rows += [{"task": p, "verdict": "not judged"} for p in unjudged]
    rows += [{"task": p, "verdict": "not migrated yet"} for p in waiting]
    first = (bad or passed)[0]
    told = f"{first}: " + found[first].summary
    if bad:
        summary = f"{len(bad)} of {len(found)} tasks: {first_of(bad, 6)}. {told}"
    else:
        summary = f"All {len(found)} tasks pass. {told}" if len(found) > 1 else told
    if unjudged:
        summary = summary + f" Nothing to judge: {first_of(unjudged, 6)}."
    return Finding(passed=not bad, warning=not failed, facts=facts, summary=summary, table=tuple(rows))


def _rows(partition: str, finding: Finding) -> Iterator[Row]:
    """A task's row of the table, and a few of its defects when it has several."""
    verdict = "passes" if finding.passed else "warns" if finding.warning else "fails"
    yield {"task": partition, "verdict": verdict, **finding.facts, "what": finding.summary}
    defects = [row["defect"] for row in finding.table if "defect" in row]
    if len(defects) > 1:
        yield from ({"task": partition, "verdict": verdict, "what": d} for d in defects[:_DEFECTS_SHOWN])
