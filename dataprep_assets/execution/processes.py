"""Worker processes of this machine, whose death is noticed at once.

Workers are never forks of this process: a fork of a process in which a library has started a thread can hang forever.
They are forks of `multiprocessing`'s fork server, which has imported what their first tasks need and has no thread. A
worker that dies is noticed at once, because its end of the channel closes; its task is tried again by another, twice,
while the others go on. The kernel ends workers with this process, so nothing goes on writing after a run was killed.
"""

import base64
import contextlib
import fcntl
import gc
import importlib
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dataprep_assets.bounds import Bounds
from dataprep_assets.errors import BoundError, WorkerDiedError
from dataprep_assets.execution.run_task import (
    DEATHS,
    FinishedTask,
    Task,
    TaskCounts,
    TaskId,
    run_task,
    without_core,
    without_output,
)
from dataprep_assets.execution.watch import Watch
from dataprep_assets.stores.files import are_private, current_umask

logger = logging.getLogger(__name__)

_DYING_SECONDS = 60.0
_MAX_TEMP_PATH = 70
"""Longest path of the temporary folder: the fork server has a socket in it, whose path has 107 bytes at most."""
_SERVER = "dataprep_assets.execution.preload"
"""The module that the fork server imports."""
_PRELOAD = "DATAPREP_PRELOAD"
_MAX_PRELOAD_BYTES = 90_000
"""Most that the fork server is asked for: a variable has at most 128 KiB, and base64 takes a third more."""
ONE_THREAD = {
    "FASTOKENS_BPE_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}
"""Environment of workers: parallelism is by process, which is simpler to bound, kill and resume, and as fast."""


if TYPE_CHECKING:
    Channel = Connection[Any, Any]
else:
    Channel = Connection


def serve(channel: Channel, environment: Mapping[str, str], umask: int, private: bool) -> None:
    """Do tasks until the channel closes: a worker's whole life.

    Args:
        channel: Where tasks come from and answers go to.
        environment: The environment variables of this process.
        umask: Its umask.
        private: Whether the dataset is sensitive: a native library that panics prints a message, which may quote it.
    """
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    # a function of the user's may start processes, which a daemon may not
    multiprocessing.current_process().daemon = False
    os.environ.clear()
    os.environ.update(environment)
    os.umask(umask)
    with without_output(private):
        while True:
            try:
                task: Task = channel.recv()
            except (EOFError, ConnectionResetError):  # the parent closed it, or was killed
                return
            send = partial(_send_counts, channel, task.id)
            channel.send(run_task(task, send, partial(_send_place, channel), private=private))


def _end_with_parent() -> None:
    """Let the kernel end this process when its parent has gone, even while a library is at work.

    The parent of a fork is the fork server, so this is about a pipe that closes when the process of the pool ends.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # which ends it
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([sentinel], 0):
        os._exit(1)  # it went before


def _send_counts(channel: Channel, running: TaskId, done: dict[str, int]) -> None:
    channel.send(("counts", TaskCounts(running, done)))


def _send_place(channel: Channel, where: str) -> None:
    channel.send(("at", where))


def _describe_end(code: int | None) -> str:
    """Return how a process ended, in words; of signal 9 also its usual cause."""
    if code is None or code >= 0:
        return f"exit code {code}"
    cause = ", often by the kernel when the machine is out of memory" if code == -signal.SIGKILL else ""
    return f"killed by signal {-code}{cause}"


def _module_of(function: Any) -> str:
    """The module that defines a task's function."""
    function = getattr(function, "func", function)  # of a `partial`
    owner = getattr(function, "__self__", None)  # of a method
    return str(function.__module__ if owner is None else type(owner).__module__)


_starting = threading.Lock()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module, which `multiprocessing` would import into each worker: a script that starts a run, say."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start_method() -> str:
    """Return the start method of `multiprocessing` for workers."""
    # elsewhere system libraries do not survive a fork
    can_fork = sys.platform == "linux" and len(os.fsencode(tempfile.gettempdir())) <= _MAX_TEMP_PATH
    return "forkserver" if can_fork else "spawn"


@contextlib.contextmanager
def _preloading(modules: Sequence[str], prepare: Callable[[], object] | None) -> Iterator[None]:
    """Let a fork server that is started inside import these modules and call `prepare`."""
    packed = pickle.dumps((modules, prepare, are_private()))
    if len(packed) > _MAX_PRELOAD_BYTES:
        packed = pickle.dumps((modules, None, are_private()))
    os.environ[_PRELOAD] = base64.b64encode(packed).decode()
    try:
        yield
    finally:
        del os.environ[_PRELOAD]


def preload() -> None:
    """Load, in the fork server, what each of its forks would load; errors are left to the workers, which report them.

    A fork of a process with a second thread can hang forever. So libraries use one thread, and if one starts another
    all the same, the server starts again and leaves loading to the workers.
    """
    if (packed := os.environ.pop(_PRELOAD, None)) is None:
        return
    without_core()
    os.environ.update(ONE_THREAD)
    with contextlib.suppress(Exception):
        modules, prepare, private = pickle.loads(base64.b64decode(packed))
        with without_output(private):
            for module in modules:
                importlib.import_module(module)
            if prepare is not None:
                prepare()
    if len(os.listdir("/proc/self/task")) > 1:
        os.execv(sys.executable, sys.orig_argv)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, every page with an object


@dataclass(frozen=True)
class _Worker:
    """A worker process and the parent's end of its channel."""

    process: BaseProcess
    channel: Channel

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def end(self) -> int | None:
        """End it if it lives; return its exit code."""
        self.channel.close()
        self.process.kill()
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        return code


class WorkerPool:
    """Runs tasks on `count` processes. Use as a context manager; leaving it ends the workers that are still at work.

    A worker that exceeds its bound (`bounds`) is ended. Its task is tried once more, closely, when nothing else is at
    work; if it exceeds the bound again, it fails with BoundError, which says where it was and what it took.
    """

    def __init__(
        self,
        count: int,
        environment: Mapping[str, str] | None = None,
        prepare: Callable[[], object] | None = None,
    ) -> None:
        """Prepare a pool; workers are started when there are tasks for them.

        Args:
            count: Number of workers.
            environment: Environment variables to set in each.
            prepare: A picklable function that loads what each worker would load. The first pool of this process has it
                called once, before the workers are forked.
        """
        self.count = max(1, count)
        self._environment, self._prepare = environment or {}, prepare
        self._private = are_private()
        self._idle: list[_Worker] = []
        self._busy: dict[Channel, tuple[_Worker, Task]] = {}
        self._queue: deque[Task] = deque()
        self._deaths: Counter[TaskId] = Counter()
        self._watch = Watch(Bounds.from_environment(os.environ))
        self._exceeded: deque[Task] = deque()  # to be tried once more

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_exception: object) -> None:
        self._watch.close()
        workers = [*self._idle, *(worker for worker, _ in self._busy.values())]
        # all are killed before the first is waited for, so that they end together
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.end()
        self._idle.clear()
        self._busy.clear()

    @property
    def outstanding(self) -> int:
        """Tasks submitted and not finished."""
        return len(self._queue) + len(self._busy) + len(self._exceeded)

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [worker.pid for worker in [*self._idle, *(worker for worker, _ in self._busy.values())]]

    def submit(self, task: Task, *, first: bool = False) -> None:
        """Queue a task; `first` puts it before the others."""
        (self._queue.appendleft if first else self._queue.append)(task)
        self._dispatch()

    def cancel(self, doomed: Callable[[TaskId], bool]) -> list[TaskId]:
        """Remove queued tasks for whose id `doomed` is true, and return their ids; running tasks go on."""
        forgotten = [task.id for task in (*self._queue, *self._exceeded) if doomed(task.id)]
        self._queue = deque(task for task in self._queue if not doomed(task.id))
        self._exceeded = deque(task for task in self._exceeded if not doomed(task.id))
        self._dispatch()
        return forgotten

    def _start(self) -> _Worker:
        """Start a worker."""
        context = multiprocessing.get_context(_start_method())
        context.set_forkserver_preload([_SERVER])
        ours, theirs = context.Pipe()
        modules = sorted({_module_of(task.function) for task in self._queue})
        # the worker's end is closed here once the worker has it: else its death would not close the channel
        with _starting, theirs:
            given = (theirs, {**os.environ, **self._environment}, current_umask(), self._private)
            process = context.Process(target=serve, args=given, daemon=True)  # type: ignore[attr-defined]
            with _without_main(), _preloading(modules, self._prepare):
                process.start()
        return _Worker(process, ours)

    def _dispatch(self) -> None:
        if self._exceeded and not self._queue and not self._busy:
            self._queue.append(self._exceeded.popleft())
        while self._queue and (self._idle or len(self._busy) < self.count):
            worker = self._idle.pop() if self._idle else self._start()
            task = self._queue.popleft()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a dead worker is reported by `events`
                worker.channel.send(task)
            self._watch.begin(worker.pid)
            self._busy[worker.channel] = (worker, task)

    def events(self, tick_seconds: float = 0.5) -> Iterator[TaskCounts | FinishedTask | None]:
        """Counts and ends of tasks as they happen, None at every tick without one; ends when nothing is outstanding.

        Tasks may be submitted while iterating. A task whose worker ends without an answer is tried again by another;
        raises WorkerDiedError when that happened `DEATHS` + 1 times.
        """
        while self.outstanding:
            ready = wait(list(self._busy), tick_seconds)
            if not ready:
                yield None
            for channel in ready:
                yield from self._receive(channel)  # type: ignore[arg-type]

    def _receive(self, channel: Channel) -> Iterator[TaskCounts | FinishedTask]:
        worker, task = self._busy[channel]
        try:
            kind, value = channel.recv()
        except (EOFError, OSError):
            yield from self._bury(channel)
            return
        if kind in ("counts", "at"):
            self._watch.note_progress(worker.pid, value if kind == "at" else "")
            if kind == "counts":
                yield value
            return
        self._watch.end(worker.pid)
        del self._busy[channel]
        self._idle.append(worker)
        self._dispatch()
        # last: the caller may take long with a result, and the worker is at its next task already
        yield FinishedTask(task, value if kind == "result" else None, value if kind == "error" else None)

    def _bury(self, channel: Channel) -> Iterator[FinishedTask]:
        """Try the task of a dead worker again, before the others, or raise WorkerDiedError.

        The task of one that was ended is tried after the others, or fails.
        """
        worker, task = self._busy.pop(channel)
        if (why := self._watch.end(worker.pid)) is not None:
            worker.end()
            if task.closely:
                yield FinishedTask(task, None, BoundError(f"{task.id}: {why}"))
            else:
                logger.warning("%s: %s. Retrying it in a process of its own", task.id, why)
                self._exceeded.append(replace(task, closely=True))
            self._dispatch()
            return
        # its channel closes long before a large process has ended
        worker.process.join(_DYING_SECONDS)
        what = f"{task.id}: its worker process died ({_describe_end(worker.end())})"
        self._deaths[task.id] += 1
        if self._deaths[task.id] > DEATHS:
            raise WorkerDiedError(f"{what}, like {DEATHS} before it. Finished files are kept. Run it again")
        logger.warning("%s. Retrying", what)
        self.submit(task, first=True)
