"""Worker processes of this machine, whose death is noticed immediately.

Workers are never forks of this process, because a fork of a process with library threads can hang forever. They are
forks of `multiprocessing`'s fork server, which has imported the modules of the first tasks and has no other thread.

A worker's death closes its channel, so it is noticed immediately. Its task is retried by another worker, at most twice,
while the other tasks continue. The kernel ends workers with this process, so a killed run writes nothing more.
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

from dataprep_assets.bounds import Bounds, disable_core_dumps, return_freed_memory
from dataprep_assets.errors import BoundError, WorkerDiedError
from dataprep_assets.execution.run_task import (
    DEATHS,
    FinishedTask,
    Task,
    TaskCounts,
    TaskId,
    discard_output,
    run_task,
)
from dataprep_assets.execution.watch import Watch
from dataprep_assets.stores.files import is_private_mode, read_umask

logger = logging.getLogger(__name__)

_DYING_SECONDS = 60.0
_MAX_TEMP_PATH = 70
"""Maximum length of the temporary folder's path: the server's socket in it may have a path of at most 107 bytes."""
_SERVER = "dataprep_assets.execution.preload"
"""The module that the fork server imports."""
_PRELOAD = "DATAPREP_PRELOAD"
_MAX_PRELOAD_BYTES = 90_000
"""Maximum size of a request to the fork server: a variable has at most 128 KiB, and base64 adds a third."""
ONE_THREAD = {
    "FASTOKENS_BPE_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    # otherwise Arrow starts a thread for an allocator that it does not use, and a process with a thread is not forked
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Environment of workers: one process per core is as fast as threads, and simpler to limit, kill and resume."""


if TYPE_CHECKING:
    Channel = Connection[Any, Any]
else:
    Channel = Connection


def serve_tasks(channel: Channel, environment: Mapping[str, str], umask: int, private: bool) -> None:
    """Run tasks in a worker until the channel closes.

    Args:
        channel: The channel that delivers tasks and takes answers.
        environment: The environment variables of this process.
        umask: The umask of this process.
        private: Whether the dataset is sensitive, so that the output of native libraries must be discarded.
    """
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    # Unset `daemon`, because a user's function may start processes, but `multiprocessing` does not allow daemonic
    # processes to start any.
    multiprocessing.current_process().daemon = False
    os.environ.clear()
    os.environ.update(environment)
    os.umask(umask)
    with discard_output(private):
        while True:
            try:
                task: Task = channel.recv()
            except (EOFError, ConnectionResetError):  # the parent closed the channel or was killed
                return
            send = partial(_send_counts, channel, task.id)
            channel.send(run_task(task, send, partial(_send_place, channel), private=private))


def _end_with_parent() -> None:
    """Let the kernel terminate this process when the pool's process exits, even in the middle of a library call.

    The parent of a fork is the fork server, so this uses a pipe that closes when the process of the pool ends.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    sentinel = parent.sentinel
    signal.signal(signal.SIGIO, signal.SIG_DFL)  # the default action terminates this process
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([sentinel], 0):
        os._exit(1)  # the parent ended before the signal was set up


def _send_counts(channel: Channel, running: TaskId, counts: dict[str, int]) -> None:
    channel.send(("counts", TaskCounts(running, counts)))


def _send_place(channel: Channel, position: str) -> None:
    channel.send(("at", position))


def _describe_end(code: int | None) -> str:
    """Describe how a process ended; for signal 9, add the usual cause."""
    if code is None or code >= 0:
        return f"exit code {code}"
    cause = ", often by the kernel when the machine is out of memory" if code == -signal.SIGKILL else ""
    return f"killed by signal {-code}{cause}"


def _find_module(function: Any) -> str:
    """Return the name of the module that defines a task's function."""
    function = getattr(function, "func", function)  # unwrap a `partial`
    owner = getattr(function, "__self__", None)  # the object of a bound method
    return str(function.__module__ if owner is None else type(owner).__module__)


_starting = threading.Lock()


@contextlib.contextmanager
def _hide_main_module() -> Iterator[None]:
    """Hide the main module, such as a user's script, because `multiprocessing` would import it into each worker."""
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _start_method() -> str:
    """Return the start method of `multiprocessing` for workers."""
    # Fork only on Linux, because system libraries of other platforms do not survive a fork, and only if the path of the
    # fork server's socket is short enough.
    can_fork = sys.platform == "linux" and len(os.fsencode(tempfile.gettempdir())) <= _MAX_TEMP_PATH
    return "forkserver" if can_fork else "spawn"


@contextlib.contextmanager
def _preload_modules(modules: Sequence[str], prepare: Callable[[], object] | None) -> Iterator[None]:
    """Let a fork server that starts inside this context import these modules and call `prepare`."""
    request = pickle.dumps((modules, prepare, is_private_mode()))
    if len(request) > _MAX_PRELOAD_BYTES:
        request = pickle.dumps((modules, None, is_private_mode()))
    os.environ[_PRELOAD] = base64.b64encode(request).decode()
    try:
        yield
    finally:
        del os.environ[_PRELOAD]


def preload_modules() -> None:
    """Load the modules of the first tasks in the fork server; ignore errors, because the workers report them.

    A fork of a process with a second thread can hang forever, so libraries are set to one thread. If a library starts a
    thread nevertheless, the server restarts and leaves loading to the workers.
    """
    if (request := os.environ.pop(_PRELOAD, None)) is None:
        return
    disable_core_dumps()
    os.environ.update(ONE_THREAD)
    with contextlib.suppress(Exception):
        modules, prepare, private = pickle.loads(base64.b64decode(request))
        with discard_output(private):
            for module in modules:
                importlib.import_module(module)
            if prepare is not None:
                prepare()
    if len(os.listdir("/proc/self/task")) > 1:
        os.execv(sys.executable, sys.orig_argv)
    gc.collect()
    return_freed_memory()
    gc.freeze()  # a collection in a fork would otherwise write to, and thus copy, all pages with objects


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
        """Kill the worker if it is running; return its exit code."""
        self.channel.close()
        self.process.kill()
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        return code


