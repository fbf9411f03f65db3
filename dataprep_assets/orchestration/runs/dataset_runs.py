"""Runs and backfills of a dataset, whether a user, a command or automation launched them."""

import dagster as dg

from dataprep_assets.orchestration.partitions import DATASET

_UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_MAX_RUNS = 100
"""Maximum number of queried runs, because a large backfill has thousands of queued runs and many sensors query them.

Runs of a job and its backfills are found by their tag. Runs that a user launches without a job have no tag and are
found among the newest runs.
"""
# Compare strings, because Dagster has no public names for the states of a backfill.
_UNFINISHED_BACKFILLS = ("REQUESTED", "CANCELING", "FAILING")


def builds_dataset(run: dg.DagsterRun, dataset: str) -> bool:
    """Return whether a run builds or checks artifacts of the dataset."""
    keys = {*(run.asset_selection or ()), *(check.asset_key for check in run.asset_check_selection or ())}
    return run.tags.get(DATASET) == dataset or any(key.path[0] == dataset for key in keys)


def describe_run_in_progress(instance: dg.DagsterInstance, dataset: str) -> str | None:
    """Describe a run or backfill of the dataset that is queued or in progress; return None if there is none.

    Runs of a killed process count as in progress until `end_lost_runs` marks them as failed.
    """
    tag_filter = dg.RunsFilter(statuses=_UNFINISHED, tags={DATASET: dataset})
    for run in [
        *instance.get_runs(tag_filter, limit=_MAX_RUNS),
        *instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED), limit=_MAX_RUNS),
    ]:
        if builds_dataset(run, dataset):
            return f"run {run.run_id[:8]} of {dataset} is {run.status.value.lower()}"
    for backfill in instance.get_backfills(limit=_MAX_RUNS):
        unfinished = backfill.status.value in _UNFINISHED_BACKFILLS
        if unfinished and any(key.path[0] == dataset for key in backfill.asset_selection or ()):
            return f"backfill {backfill.backfill_id} of {dataset} is in progress"
    return None
