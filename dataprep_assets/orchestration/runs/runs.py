"""Executes the job of a dataset in this process, recorded in the Dagster instance."""

import signal
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

import dagster as dg

from dataprep_assets.orchestration.keys import DATASET, FAILED_CHECKS, MISCONFIGURED, TOGETHER
from dataprep_assets.orchestration.runs.lost_runs import at_work, end_lost_runs

# the result has each error once, without the stack. The event log has all of it.
_QUIET, _VERBOSE = ({"loggers": {"console": {"config": {"log_level": level}}}} for level in ("CRITICAL", "ERROR"))


class RunEnd(IntEnum):
    """How a run ended, as an exit code."""

    WELL = 0
    FAILED = 1
    MISCONFIGURED = 2
    """Every step that failed did so by what is declared: the same run fails again until that is changed."""


@dataclass(frozen=True, kw_only=True)
class FailedStep:
    """A step that failed: the artifact that it makes (`dataset/artifact`), why, and whether that is of what is
    declared."""

    where: str
    why: str
    misconfigured: bool


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended: what failed, and a sentence for each check that did not pass (`warning: ` before one that only
    warns)."""

    ended: RunEnd
    failures: tuple[FailedStep, ...] = ()
    checks: tuple[str, ...] = ()


def execute(
    job: dg.JobDefinition,
    instance: dg.DagsterInstance,
    *,
    tags: Mapping[str, str] = MappingProxyType({}),
    verbose: bool = False,
) -> RunResult:
    """Execute a job; return how it ended. Steps that need no failed one are executed all the same.

    Raises KeyboardInterrupt if the run was interrupted.

    Args:
        job: The job of a dataset (`build.job_of`), bound to its resources.
        instance: Where the run is recorded.
        tags: Tags of the run, in addition to those of the job.
        verbose: Whether Dagster's own error messages go to standard error, with their stacks.
    """
    # first of all: a lost run may hold the pool for which the steps of this one would wait
    end_lost_runs(instance)
    run_id = str(uuid.uuid4())
    with at_work(instance, run_id), _interruptions():
        outcome = job.execute_in_process(
            instance=instance,
            run_id=run_id,
            run_config=_VERBOSE if verbose else _QUIET,
            # not retried by Dagster: whoever started the run sees that it failed, and starts it again
            tags={"dagster/max_retries": "0", **tags},
            raise_on_error=False,
        )
    failures = [event for event in outcome.all_events if event.is_failure]
    # the event that the run failed adds nothing
    failures = [event for event in failures if event.is_step_failure] or failures
    ended = RunEnd.FAILED
    if outcome.success:
        ended = RunEnd.WELL
    elif failures and all(map(_is_misconfigured, failures)):
        ended = RunEnd.MISCONFIGURED
    dataset = job.tags.get(DATASET, "")
    return RunResult(
        ended=ended,
        failures=tuple(
            FailedStep(where=_where(event, dataset), why=why, misconfigured=_is_misconfigured(event))
            for event in ([] if outcome.success else failures)
            if (why := _why(event)) is not None
        ),
        checks=tuple(
            f"{'' if evaluation.severity == dg.AssetCheckSeverity.ERROR else 'warning: '}check "
            f"{evaluation.check_name}: {evaluation.description}"
            for evaluation in outcome.get_asset_check_evaluations()
            if not evaluation.passed
        ),
    )


def _where(event: dg.DagsterEvent, dataset: str) -> str:
    """The artifact that a step makes, as it is named everywhere else, or `run`."""
    step = (event.step_key or "").removeprefix(f"make__{dataset}__")
    return f"{dataset}/{step.replace(TOGETHER, ' and ').replace('__', '/')}" if step else "run"


def _is_misconfigured(event: dg.DagsterEvent) -> bool:
    told = event.step_failure_data.user_failure_data if event.is_step_failure else None
    return told is not None and MISCONFIGURED in told.metadata


@contextmanager
def _interruptions() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if a signal asked for one inside.

    During a run Dagster has signal handlers of its own: it turns a signal into a failed step, or, between two steps,
    drops it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, wakeup = socket.socketpair()
    with heard, wakeup:
        heard.setblocking(False)
        wakeup.setblocking(False)
        # the interpreter writes the number of each signal that Python handles to it, whatever its handler does then
        before = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
        with suppress(BlockingIOError):
            if {signal.SIGINT, signal.SIGTERM} & set(heard.recv(4096)):
                raise KeyboardInterrupt


def _why(event: dg.DagsterEvent) -> str | None:
    """Why a step or run failed: the message of a DataprepError, else that of the first cause.

    None for a step that failed only by its checks, which are reported by themselves.
    """
    if (
        event.is_step_failure
        and (failure := event.step_failure_data.user_failure_data) is not None
        and failure.description
    ):
        return None if FAILED_CHECKS in failure.metadata else failure.description
    error = getattr(event.event_specific_data, "error", None)
    return (
        None if error is None else f"{(error.cause or error).message.strip()}. That is a bug: `--verbose` shows where"
    )
