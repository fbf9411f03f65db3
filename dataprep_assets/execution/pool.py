"""Choice of the pool that runs tasks (processes of this machine or a Ray cluster), and the Ray pool.

Assets do not depend on the choice. The engine is a dataset's `run_on`, else `DATAPREP_ENGINE`: `processes` (the
default) or `ray`. Both pools implement the interface `run_task.Pool`.
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
from dataprep_assets.execution.run_task import (
    DEATHS,
    FinishedTask,
    Pool,
    Task,
    TaskCounts,
    TaskId,
    discard_output,
    run_task,
)
from dataprep_assets.stores.files import is_private_mode

# The Ray pool runs tasks on a Ray cluster, behind the interface of `processes.WorkerPool`.
#
# It uses an existing cluster (`RAY_ADDRESS`, or the cluster that this process is already connected to), or else starts
# a local cluster that ends with the pool. Ray retries a task whose worker or node dies. After `DEATHS` retries the run
# fails and names the task, so that no work is lost silently. A retried shard reuses the finished parts in its staging
# directory if its node can read the directory. Otherwise the shard is rebuilt from the beginning, with the same bytes.
#
# Every node must have the same version of this project, and must be able to read the tokenizer at the same path.
# Artifacts in object storage need no shared disk. Artifacts in a folder need a disk that is mounted on all nodes.

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
        counts, self._done = self._done, []
        return counts


class _TaskSums:
    """Sums of a Ray task's counts, sent to the board once per second."""

    def __init__(self, board: Any, running: TaskId) -> None:
        self._board, self._running, self._sums, self._sent = board, running, dict[str, int](), time.monotonic()
        self._added: Any = None

    def add(self, counts: dict[str, int]) -> None:
        for name, value in counts.items():
            self._sums[name] = self._sums.get(name, 0) + value
        if time.monotonic() - self._sent >= _REPORT_SECONDS:
            self._flush()

    def _flush(self) -> None:
        if self._sums:
            self._added = self._board.add.remote(TaskCounts(self._running, self._sums))
        self._sums, self._sent = {}, time.monotonic()

    def close(self, wait: Callable[[Any], object]) -> None:
        """Send the remaining counts and wait for their receipt, because the driver reads the board when a task ends."""
        self._flush()
        # Wait only for the last call, because an actor handles the calls of one caller in order.
        if self._added is not None:
            wait(self._added)


def _run_in_worker(payload: bytes, settings: Mapping[str, str], board: Any, private: bool) -> tuple[str, Any]:
    """Run a task in a Ray worker; return the same answer as a worker process.

    The task is sent pickled, so that `settings` are in force before the libraries that read them are imported.
    If `private` is true, only the owner can read the files that the task writes.
    """
    import ray

    os.environ.update(settings)
    task: Task = pickle.loads(payload)
    sums = _TaskSums(board, task.id)
    try:
        with discard_output(private):
            return run_task(task, sums.add, private=private)
    finally:
        # Ignore the loss of the actor, because a task must not fail for lack of counts that only show progress.
        with suppress(ray.exceptions.RayError):
            sums.close(ray.get)


def _require_listener(address: str | None) -> None:
    """Raise OSError immediately if nothing listens at the address, because Ray itself would retry for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()


def _extract_last_line(error: BaseException) -> str:
    """Return Ray's message: its servers send errors as the text of a traceback, which ends with the message."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _describe_remedy(error: BaseException) -> str:
    """Return the remedy for a rejected token, which only the causes of Ray's error mention; "" for other errors."""
    # Over `ray://`, the client reports a rejected token only as this timeout.
    if "client connection timeout" in str(error):
        return (
            f". The cluster is busy, or rejects the token. Set RAY_AUTH_MODE=token, and set {_TOKEN} to the "
            "cluster's token"
        )
    token_missing = "InvalidAuthToken" in f"{error} {error.__cause__} {error.__context__}"
    return f". The cluster requires a token. Set RAY_AUTH_MODE=token and {_TOKEN}" if token_missing else ""


