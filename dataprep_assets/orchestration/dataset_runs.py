"""Which runs and backfills are of a dataset, whoever launched them: a person in the UI, a command, automation."""

import dagster as dg
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

__all__ = ["CHANGE", "DATASET", "SOURCE", "automation_tags", "belongs", "in_progress", "last_for_source"]

DATASET = "dataprep/dataset"
"""Run tag: the dataset."""
SOURCE = "dataprep/source"
"""Run tag: the identity of the source that a run was launched for."""
CHANGE = "dataprep/change"
"""Run tag: in words what changed in it."""


def automation_tags(dataset: str, **more: str) -> dict[str, str]:
    """The tags of a run that automation launches."""
    return {DATASET: dataset, **more}


def belongs(run: dg.DagsterRun, dataset: str) -> bool:
    """Whether a run makes or checks artifacts of the dataset."""
    keys = {*(run.asset_selection or ()), *(check.asset_key for check in run.asset_check_selection or ())}
    return run.tags.get(DATASET) == dataset or any(key.path[0] == dataset for key in keys)


def in_progress(instance: dg.DagsterInstance, dataset: str) -> str | None:
    """In words the run or backfill of the dataset that is queued or in progress; None where there is none."""
    for run in instance.get_runs(dg.RunsFilter(statuses=list(NOT_FINISHED_STATUSES))):
        if belongs(run, dataset):
            return f"run {run.run_id[:8]} is {run.status.value.lower()}"
    for backfill in instance.get_backfills(filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED])):
        if any(key.path[0] == dataset for key in backfill.asset_selection or ()):
            return f"backfill {backfill.backfill_id} is in progress"
    return None


def last_for_source(instance: dg.DagsterInstance, dataset: str, launched_by: str) -> dg.DagsterRun | None:
    """The last run of the dataset that a sensor or schedule of this name launched for its source."""
    tags = {DATASET: dataset, LAUNCHED_BY: launched_by}
    return next(iter(instance.get_runs(dg.RunsFilter(tags=tags), limit=1)), None)


LAUNCHED_BY = "dataprep/launched_by"
"""Run tag: the key of `automation` that a run was launched for."""
