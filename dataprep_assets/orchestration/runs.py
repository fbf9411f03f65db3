"""Materializes a whole dataset in this process, in a few Dagster runs.

The runs are those that a backfill from the UI would launch. Thanks to receipts, finished artifacts cost nothing. If a
split fails only because of damaged sources, the others are still made, so that all damaged files are reported at once.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping

import dagster as dg
from dagster._core.errors import DagsterAssetCheckFailedError

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.runs import PlannedRun
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.orchestration.keys import DAMAGED_SOURCES
from dataprep_assets.orchestration.lost_runs import end_lost_runs
from dataprep_assets.orchestration.timeline import execute


def _say(line: str) -> None:
    print(line, flush=True)


def _complain(line: str) -> None:
    print(line, file=sys.stderr)


def materialize(
    job: dg.JobDefinition,
    runs: Iterable[PlannedRun],
    instance: dg.DagsterInstance,
    *,
    tags: Mapping[str, str] | None = None,
    say: Callable[[str], None] = _say,
    complain: Callable[[str], None] = _complain,
    verbose: bool = False,
) -> bool:
    """Execute the runs in order; return False as soon as one fails.

    After damaged sources, runs that need none of them go on.

    Args:
        job: Dagster's implicit job of all assets.
        runs: What to make.
        instance: Where the runs are recorded.
        tags: Tags of each run.
        say: Called with a line for each run and for each failed check.
        complain: Called with the reason when a step failed.
        verbose: Whether stack traces are shown too.
    """
    end_lost_runs(instance)
    held_up: set[ArtifactSpec] = set()
    for run in _possible(runs, held_up):
        say(f"  {run.title} …")
        outcome = execute(job, run, instance, tags or {}, verbose=verbose)
        failed = [e for e in outcome.get_asset_check_evaluations() if not e.passed]
        if not outcome.success:
            say("    failed")
            failures = [event for event in outcome.all_events if event.is_failure]
            # the event that the run failed adds nothing
            for event in [event for event in failures if event.is_step_failure] or failures:
                if (why := _why(event, checked=bool(failed))) is not None:
                    complain(f"    {event.step_key or 'run'}: {why}")
        for evaluation in failed:
            say(f"    check {evaluation.check_name}: {evaluation.description}")
        if not outcome.success:
            if not _of_sources(outcome):
                return False
            held_up.update(run.specs)
    return not held_up


def _of_sources(outcome: dg.JobExecutionResult) -> bool:
    """Whether a run failed only because of damaged source files."""
    failures = [event.step_failure_data.user_failure_data for event in outcome.all_events if event.is_step_failure]
    return bool(failures) and all(told is not None and DAMAGED_SOURCES in told.metadata for told in failures)


def _possible(runs: Iterable[PlannedRun], held_up: set[ArtifactSpec]) -> Iterator[PlannedRun]:
    """The runs that need no failed artifact.

    Args:
        runs: All of them, in order.
        held_up: The failed artifacts; the artifacts made of them are added to it.
    """
    left = iter(runs)
    while True:
        try:
            run = next(left, None)
        except DataprepError:
            if held_up:
                return  # a failed artifact would have planned it
            raise
        if run is None:
            return
        if any(spec in held_up or held_up.intersection(spec.inputs) for spec in run.specs):
            held_up.update(run.specs)
        else:
            yield run


def _why(event: dg.DagsterEvent, *, checked: bool) -> str | None:
    """Why a step or run failed: the message of a DataprepError, else that of the first cause.

    None for a step that failed only by its checks, if these are reported separately (`checked`).
    """
    if event.is_step_failure and (told := event.step_failure_data.user_failure_data) is not None and told.description:
        return told.description
    error = getattr(event.event_specific_data, "error", None)
    if error is None or (checked and error.cls_name == DagsterAssetCheckFailedError.__name__):
        return None
    return f"{(error.cause or error).message.strip()}. That is a bug: `--verbose` shows where"
