"""Tasks of Slurm's job arrays, behind the interface of `processes.WorkerPool`.

Waiting tasks are submitted together, as one array. Run and nodes share a folder with pickled tasks, counts and answers.
A task that ends without an answer was preempted, hit its time limit, lost its node, or died; it is submitted again, and
a shard continues after its last finished file if it finds its staging directory. The bytes are the same in any case.

The pool waits for a controller that does not answer; running tasks go on meanwhile. Closing the pool cancels its
arrays. A run that is killed cannot do that: its tasks miss its sign of life and end their arrays themselves
(`slurm_task`).
"""

import os
import pickle
import secrets
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import ConfigError, WorkerDiedError
from dataprep_assets.execution import slurm
from dataprep_assets.execution.slurm import SlurmAwayError, SlurmSettings
from dataprep_assets.execution.slurm_task import write
from dataprep_assets.execution.tasks import DEATHS, Counts, Finished, Task, TaskId
from dataprep_assets.stores.private import are_private

RETURNS = 20
"""How often a task may lose its node or hit its time limit, which is normal on a cluster."""
# Ends that are normal on a cluster, and are counted by themselves (`RETURNS`).
WEATHER = {"PREEMPTED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE"}
_REMEDIES = {"TIMEOUT": "give it more time", "OUT_OF_MEMORY": "give it more memory"}
ARRAY = 1_000
"""Most tasks in an array: clusters accept indices up to 1,000 by default."""
_POLL_SECONDS = 5.0
_SIGN_SECONDS = 2.0
_LATE_SECONDS = 60.0
"""How long an answer may take from a node's disk cache to this machine, and an end to Slurm's accounting."""
_LOGS_KEPT_SECONDS = 86_400.0
# How long a run waits for a controller that does not answer, and for canceled tasks to go.
_AWAY_SECONDS = 1_800.0
_GONE_SECONDS = 90.0


