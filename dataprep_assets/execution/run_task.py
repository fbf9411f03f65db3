"""Tasks for workers; does one in this process, and answers as a worker does."""

import os
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from dataprep_assets.bounds import told_to
from dataprep_assets.errors import DataprepError, out_of_memory
from dataprep_assets.integrity.commit import refusal_error
from dataprep_assets.stores.files import private_files

# What workers do and answer: tasks with typed ids, counts while they run, results at their end.
#
# `Pool` is the interface of all kinds of workers: `processes.WorkerPool`, `pool.RayPool`,
# `jobs.SerialExecutor`. A task's function calls `report` to say what it has done so far.

DEATHS = 2
"""How often a task whose worker died is tried again: a third death is its own fault (mostly its memory)."""


@dataclass(frozen=True, order=True)
class TaskId:
    """The partition of a task, the step of its work, and the number of the piece within that step, from 0."""

    partition: str
    step: str = ""
    piece: int | None = None

    def __str__(self) -> str:
        piece = "" if self.piece is None else f" {self.piece}"
        return f"{self.partition} ({self.step}{piece})" if self.step else self.partition


@dataclass(frozen=True)
class Task:
    """A picklable module-level function and its arguments; errors and progress show the id.

    `closely`: it exceeded its bound, and is tried once more.
    """

    id: TaskId
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    closely: bool = False


@dataclass(frozen=True)
class TaskCounts:
    """What a running task has done since its last message: counts by name (tokens, documents, source_bytes, cpu_ms)."""

    id: TaskId
    done: dict[str, int]


@dataclass(frozen=True)
class FinishedTask:
    """A task's end: its result, or the error it raised."""

    task: Task
    result: Any
    error: Exception | None


class Pool(Protocol):
    """The interface of all kinds of workers. Leaving the context ends running tasks."""

    count: int

    @property
    def outstanding(self) -> int:
        """Tasks submitted and not finished."""

    def submit(self, task: Task, *, first: bool = False) -> None:
        """Queue a task; `first` puts it before the others."""

    def cancel(self, doomed: Callable[[TaskId], bool]) -> list[TaskId]:
        """Remove queued tasks for whose id `doomed` is true, and return their ids; running tasks go on."""

    def events(self, tick_seconds: float = 0.5) -> Iterator[TaskCounts | FinishedTask | None]:
        """Counts and ends of tasks, None at a tick without one; ends when nothing is outstanding.

        A task whose worker ends without an answer is tried again, `DEATHS` times; its next death raises
        WorkerDiedError, which names it.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exception: object) -> None: ...


# Where this process's counts go while it does a task; None at all other times.
_send: Callable[[dict[str, int]], None] | None = None


def connect(send: Callable[[dict[str, int]], None] | None) -> None:
    """Set the receiver of this process's `report`: a worker does so before it runs a task; None disconnects."""
    global _send
    _send = send


def report(**done: int) -> None:
    """Report, from inside a task, what was done since the last call. Does nothing outside of a worker."""
    if _send is not None:
        _send(done)


Answer = tuple[str, Any]
"""`("result", what the function returned)` or `("error", a DataprepError)`."""


def without_core() -> None:
    """Let this process leave no core dump: it would contain documents and secret keys."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_task(
    task: Task,
    send: Callable[[dict[str, int]], None],
    tell: Callable[[str], None] | None = None,
    *,
    private: bool = False,
) -> Answer:
    """Run a task in this process and return its answer.

    Args:
        task: What to do.
        send: Gets the counts that the task reports.
        tell: Gets what the task says of where it is (`bounds.at`), if this is a process of its own.
        private: Whether its data are sensitive: only the owner can read the files that it writes (`stores.files`),
            and the message of an error that is not the project's own is withheld, because it may quote the data.
    """
    without_core()
    connect(send)
    try:
        with private_files(private), nullcontext() if tell is None else told_to(tell, closely=task.closely):
            return "result", task.function(*task.arguments)
    except DataprepError as error:
        # its words are the project's own, and quote no data
        return "error", error
    except MemoryError:
        return "error", out_of_memory(str(task.id))
    except OSError as error:
        if private:  # its words and its file may name a patient
            error = OSError(error.errno, os.strerror(error.errno)) if error.errno else OSError(type(error).__name__)
        return "error", DataprepError(f"{task.id}: {refusal_error(error, Path.cwd())}")
    except Exception as error:  # a bug, or an error of the operating system: report it instead of dying
        last = traceback.extract_tb(error.__traceback__)[-1]
        code = f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"
        told = f"{type(error).__name__}: {error}"
        if private:
            told = f"{code}. Its message is withheld: it may quote the data"
        return "error", DataprepError(f"{task.id}: {told}", code=code)
    finally:
        connect(None)


@contextmanager
def without_output(private: bool) -> Iterator[None]:
    """Give this process no standard output and error while it does a `private` task.

    Ray keeps what its workers print in files that others read. A tagger of the user's may print what it is
    given, and a native library that panics prints a message that may quote it.
    """
    if not private:
        yield
        return
    # by descriptor, because native libraries do not know Python's streams
    kept, nowhere = {stream: os.dup(stream) for stream in (1, 2)}, os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in kept:
            os.dup2(nowhere, stream)
        yield
    finally:
        # what Python still buffers goes nowhere as well: flushed after the streams are back, it would be shown
        for buffered in (sys.stdout, sys.stderr):
            buffered.flush()
        for stream, copy in kept.items():
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)
