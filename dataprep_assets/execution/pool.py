"""The pool that does the work: processes of this machine or a Ray cluster, which is here; and its number of workers.

The assets do not know which one. A dataset's `run_on`, else `DATAPREP_ENGINE`, names it: `processes` (the default) or
`ray`. Both have the interface `run_task.Pool`.
"""

import os
import pickle
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Self

from dataprep_assets.errors import ConfigError, WorkerDiedError, count_of
from dataprep_assets.execution.processes import ONE_THREAD, WorkerPool
from dataprep_assets.execution.run_task import (
    DEATHS,
    FinishedTask,
    Pool,
    Task,
    TaskCounts,
    TaskId,
    run_task,
    without_output,
)
from dataprep_assets.stores.files import are_private

# Tasks on a Ray cluster, behind the interface of `processes.WorkerPool`.
#
# The cluster is an existing one (`RAY_ADDRESS`, or the one that this process is already connected to), else a local
# one that lives as long as the pool. Ray retries a task whose worker or node dies; after `DEATHS` retries the run
# fails and names the task, so nothing is lost silently. A retried shard reuses the finished parts in its staging
# directory if its node can see it, and otherwise starts again from the beginning: the bytes are the same.
#
# Every node must be able to import this project at the same version and see the tokenizer under the same path.
# Artifacts in a bucket need no shared disk; artifacts in a folder need one that is mounted everywhere.

ADDRESS = "RAY_ADDRESS"
_TOKEN = "RAY_AUTH_TOKEN"
_REPORT_SECONDS = 1.0
_CONNECT_SECONDS = 10.0
_CLIENT_TRIES = 6
_CLIENT_WAIT_SECONDS = 5.0


class _CountBoard:
    """An actor that collects the counts of running tasks until the driver takes them."""

    def __init__(self) -> None:
        self._done: list[TaskCounts] = []

    def add(self, counts: TaskCounts) -> None:
        self._done.append(counts)

    def take(self) -> list[TaskCounts]:
        taken, self._done = self._done, []
        return taken


class _Sums:
    """Sums up the counts of a Ray task, and sends them to the board once a second."""

    def __init__(self, board: Any, running: TaskId) -> None:
        self._board, self._running, self._sums, self._sent = board, running, dict[str, int](), time.monotonic()
        self._added: Any = None

    def add(self, done: dict[str, int]) -> None:
        for name, value in done.items():
            self._sums[name] = self._sums.get(name, 0) + value
        if time.monotonic() - self._sent >= _REPORT_SECONDS:
            self._flush()

    def _flush(self) -> None:
        if self._sums:
            self._added = self._board.add.remote(TaskCounts(self._running, self._sums))
        self._sums, self._sent = {}, time.monotonic()

    def close(self, wait: Callable[[Any], object]) -> None:
        """Send the rest, and wait until the board has it: the driver last reads the board when the task ends."""
        self._flush()
        if self._added is not None:  # an actor handles the messages of one caller in order
            wait(self._added)


def _run(packed: bytes, settings: Mapping[str, str], board: Any, private: bool) -> tuple[str, Any]:
    """A Ray task: returns the answer that a worker process would send.

    The task is sent pickled, so that `settings` are in force before the libraries that read them are imported.
    `private`: only the owner can read the files that it writes."""
    import ray

    os.environ.update(settings)
    task: Task = pickle.loads(packed)
    sums = _Sums(board, task.id)
    try:
        with without_output(private):
            return run_task(task, sums.add, private=private)
    finally:
        with suppress(ray.exceptions.RayError):  # a lost board costs numbers in a log, and must not cost the shard
            sums.close(ray.get)


def _require_listener(address: str | None) -> None:
    """Raise OSError at once if nothing listens at the address: Ray itself would retry for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _last_line(error: BaseException) -> str:
    """Return what Ray says: errors of its servers arrive as the text of a stack, with the message at its end."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _remedy(error: BaseException) -> str:
    """Return what to do about a rejected token, which Ray mentions only in the causes of its error."""
    if "client connection timeout" in str(error):  # the only sign of a rejected token over `ray://`
        return f". It is busy, or rejects the token: set RAY_AUTH_MODE=token and set {_TOKEN} to the cluster's"
    refused = "InvalidAuthToken" in f"{error} {error.__cause__} {error.__context__}"
    return f". It requires a token: set RAY_AUTH_MODE=token and {_TOKEN}" if refused else ""


