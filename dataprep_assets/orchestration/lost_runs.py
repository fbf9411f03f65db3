"""Ends runs whose process was killed without Dagster noticing.

Dagster watches the processes that its launcher starts. A run that executes in the process that asked for it (a
command: `runs.execute`) has none of its own: if that process were killed, the run would stay
"Started" forever and hold its pool, and with a limit of one no other run would ever leave the queue. So such a run
holds a file lock while it works. The kernel releases the lock when the process ends, however it ends: a run that is in
progress while its lock is free is lost, and the next process that checks ends it.

The lock files are beside the instance's own files, so machines that do not share those do not judge each other's runs.

Entry points: `at_work`, `end_lost_runs`.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import dagster as dg

from dataprep_assets.stores.locks import own_file, try_lock

_TOLD = (
    "The process that made this run was killed, or its machine went down. What was finished is kept: run the command "
    "again, or launch the job of the dataset."
)


def _folder(instance: dg.DagsterInstance) -> Path:
    return Path(instance.storage_directory()) / "dataprep_runs"


@contextmanager
def at_work(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Hold the lock of a run, from before it is recorded until it has ended."""
    path = _folder(instance) / run_id
    with ExitStack() as held:
        # if no file can be written or locked, lost runs cannot be told from working ones
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
    """Report lost runs as failed and return their ids. Costs one directory listing if no run is at work."""
    ended = []
    with suppress(FileNotFoundError):
        for path in sorted(_folder(instance).iterdir()):
            with suppress(OSError), open(path, "a", opener=own_file) as lock:
                if not try_lock(lock):
                    continue
                run = instance.get_run_by_id(path.name)
                if run is None:  # it is about to be recorded
                    continue
                if not run.is_finished:
                    instance.report_run_failed(run, _TOLD)
                    ended.append(run.run_id)
                path.unlink(missing_ok=True)
    return ended