class RayPool:
    """Pool of workers on a Ray cluster, one CPU per task. Leaving its context cancels running tasks."""

    def __init__(self, count: int, settings: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError(
                "run_on (or DATAPREP_ENGINE): `ray` needs the extra `ray`. Install it: pip install "
                "'dataprep-assets[ray]'"
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
                    # Set a token, because Ray would otherwise store one in the home directory.
                    os.environ.setdefault(_TOKEN, secrets.token_hex(32))
                    # "local" starts a new cluster, whereas None would join the cluster that was started last on this
                    # machine.
                    ray.init(address="local", num_cpus=self._count, include_dashboard=False, **quiet)
                else:
                    _require_listener(self._address)
                    self._connect(self._address, quiet)
            except (OSError, RuntimeError, ValueError) as error:
                advice = (
                    f"{self._address}: no Ray cluster found"
                    if self._address
                    else "not set, and no local Ray cluster could be started"
                )
                raise ConfigError(
                    f"{ADDRESS}: {advice}: {_extract_last_line(error)}{_describe_remedy(error)}"
                ) from error
            self._owner = True
        # Run as many tasks at a time as the cluster has CPUs, but at least the requested number, because an autoscaler
        # adds nodes only if tasks wait for CPUs.
        self.count = max(self._count, int(ray.cluster_resources().get("CPU", 0)))
        # Let the actor restart on another node if its node is lost. The counts that are lost with the node would only
        # show progress.
        self._board = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_CountBoard).remote()
        self._remote = ray.remote(num_cpus=1, max_retries=DEATHS)(_run_in_worker)
        self._dispatch()
        return self

    def __exit__(self, *_exception: object) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._queue.clear()
        self._ray.kill(self._board)
        # Leave a connection open that other code opened, because that code may still use it.
        if self._owner:
            self._ray.shutdown()

    def _connect(self, address: str, settings: Mapping[str, Any]) -> None:
        """Connect to a cluster.

        A server of Ray's client protocol (`ray://`) starts a process per connection. On a busy machine it gives up if
        that process starts slowly, so the connection is retried.
        """
        for tries_left in reversed(range(_CLIENT_TRIES)):
            try:
                self._ray.init(address=address, **settings)
                return
            except ConnectionAbortedError as error:
                if not tries_left or _describe_remedy(error):
                    raise
            time.sleep(_CLIENT_WAIT_SECONDS)

    @property
    def outstanding(self) -> int:
        """Number of submitted tasks that have not finished."""
        return len(self._queue) + len(self._running)

    def submit(self, task: Task, *, is_first: bool = False) -> None:
        """Queue a task; `is_first` puts it before the others."""
        (self._queue.appendleft if is_first else self._queue.append)(task)
        self._dispatch()

    def cancel(self, is_cancelled: Callable[[TaskId], bool]) -> list[TaskId]:
        """Remove queued tasks whose ids match `is_cancelled`, and return their ids; running tasks continue."""
        forgotten = [task.id for task in self._queue if is_cancelled(task.id)]
        self._queue = deque(task for task in self._queue if not is_cancelled(task.id))
        return forgotten

    def _dispatch(self) -> None:
        while self._queue and len(self._running) < self.count:
            task = self._queue.popleft()
            remote_function = self._remote.options(name=str(task.id))
            self._running[
                remote_function.remote(pickle.dumps(task), self._settings, self._board, is_private_mode())
            ] = task

    def events(self, tick_seconds: float = 0.5) -> Iterator[TaskCounts | FinishedTask | None]:
        """Yield the counts and ends of tasks until no task is outstanding; yield None at each tick without an event.

        Tasks may be submitted while iterating. Raises WorkerDiedError if a task's workers died `DEATHS` + 1 times.
        """
        while self.outstanding:
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=tick_seconds)
            if not ready:
                counts: list[TaskCounts] = self._ray.get(self._board.take.remote())
                yield from counts
                yield None
            for reference in ready:
                yield self._finish_task(reference)
        # Yield the remaining counts, which the last tasks sent just before they ended (`_TaskSums.close`).
        yield from self._ray.get(self._board.take.remote())

    def _finish_task(self, reference: Any) -> FinishedTask:
        task = self._running[reference]
        try:
            kind, value = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            cause = str(error).strip().partition("\n")[0]
            raise WorkerDiedError(
                f"{task.id}: its Ray worker died {count_of(DEATHS + 1, 'time')}, or its node was lost "
                f"({type(error).__name__}: {cause}). Finished shards are kept. Run the dataset again"
            ) from error
        del self._running[reference]
        self._dispatch()
        return FinishedTask(task, value if kind == "result" else None, value if kind == "error" else None)