class WorkerPool:
    """Pool of `count` worker processes. Use it as a context manager; leaving it terminates busy workers.

    A worker that exceeds its bound (`bounds`) is terminated. Its task is retried once under closer observation, when
    no other task is running. If the task exceeds the bound again, it fails with BoundError, which names its position
    and its usage.
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
            environment: Environment variables to set in each worker.
            prepare: A picklable function that loads what each worker needs. Only the first pool of this process calls
                it, once, before the workers are forked.
        """
        self.count = max(1, count)
        self._environment, self._prepare = environment or {}, prepare
        self._private = is_private_mode()
        self._idle: list[_Worker] = []
        self._busy: dict[Channel, tuple[_Worker, Task]] = {}
        self._queue: deque[Task] = deque()
        self._deaths: Counter[TaskId] = Counter()
        self._watch = Watch(Bounds.from_environment(os.environ))
        self._exceeded: deque[Task] = deque()  # tasks that exceeded a bound, to be retried once

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_exception: object) -> None:
        self._watch.close()
        workers = [*self._idle, *(worker for worker, _ in self._busy.values())]
        # Kill all workers before waiting for any, so that they end in parallel.
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.end()
        self._idle.clear()
        self._busy.clear()

    @property
    def outstanding(self) -> int:
        """Number of submitted tasks that have not finished."""
        return len(self._queue) + len(self._busy) + len(self._exceeded)

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [worker.pid for worker in [*self._idle, *(worker for worker, _ in self._busy.values())]]

    def submit(self, task: Task, *, is_first: bool = False) -> None:
        """Queue a task; `is_first` puts it before the others."""
        (self._queue.appendleft if is_first else self._queue.append)(task)
        self._dispatch()

    def cancel(self, is_cancelled: Callable[[TaskId], bool]) -> list[TaskId]:
        """Remove queued tasks whose ids match `is_cancelled`, and return their ids; running tasks continue."""
        forgotten = [task.id for task in (*self._queue, *self._exceeded) if is_cancelled(task.id)]
        self._queue = deque(task for task in self._queue if not is_cancelled(task.id))
        self._exceeded = deque(task for task in self._exceeded if not is_cancelled(task.id))
        self._dispatch()
        return forgotten

    def _start(self) -> _Worker:
        """Start a worker process, and return it with its channel."""
        context = multiprocessing.get_context(_start_method())
        context.set_forkserver_preload([_SERVER])
        parent_end, child_end = context.Pipe()
        modules = sorted({_find_module(task.function) for task in self._queue})
        # Close this process's copy of the worker's end of the channel. Otherwise, this process would not notice the
        # worker's death.
        with _starting, child_end:
            arguments = (child_end, {**os.environ, **self._environment}, read_umask(), self._private)
            process = context.Process(target=serve_tasks, args=arguments, daemon=True)  # type: ignore[attr-defined]
            with _hide_main_module(), _preload_modules(modules, self._prepare):
                process.start()
        return _Worker(process, parent_end)

    def _dispatch(self) -> None:
        if self._exceeded and not self._queue and not self._busy:
            self._queue.append(self._exceeded.popleft())
        while self._queue and (self._idle or len(self._busy) < self.count):
            worker = self._idle.pop() if self._idle else self._start()
            task = self._queue.popleft()
            # Ignore the error if the worker is dead, because `events` then retries the task.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                worker.channel.send(task)
            self._watch.begin(worker.pid)
            self._busy[worker.channel] = (worker, task)

    def events(self, tick_seconds: float = 0.5) -> Iterator[TaskCounts | FinishedTask | None]:
        """Yield the counts and ends of tasks until no task is outstanding; yield None at each tick without an event.

        Tasks may be submitted while iterating. A task whose worker ends without an answer is retried by another worker.
        Raises WorkerDiedError if that happened `DEATHS` + 1 times.
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
            yield from self._requeue_task(channel)
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
        # Yield the result only after the next task is dispatched, because the caller may need a long time to handle the
        # result.
        yield FinishedTask(task, value if kind == "result" else None, value if kind == "error" else None)

    def _requeue_task(self, channel: Channel) -> Iterator[FinishedTask]:
        """Resubmit the task of a dead worker ahead of the other tasks, or raise WorkerDiedError.

        If the worker was terminated because of its bound, its task is retried after the others, or fails.
        """
        worker, task = self._busy.pop(channel)
        if (reason := self._watch.end(worker.pid)) is not None:
            worker.end()
            if task.reports_each_row:
                yield FinishedTask(task, None, BoundError(f"{task.id}: {reason}"))
            else:
                logger.warning("%s: %s. Retrying it once no other task is running", task.id, reason)
                self._exceeded.append(replace(task, reports_each_row=True))
            self._dispatch()
            return
        # Let the process end by itself, because `end` would kill it and thereby hide its real exit code. A large
        # process closes its channel long before it ends.
        worker.process.join(_DYING_SECONDS)
        cause = f"{task.id}: its worker process died ({_describe_end(worker.end())})"
        self._deaths[task.id] += 1
        if self._deaths[task.id] > DEATHS:
            raise WorkerDiedError(f"{cause}, as did {DEATHS} before it. Finished files are kept. Run the dataset again")
        logger.warning("%s. Retrying", cause)
        self.submit(task, is_first=True)
