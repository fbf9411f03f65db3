"""Runs whose process was killed, of which Dagster hears nothing.

Dagster watches the processes that its launcher starts. A run that is done by the process that wants it (a command, the
run of a dataset's job: `timeline.execute`) has none of its own: were that one killed, the run would be "Started" for
ever, hold its pool, and with a limit of one no other run would ever leave the queue. So such a run holds the lock of a
file while it is at work. The kernel releases it when the process ends, however it ends: a run that is in progress while
its lock is free is lost, and whoever looks next ends it.

The files are beside the instance's own, so machines that do not share these do not judge each other's runs.

Entry points: `at_work`, `end_lost_runs`.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import dagster as dg

from dataprep_assets.stores.locks import own_file, try_lock

__all__ = ["at_work", "end_lost_runs"]

_TOLD = (
    "The process that made this run was killed, or its machine went down. What was finished is kept: run the command "
    "again, or launch the job of the dataset."
)


def _folder(instance: dg.DagsterInstance) -> Path:
    return Path(instance.storage_directory()) / "dataprep_runs"


@contextmanager
def at_work(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Hold the lock of a run, which is yet to be recorded, until it has ended."""
    path = _folder(instance) / run_id
    with ExitStack() as held:
        # where nothing can be written, or locked, nobody tells a run that is lost from one at work
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context(open(path, "a", opener=own_file))
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def end_lost_runs(instance: dg.DagsterInstance) -> list[str]:
    """Report the runs that are lost as failed; their ids. Costs a listing where there are none at work."""
    ended = []
    with suppress(FileNotFoundError):
        for path in sorted(_folder(instance).iterdir()):
            with suppress(OSError), open(path, "a", opener=own_file) as lock:
                if not try_lock(lock):
                    continue
                run = instance.get_run_by_id(path.name)
                if run is None:  # it is recorded in a moment
                    continue
                if not run.is_finished:
                    instance.report_run_failed(run, _TOLD)
                    ended.append(run.run_id)
                path.unlink(missing_ok=True)
    return ended