def _forget(folder: Path, *, whole: bool) -> None:
    """Remove the pickled tasks and answers of a run of this user, or the `whole` of its folder.

    The folder is opened without following a link, because other users may write beside it: what is removed is below
    the folder whose owner was looked at.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return
        for array in os.scandir(descriptor):
            if whole:
                _remove(array.name, descriptor)
            elif array.is_dir(follow_symlinks=False):
                for name in ("tasks", "answers"):
                    shutil.rmtree(f"{array.name}/{name}", ignore_errors=True, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    if whole:
        with suppress(OSError):  # a task is still writing a log
            folder.rmdir()


def _remove(name: str, descriptor: int) -> None:
    """Remove a file or a folder in an opened folder."""
    with suppress(OSError):
        os.unlink(name, dir_fd=descriptor)
        return
    shutil.rmtree(name, ignore_errors=True, dir_fd=descriptor)


@dataclass
class _Try:
    """A task, and how often it has come back without an answer."""

    task: Task
    deaths: int = 0
    returns: int = 0
    # the counts that were handed on, and when the task was first seen to be gone (0: it is there)
    told: dict[str, int] = field(default_factory=dict)
    missed_at: float = 0.0


@dataclass
class _Array:
    """A submitted array: its folder, its job id, and by index its tasks that have no answer yet."""

    folder: Path
    job: str
    tries: dict[str, _Try]


class SlurmPool:
    """Runs tasks in Slurm's arrays, one CPU each. Use as a context manager; leaving it cancels what is left."""

    def __init__(self, count: int, settings: Mapping[str, str], slurm_settings: SlurmSettings) -> None:
        slurm.require()
        self._settings, self._slurm = dict(settings), slurm_settings
        self.count = max(1, count, slurm_settings.width)
        self._queue: deque[_Try] = deque()
        self._arrays: list[_Array] = []
        self._made = 0
        # when the controller first did not answer; 0 while it does
        self._away_since = 0.0
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self._folder = self._slurm.folder / secrets.token_hex(8)
        # tasks are pickles: anybody who can write here can run code
        self._folder.mkdir(parents=True, mode=0o700)
        self._sign = self._folder / "sign"
        write(self._sign, b"0")
        self._forget_lost()
        threading.Thread(target=self._give_signs, daemon=True).start()
        return self

    def __exit__(self, *_exception: object) -> None:
        jobs = [array.job for array in self._arrays if array.tries]
        with suppress(SlurmAwayError, ConfigError):
            slurm.cancel(jobs)
            # until they are gone tasks write to the folder that is removed below
            deadline = time.monotonic() + _GONE_SECONDS
            while jobs and self._go_on(jobs) and time.monotonic() < deadline:
                time.sleep(0.5)
        self._over.set()
        # of what did not end well the logs stay, which say why
        with suppress(OSError):  # somebody removed it
            _forget(self._folder, whole=not any(array.tries for array in self._arrays))
        self._arrays.clear()
        self._queue.clear()

    def _forget_lost(self) -> None:
        """Remove the tasks that killed runs left: they hold the keys of sensitive datasets; after a day the logs, too.

        A run is lost if its sign is old by the clock of the disk, which gave this run's sign its time as well. Its
        arrays have ended themselves by then (`slurm_task`).
        """
        now = self._sign.stat().st_mtime
        for folder in self._slurm.folder.iterdir():
            with suppress(OSError):  # another run is removing it, or has just made it
                age = now - (folder / "sign").stat().st_mtime
                if age > self._slurm.orphan_seconds + _LATE_SECONDS:
                    _forget(folder, whole=age > _LOGS_KEPT_SECONDS)

    @staticmethod
    def _go_on(jobs: Iterable[str]) -> bool:
        return any(state not in slurm.ENDED for state in slurm.states(jobs).values())

    def _give_signs(self) -> None:
        number = 0
        while not self._over.wait(_SIGN_SECONDS):
            number += 1
            with suppress(OSError):
                # another content each time, which tasks compare: clocks of nodes and of the disk may differ
                write(self._sign, str(number).encode())

    @property
    def outstanding(self) -> int:
        """Tasks submitted and not finished."""
        return len(self._queue) + sum(len(array.tries) for array in self._arrays)

    def submit(self, task: Task, *, first: bool = False) -> None:
        """Queue a task; `first` puts it before the others. Arrays are made while `events` is iterated."""
        (self._queue.appendleft if first else self._queue.append)(_Try(task))

    def cancel(self, doomed: Callable[[TaskId], bool]) -> list[TaskId]:
        """Remove tasks that are in no array yet and whose id is `doomed`, and return their ids; others go on."""
        forgotten = [one.task.id for one in self._queue if doomed(one.task.id)]
        self._queue = deque(one for one in self._queue if not doomed(one.task.id))
        return forgotten

    def events(self, tick_seconds: float = 0.5) -> Iterator[Counts | Finished | None]:
        """Counts and ends of tasks as they happen, None at every tick without one; ends when nothing is outstanding.

        Tasks may be submitted while iterating. Raises WorkerDiedError for a task that died `DEATHS` + 1 times, was
        canceled by somebody, or came back `RETURNS` + 1 times.
        """
        looked_at = time.monotonic()
        while self.outstanding:
            self._dispatch()
            happened = False
            for array in self._arrays:
                for event in self._news(array):
                    happened = True
                    yield event
            if time.monotonic() - looked_at > _POLL_SECONDS:
                self._look()
                looked_at = time.monotonic()
            if not happened:
                yield None
                time.sleep(tick_seconds)

    def _dispatch(self) -> None:
        """Submit waiting tasks, unless earlier arrays have more than half of `count`, or of `ARRAY`, tasks left."""
        under_way = sum(len(array.tries) for array in self._arrays)
        if not self._queue or under_way > max(self.count, ARRAY) // 2:
            return
        tries = [self._queue.popleft() for _ in range(min(ARRAY, len(self._queue)))]
        folder = self._folder / str(self._made)
        for name in ("tasks", "answers", "counts", "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for index, one in enumerate(tries):
            # pickled by itself: the settings are in force before a worker imports what the task needs (`slurm_task`)
            work = pickle.dumps(one.task)
            packed = (self._settings, are_private(), str(self._sign), self._slurm.orphan_seconds, work)
            (folder / "tasks" / str(index)).write_bytes(pickle.dumps(packed))
        try:
            job = slurm.submit(folder, len(tries), self._slurm)
        except SlurmAwayError as error:
            # back to the front, in their order
            self._queue.extendleft(reversed(tries))
            self._wait_for_controller(error)
            return
        self._made, self._away_since = self._made + 1, 0.0
        self._arrays.append(_Array(folder, job, {str(index): one for index, one in enumerate(tries)}))

    def _news(self, array: _Array) -> Iterator[Counts | Finished]:
        """Counts and answers that arrived since the last look."""
        for path in (array.folder / "counts").iterdir():
            # neither a draft, which has another name, nor of a task that has answered
            if path.name in array.tries:
                yield from self._counted(array.tries[path.name], path)
        for path in (array.folder / "answers").iterdir():
            if path.name in array.tries:
                one = array.tries.pop(path.name)
                # a task writes its last counts before its answer
                yield from self._counted(one, array.folder / "counts" / path.name)
                kind, value = pickle.loads(path.read_bytes())
                yield Finished(one.task, value if kind == "result" else None, value if kind == "error" else None)

    @staticmethod
    def _counted(one: _Try, path: Path) -> Iterator[Counts]:
        try:
            sums: dict[str, int] = json_of(path.read_bytes())
        except (OSError, ValueError):
            return
        # the file has sums, of which a part was handed on before
        if done := {name: value - one.told.get(name, 0) for name, value in sums.items() if value != one.told.get(name)}:
            one.told = sums
            yield Counts(one.task.id, done)

    def _look(self) -> None:
        """Ask Slurm for its tasks, and take back those that have ended without an answer."""
        arrays = [array for array in self._arrays if array.tries]
        try:
            states = slurm.states(array.job for array in arrays)
        except SlurmAwayError as error:
            self._wait_for_controller(error)
            return
        self._away_since = 0.0
        there = {task for task, state in states.items() if state not in slurm.ENDED}
        missed = []
        # answers are looked for after the states: a task that has left the queue had written its answer by then
        for array in arrays:
            for index, one in array.tries.items():
                if (task := f"{array.job}_{index}") in there:
                    one.missed_at = 0.0
                elif not (array.folder / "answers" / index).exists():
                    missed.append((task, array, index, one))
        states |= slurm.accounted([task for task, *_ in missed if task not in states])
        for task, array, index, one in missed:
            self._missed(array, index, one, states.get(task, ""))

    def _missed(self, array: _Array, index: str, one: _Try, state: str) -> None:
        """Handle a task that left the queue without an answer: try it again, or report why not.

        Args:
            array: Its array.
            index: Its number there.
            one: The task.
            state: How it ended; "" if nobody in Slurm knows it (yet).
        """
        if state in ("COMPLETED", ""):  # its answer is on the way, or the accounting is late
            one.missed_at = one.missed_at or time.monotonic()
            if time.monotonic() - one.missed_at < _LATE_SECONDS:
                return
        if (array.folder / "answers" / index).exists():
            return
        log = array.folder / "logs" / f"{index}.txt"
        if state == "CANCELLED":
            raise WorkerDiedError(
                f"{one.task.id}: its Slurm task {f'{array.job}_{index}'} was cancelled. "
                "Finished shards are kept: run it again"
            )
        is_weather = state in WEATHER
        again = _Try(one.task, one.deaths + (not is_weather), one.returns + is_weather)
        if again.deaths > DEATHS or again.returns > RETURNS:
            remedy = _REMEDIES.get(state, f"its log is {log}")
            raise WorkerDiedError(
                f"{one.task.id}: its Slurm task ended {again.deaths + again.returns} times without an answer, "
                f"the last time as {state or 'unknown'}; {remedy}. Finished shards are kept: run it again"
            )
        del array.tries[index]
        self._queue.append(again)

    def _wait_for_controller(self, error: SlurmAwayError) -> None:
        self._away_since = self._away_since or time.monotonic()
        if time.monotonic() - self._away_since > _AWAY_SECONDS:
            raise WorkerDiedError(
                f"Slurm's controller has not answered for {_AWAY_SECONDS / 60:.0f} min: {error}. Finished "
                "shards are kept: run it again"
            ) from error
        time.sleep(1)