class RayPool:
    """Runs tasks on a Ray cluster, one CPU each. Use as a context manager; leaving it cancels what is running."""

    def __init__(self, count: int, settings: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                "run_on (or DATAPREP_ENGINE): `ray` needs the extra `ray`: pip install 'dataprep-assets[ray]'"
            ) from error
        self._ray, self._settings = ray, dict(settings)
        self._count, self._address = max(1, count), environment.get(ADDRESS) or None
        self.count = self._count
        self._owner = False
        self._queue: deque[Task] = deque()
        self._running: dict[Any, Task] = {}

    def __enter__(self) -> Self:
        ray = self._ray
        if not ray.is_initialized():
            quiet = {"log_to_driver": False, "logging_level": "ERROR"}
            try:
                if self._address is None:
                    # a token by default, which Ray would keep in a file of the home directory
                    os.environ.setdefault(_TOKEN, secrets.token_hex(32))
                    # "local", because None means the cluster that was last started on this machine
                    ray.init(address="local", num_cpus=self._count, include_dashboard=False, **quiet)
                else:
                    _require_listener(self._address)
                    self._connect(self._address, quiet)
            except (OSError, RuntimeError, ValueError) as error:
                what = (
                    f"{self._address}: no Ray cluster found" if self._address else "not set: no local Ray cluster found"
                )
                raise ConfigError(f"{ADDRESS}: {what}: {_last_line(error)}{_remedy(error)}") from error
            self._owner = True
        # at least what was asked for, though the cluster has less: an autoscaler sees the demand
        self.count = max(self._count, int(ray.cluster_resources().get("CPU", 0)))
        # the actor may be on any node, and restarts empty if that node is lost
        self._board = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_CountBoard).remote()
        self._remote = ray.remote(num_cpus=1, max_retries=DEATHS)(_run)
        self._dispatch()
        return self

    def __exit__(self, *_exception: object) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._queue.clear()
        self._ray.kill(self._board)
        # a connection that was there before stays open: it is somebody else's
        if self._owner:
            self._ray.shutdown()

    def _connect(self, address: str, settings: Mapping[str, Any]) -> None:
        """Join a cluster.

        A server of Ray's client protocol (`ray://`) starts a process for each connection, and on a busy machine gives
        up one that starts slowly: then it is asked again.
        """
        for tries_left in reversed(range(_CLIENT_TRIES)):
            try:
                self._ray.init(address=address, **settings)
                return
            except ConnectionAbortedError as error:
                if not tries_left or _remedy(error):
                    raise
            time.sleep(_CLIENT_WAIT_SECONDS)

    @property
    def outstanding(self) -> int:
        """Tasks submitted and not finished."""
        return len(self._queue) + len(self._running)

    def submit(self, task: Task, *, first: bool = False) -> None:
        """Queue a task; `first` puts it before the others."""
        (self._queue.appendleft if first else self._queue.append)(task)
        self._dispatch()

    def cancel(self, doomed: Callable[[TaskId], bool]) -> list[TaskId]:
        """Forget queued tasks whose id is doomed, and say which; running ones go on."""
        forgotten = [task.id for task in self._queue if doomed(task.id)]
        self._queue = deque(task for task in self._queue if not doomed(task.id))
        return forgotten

    def _dispatch(self) -> None:
        while self._queue and len(self._running) < self.count:
            task = self._queue.popleft()
            named = self._remote.options(name=str(task.id))
            self._running[named.remote(pickle.dumps(task), self._settings, self._board, are_private())] = task

    def events(self, tick_seconds: float = 0.5) -> Iterator[TaskCounts | FinishedTask | None]:
        """Counts and ends of tasks as they happen, None at every tick without one; ends when nothing is outstanding.

        Tasks may be submitted while iterating. Raises WorkerDiedError when a task's worker died `DEATHS` + 1 times.
        """
        while self.outstanding:
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=tick_seconds)
            if not ready:
                taken: list[TaskCounts] = self._ray.get(self._board.take.remote())
                yield from taken
                yield None
            for reference in ready:
                yield self._finish_task(reference)
        # what the last tasks sent before they ended (`_Sums.close`)
        yield from self._ray.get(self._board.take.remote())

    def _finish_task(self, reference: Any) -> FinishedTask:
        task = self._running[reference]
        try:
            kind, value = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            cause = str(error).strip().partition("\n")[0]
            raise WorkerDiedError(
                f"{task.id}: its Ray worker died {count_of(DEATHS + 1, 'time')}, or its node is gone "
                f"({type(error).__name__}: {cause}). Finished shards are kept. Run it again"
            ) from error
        del self._running[reference]
        self._dispatch()
        return FinishedTask(task, value if kind == "result" else None, value if kind == "error" else None)


