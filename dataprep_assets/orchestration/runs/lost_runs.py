"""Ends runs whose process was killed without Dagster noticing.

Dagster's default launcher starts a run as a child of the code location's process, which reports it if it dies; and
nobody does if that process dies as well, as all of a container do. A run that executes in the process that asked for it
(a command: `runs.execute`) has no parent at all. Such a run would stay "Started" forever and hold its pool, and with a
limit of one no other run would ever leave the queue. So a run holds a file lock while it works. The kernel releases the
lock when the process ends, however it ends: a run that is in progress while its lock is free is lost, and the next
process that checks ends it.

The lock files are beside the instance's own files, so machines that do not share those do not judge each other's runs.

Entry points: `at_work`, `stay_at_work`, `end_lost_runs`.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import dagster as dg

from dataprep_assets.orchestration.keys import Context
from dataprep_assets.stores.locks import own_file, try_lock

_TOLD = (
    "The process that made this run was killed, or its machine went down. What was finished is kept: run the command "
    "again, or launch the job of the dataset."
)
_LAUNCHED = ".dagster/grpc_info"
"""The tag that Dagster's default launcher gives its runs: where the code location that starts them is."""
_held: dict[str, ExitStack] = {}
"""The locks that this process keeps until it ends, by run."""


def _folder(instance: dg.DagsterInstance) -> Path:
    return Path(instance.storage_directory()) / "dataprep_runs"


@contextmanager
def _lock(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    path = _folder(instance) / run_id
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", opener=own_file) as lock:
        # waits only while `end_lost_runs` of another process looks at the file that was made just now
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def at_work(instance: dg.DagsterInstance, run_id: str) -> Iterator[None]:
    """Hold the lock of a run, from before it is recorded until it has ended.

    After an exception the file stays: if the end could not be recorded, the next process that looks ends the run.
    """
    with ExitStack() as held:
        # if no file can be written or locked, lost runs cannot be told from working ones
        with suppress(OSError):
            held.enter_context(_lock(instance, run_id))
        yield
        with suppress(OSError):
            (_folder(instance) / run_id).unlink(missing_ok=True)


def stay_at_work(context: Context) -> None:
    """Hold the lock of the run of a step until this process ends: it is that of the run, and executes no other.

    So it is where Dagster's default launcher started it, and the in-process executor, which is the project's, executes
    it. Other launchers watch their runs; the processes of other executors end with their steps, and a run between two
    steps would look lost.
    """
    run_id, executor = context.run.run_id, context.job_def.executor_def
    if run_id not in _held and executor.name == dg.in_process_executor.name and _LAUNCHED in context.run.tags:
        _held[run_id] = ExitStack()
        with suppress(OSError):
            _held[run_id].enter_context(_lock(context.instance, run_id))


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
                # of an ended run, too: a process that stayed at work to its own end has left the file
                path.unlink(missing_ok=True)
    return ended
