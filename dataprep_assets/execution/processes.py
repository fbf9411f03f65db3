"""Worker processes of this machine, whose death is noticed at once.

Workers are never forks of this process: a fork of a process in which a tokenizer library or a client has started a
thread can hang forever. They are fresh interpreters; or, where each would load the same things, forks of one that has
loaded them and has no thread (`fork_server`). They are started with `-c`, not through `multiprocessing`, which would
import the parent's main module (Dagster's command line) into each of them. A worker that dies is noticed at once,
because its end of the socket closes; its task is tried again by another, twice, while the others go on. The kernel ends
workers with their parent, so nothing goes on writing after a run was killed.

A worker that is idle when its pool is closed is kept for the next pool of the same thread: a run of small data has a
dozen pools, and a worker that has already loaded its libraries and tokenizer starts at once. Before its next task it is
sent the current environment.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from dataprep_assets.bounds import Bounds
from dataprep_assets.errors import BoundError, WorkerDiedError
from dataprep_assets.execution.answer import answer, without_core
from dataprep_assets.execution.fork_server import ForkedProcess, ForkServer, can_fork, serve_forks
from dataprep_assets.execution.tasks import DEATHS, Counts, Finished, Task, TaskId, kept_for_later
from dataprep_assets.execution.watch import Watch, die_with_parent
from dataprep_assets.stores.private import are_private

logger = logging.getLogger(__name__)

_DYING_SECONDS = 60.0
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


def serve(handle: int, parent: int, private: bool) -> None:
    """A worker's whole life: take tasks from the socket until it closes. Run by `WorkerPool` in a new interpreter.

    `private`: whether the dataset is sensitive.
    """
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    channel: Channel = Connection(handle)
    while True:
        try:
            task: Task | dict[str, str] = channel.recv()
        except (EOFError, ConnectionResetError):  # the parent was killed, or closed it before this process read
            return
        # the environment of the pool that has taken this worker over
        if isinstance(task, dict):
            os.environ.clear()
            os.environ.update(task)
            continue
        tell = partial(_send_place, channel)
        told = answer(task, partial(_send_counts, channel, task.id), tell, private=private)
        channel.send((*told, kept_for_later()))


def serve_prepared(handle: int, parent: int, private: bool) -> None:
    """The life of a fork server whose forks are workers. Run by `WorkerPool` in a new interpreter."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    without_core()
    serve_forks(handle, partial(serve, private=private))


def _send_counts(channel: Channel, running: TaskId, done: dict[str, int]) -> None:
    channel.send(("counts", Counts(running, done), True))


def _send_place(channel: Channel, where: str) -> None:
    channel.send(("at", where, True))


_Process = subprocess.Popen[bytes] | ForkedProcess