ENGINE = "DATAPREP_ENGINE"
WORKERS = "DATAPREP_WORKERS"
PROCESSES, RAY = "processes", "ray"
ENGINES = (PROCESSES, RAY)


def worker_count(declared: int | None) -> int:
    """Number of worker processes: the declared one, else DATAPREP_WORKERS, else one for each usable core.

    Raises ConfigError if the variable is not a positive integer.
    """
    said = os.environ.get(WORKERS)
    if said and not (said.isascii() and said.isdigit() and int(said) > 0):
        raise ConfigError(f"{WORKERS}={said!r}: must be a whole number of at least 1")
    return declared or int(said or 0) or len(os.sched_getaffinity(0))


def chosen_engine(environment: Mapping[str, str], declared: str | None = None) -> str:
    """The engine that a dataset declares, else that the environment names; raises ConfigError for an unknown one."""
    engine = declared or environment.get(ENGINE) or PROCESSES
    if engine not in ENGINES:
        raise ConfigError(f"{ENGINE}: unknown engine {engine!r}. Available: {', '.join(ENGINES)}")
    return engine


def require_engine(environment: Mapping[str, str], declared: str | None = None) -> None:
    """Raise ConfigError if what the chosen engine needs is not installed here."""
    engine = chosen_engine(environment, declared)
    if engine == RAY and find_spec("ray") is None:
        raise ConfigError(
            "run_on (or DATAPREP_ENGINE): `ray` needs the extra `ray`: pip install 'dataprep-assets[ray]'"
        )


def open_pool(
    count: int,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    declared: str | None = None,
    prepare: Callable[[], object] | None = None,
) -> Pool:
    """The pool of the chosen engine.

    Args:
        count: Number of workers. On Ray, the least number of tasks in flight even if the cluster has fewer CPUs, so
            that an autoscaler sees the demand.
        settings: Environment variables to set in each worker.
        environment: The environment variables that name the engine and the cluster.
        declared: The engine that the dataset declares.
        prepare: As for `WorkerPool`.
    """
    if chosen_engine(environment, declared) == PROCESSES:
        return WorkerPool(count, settings, prepare)
    return RayPool(count, settings, environment)


@dataclass(frozen=True)
class TaskEngine:
    """Who does the tasks of a dataset's steps.

    Attributes:
        declared: The engine that the dataset names; None leaves it to the environment.
    """

    declared: str | None = None

    @property
    def is_this_machine(self) -> bool:
        """Whether the workers are processes of this machine, which see its folders."""
        return chosen_engine(os.environ, self.declared) == PROCESSES

    def open(self, count: int, prepare: Callable[[], object] | None = None) -> Pool:
        """Open a pool of at least `count` workers, whose libraries use one thread each.

        `prepare` is as for `WorkerPool`. Raises ConfigError if the engine is not there.
        """
        return open_pool(count, ONE_THREAD, os.environ, self.declared, prepare)


ON_PROCESSES = TaskEngine(PROCESSES)
