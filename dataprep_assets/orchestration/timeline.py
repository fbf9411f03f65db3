"""Runs of assets in this process, recorded like those that the webserver launches.

A run is on the UI's Timeline, and can be filtered and executed again there, if it names the code location of its job.
The runs that `execute_in_process` records do not.

Entry points: `execute`, `LOCATION`.
"""

import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

import dagster as dg
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.execution.api import create_execution_plan, execute_run
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.utils import make_new_run_id

from dataprep_assets.graph.runs import PlannedRun
from dataprep_assets.orchestration.keys import DATASET, asset_key
from dataprep_assets.orchestration.lost_runs import at_work
from dataprep_assets.orchestration.partitions import range_tags

__all__ = ["LOCATION", "STEP", "execute"]

LOCATION = "dataprep_assets"
"""Name of the code location, as every workspace of this project has it."""
STEP = "dataprep/step"
"""Run tag: the artifacts that the run makes."""

# `runs.materialize` prints each error once, without the stack. The event log has all of it.
_QUIET, _VERBOSE = ({"loggers": {"console": {"config": {"log_level": level}}}} for level in ("CRITICAL", "ERROR"))


def execute(
    job: dg.JobDefinition,
    run: PlannedRun,
    instance: dg.DagsterInstance,
    tags: Mapping[str, str] = MappingProxyType({}),
    *,
    verbose: bool = False,
) -> dg.JobExecutionResult:
    """Execute a run in this process; a failed step is part of the result and is not raised.

    Raises KeyboardInterrupt if the run was interrupted.

    Args:
        job: Dagster's implicit job of the assets, which the code location has under the same name.
        run: What to make.
        instance: Where the run is recorded.
        tags: Tags of the run, in addition to those that say what it makes.
        verbose: Whether Dagster's own error messages go to standard error, with their stacks.
    """
    config: dict[str, Any] = _VERBOSE if verbose else _QUIET
    keys = frozenset(asset_key(spec) for spec in run.specs)
    here = InMemoryJob(job.as_ephemeral_job(resource_defs={}, input_values={}))
    chosen = here.get_subset(asset_selection=keys)
    run_id = make_new_run_id()
    with at_work(instance, run_id), _interruptions():
        recorded = instance.create_run_for_job(
            job_def=chosen.get_definition(),
            execution_plan=create_execution_plan(chosen, run_config=config),
            run_id=run_id,
            run_config=config,
            tags={**_tags(run), **tags},
            asset_selection=keys,
            remote_job_origin=RemoteJobOrigin(_REPOSITORY, job.name),
        )
        return execute_run(here, recorded, instance)


@contextmanager
def _interruptions() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if a signal asked for one inside.

    During a run Dagster has signal handlers of its own: it turns a signal into a failed step, or, between two steps,
    drops it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, told = socket.socketpair()
    with heard, told:
        heard.setblocking(False)
        told.setblocking(False)
        before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
        with suppress(BlockingIOError):
            if {signal.SIGINT, signal.SIGTERM} & set(heard.recv(4096)):
                raise KeyboardInterrupt


_REPOSITORY = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(LOCATION), SINGLETON_REPOSITORY_NAME)


def _tags(run: PlannedRun) -> dict[str, str]:
    return {
        DATASET: run.specs[0].declaration.dataset,
        STEP: ", ".join(spec.path[-1] for spec in run.specs),
        # not retried by Dagster: whoever started the run sees that it failed, and starts it again
        "dagster/max_retries": "0",
        **range_tags(run.partitions),
    }