def _ended(process: _Process) -> int:
    """The exit code of a worker that has closed its socket, which may happen long before the process has ended."""
    try:
        return process.wait(_DYING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _end(code: int) -> str:
    """How a process ended, in words; of signal 9 also its usual cause."""
    if code >= 0:
        return f"exit code {code}"
    cause = ": often the kernel, when the machine has no memory left" if code == -signal.SIGKILL else ""
    return f"killed by signal {-code}{cause}"


@dataclass(frozen=True)
class _Worker:
    """A worker process, the parent's end of its socket, and the fixed properties with which it was started."""

    process: _Process
    channel: Channel
    kind: "_Kind"

    def end(self) -> None:
        self.channel.close()
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class _Kind:
    """How a worker was started: only a pool that would start it in the same way may reuse it.

    `private`: only the owner can read the files that it writes, by its inherited umask (`stores.private`). `thread`:
    the kernel ends a worker with the thread that started it, not with the process.
    """

    settings: tuple[tuple[str, str], ...]
    path: str
    private: bool = field(default_factory=are_private)
    folder: str = field(default_factory=os.getcwd)
    thread: int = field(default_factory=threading.get_ident)
    # a fork of this process inherits the idle workers, but must not talk to them: they are its parent's
    process: int = field(default_factory=os.getpid)


_kept: list[_Worker] = []
"""Idle workers of closed pools, the latest one last."""


def _keep(workers: Sequence[_Worker]) -> None:
    """Keep idle workers for the next pool of their thread, at most as many as one pool has had; end the others."""
    # those of other threads stay, for the next pools of these
    for old in [*_kept]:
        if old.kind.thread == threading.get_ident() or old.process.poll() is not None:
            _kept.remove(old)
            old.end()
    _kept.extend(workers)


def _take(kind: _Kind) -> _Worker | None:
    """Take a live worker of this kind from those kept; None if there is none."""
    for worker in [*_kept]:
        if worker.kind == kind:
            _kept.remove(worker)
            # an idle worker sends nothing: a readable socket means that it has died
            if worker.process.poll() is None and not worker.channel.poll():
                return worker
            worker.end()
    return None


class WorkerPool:
    """Runs tasks on `count` processes. Use as a context manager; leaving it ends the workers that are still at work.

    A worker that exceeds its bound (`bounds`) is ended. Its task is tried once more, closely, when nothing else is at
    work; if it exceeds the bound again, it fails with BoundError, which says where it was and what it took.

    Workers that are started inside of `private_files` have no standard error: a native library that panics prints its
    message there before Python can intercept it, and the message may quote the data.
    """

    def __init__(
        self,
        count: int,
        environment: dict[str, str] | None = None,
        prepare: Callable[[], object] | None = None,
    ) -> None:
        """Prepare a pool; workers are started when there are tasks for them.

        Args:
            count: Number of workers.
            environment: Environment variables to set in each.
            prepare: What every worker would load before its first task: a picklable function. If there are several
                workers it is called once, in a process that then forks into them.
        """
        self.count = max(1, count)
        self._environment = environment or {}
        self._prepare = prepare if self.count > 1 and can_fork() else None
        self._server: ForkServer | None = None
        # as it is now: what was put on it since the start is found by workers as well
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._kind = _Kind(tuple(sorted(self._environment.items())), path)
        self._idle: list[_Worker] = []
        self._busy: dict[Channel, tuple[_Worker, Task]] = {}
        self._queue: deque[Task] = deque()
        self._last: set[Channel] = set()  # of workers that are not kept
        self._deaths: Counter[TaskId] = Counter()
        self._watch = Watch(Bounds.of(os.environ))
        self._exceeded: deque[Task] = deque()  # to be tried once more

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_exception: object) -> None:
        self._watch.close()
        # all are killed before the first is waited for, so that they end together
        for worker, _ in self._busy.values():
            worker.process.kill()
        for worker, _ in self._busy.values():
            worker.end()
        for worker in self._idle:
            if worker.channel in self._last:
                worker.end()
        _keep([worker for worker in self._idle if worker.channel not in self._last])
        if self._server is not None:
            self._server.close()

    @property
    def outstanding(self) -> int:
        """Tasks submitted and not finished."""
        return len(self._queue) + len(self._busy) + len(self._exceeded)

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers."""
        return [worker.process.pid for worker in [*self._idle, *(worker for worker, _ in self._busy.values())]]

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

    def _worker(self) -> _Worker:
        """A kept worker, with the current environment sent to it, or a new one."""
        environment = {**os.environ, **self._environment, "PYTHONPATH": self._kind.path}
        if (kept := _take(self._kind)) is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # reported by `events`
                kept.channel.send(environment)
            return kept
        ours, theirs = socket.socketpair()
        # closed here once the worker has it: else its death would not close the socket
        with theirs:
            process = self._forked(theirs.fileno(), environment) or self._start("serve", environment, theirs.fileno())
        return _Worker(process, Connection(ours.detach()), self._kind)

    def _forked(self, handle: int, environment: dict[str, str]) -> ForkedProcess | None:
        """A worker that is a fork; None where it has to be a new interpreter."""
        if self._prepare is None:
            return None
        if self._server is None:
            self._server = ForkServer(partial(self._start, "serve_prepared", environment), self._prepare)
        if (forked := self._server.fork(handle)) is None:
            # it has died, or has a second thread, which will not go away: from now on workers are new interpreters
            self._prepare = None
        return forked

    def _start(self, function: str, environment: dict[str, str], handle: int) -> subprocess.Popen[bytes]:
        """A new interpreter in which `function` of this module serves the socket `handle`."""
        given = (handle, os.getpid(), self._kind.private)
        output = subprocess.DEVNULL if self._kind.private else None
        return subprocess.Popen(
            [sys.executable, "-c", f"from dataprep_assets.execution.processes import {function}; {function}{given}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[handle],
            env=environment,
        )

    def _dispatch(self) -> None:
        if self._exceeded and not self._queue and not self._busy:
            self._queue.append(self._exceeded.popleft())
        while self._queue and (self._idle or len(self._busy) < self.count):
            worker = self._idle.pop() if self._idle else self._worker()
            task = self._queue.popleft()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a dead worker is reported by `events`
                worker.channel.send(task)
            self._watch.begin(worker.process.pid)
            self._busy[worker.channel] = (worker, task)

    def events(self, tick_seconds: float = 0.5) -> Iterator[Counts | Finished | None]:
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

    def _receive(self, channel: Channel) -> Iterator[Counts | Finished]:
        worker, task = self._busy[channel]
        try:
            kind, value, later = channel.recv()
        except (EOFError, OSError):
            yield from self._bury(channel)
            return
        if kind in ("counts", "at"):
            self._watch.told(worker.process.pid, value if kind == "at" else "")
            if kind == "counts":
                yield value
            return
        self._watch.end(worker.process.pid)
        del self._busy[channel]
        self._idle.append(worker)
        if not later:
            self._last.add(channel)
        self._dispatch()
        # last: the caller may take long with a result, and the worker is at its next task already
        yield Finished(task, value if kind == "result" else None, value if kind == "error" else None)

    def _bury(self, channel: Channel) -> Iterator[Finished]:
        """Try the task of a dead worker again, before the others, or raise WorkerDiedError.

        The task of one that was ended is tried after the others, or fails.
        """
        worker, task = self._busy.pop(channel)
        if (why := self._watch.end(worker.process.pid)) is not None:
            worker.end()
            if task.closely:
                yield Finished(task, None, BoundError(f"{task.id}: {why}"))
            else:
                logger.warning("%s: %s. It is tried once more, alone", task.id, why)
                self._exceeded.append(replace(task, closely=True))
            self._dispatch()
            return
        code = _ended(worker.process)
        worker.end()
        what = f"{task.id}: its worker process died ({_end(code)})"
        self._deaths[task.id] += 1
        if self._deaths[task.id] > DEATHS:
            raise WorkerDiedError(f"{what}, as {DEATHS} before it did. Finished files are kept: run it again")
        logger.warning("%s. It is tried again", what)
        self.submit(task, first=True)