ENGINE = "DATAPREP_ENGINE"
WORKERS = "DATAPREP_WORKERS"
PROCESSES, RAY = "processes", "ray"
ENGINES = (PROCESSES, RAY)


def choose_worker_count(setting: int | None) -> int:
    """Return the number of worker processes: the declared one, else DATAPREP_WORKERS, else the number of usable cores.

    Raises ConfigError if the variable is not a positive integer.
    """
    count = os.environ.get(WORKERS)
    if count and not (count.isascii() and count.isdigit() and int(count) > 0):
        raise ConfigError(f"{WORKERS}={count!r}: must be a whole number of at least 1")
    return setting or int(count or 0) or len(os.sched_getaffinity(0))


def choose_engine(environment: Mapping[str, str], setting: str | None = None) -> str:
    """Return the engine that the dataset declares, else the environment's; raise ConfigError for an unknown engine."""
    engine = setting or environment.get(ENGINE) or PROCESSES
    if engine not in ENGINES:
        raise ConfigError(f"{ENGINE}: unknown engine {engine!r}. Available: {', '.join(ENGINES)}")
    return engine


def require_engine(environment: Mapping[str, str], setting: str | None = None) -> None:
    """Raise ConfigError if the chosen engine needs a package that is not installed."""
    engine = choose_engine(environment, setting)
    if engine == RAY and find_spec("ray") is None:
        raise ConfigError(
            "run_on (or DATAPREP_ENGINE): `ray` needs the extra `ray`. Install it: pip install 'dataprep-assets[ray]'"
        )


def open_pool(
    count: int,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    setting: str | None = None,
    prepare: Callable[[], object] | None = None,
) -> Pool:
    """Return a pool of the chosen engine.

    Args:
        count: Number of workers. On Ray it is the minimum number of tasks in flight, even if the cluster has fewer
            CPUs, so that an autoscaler sees the demand.
        settings: Environment variables to set in each worker.
        environment: The environment variables that name the engine and the cluster.
        setting: The engine that the dataset declares.
        prepare: The `prepare` argument of `WorkerPool`; Ray does not use it.
    """
    # Import here, because most commands use this module only to find out which engine is chosen, and need no workers.
    from dataprep_assets.execution.processes import WorkerPool

    if choose_engine(environment, setting) == PROCESSES:
        return WorkerPool(count, settings, prepare)
    return RayPool(count, settings, environment)


@dataclass(frozen=True)
class TaskEngine:
    """The engine that runs the tasks of a dataset's steps.

    Attributes:
        declared: The engine that the dataset names; None uses the environment's engine.
    """

    declared: str | None = None

    @property
    def is_this_machine(self) -> bool:
        """Whether the workers are processes of this machine, which can read its folders."""
        return choose_engine(os.environ, self.declared) == PROCESSES

    def open(self, count: int, prepare: Callable[[], object] | None = None) -> Pool:
        """Open a pool of `count` workers, whose libraries use one thread each.

        `prepare` is passed to `WorkerPool`. Raises ConfigError if the engine is not available.
        """
        from dataprep_assets.execution.processes import ONE_THREAD

        return open_pool(count, ONE_THREAD, os.environ, self.declared, prepare)


ON_PROCESSES = TaskEngine(PROCESSES)
