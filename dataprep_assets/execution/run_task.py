"""Tasks and the interface of worker pools; `run_task` runs a task in this process and returns its answer."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from dataprep_assets.bounds import disable_core_dumps, report_to
from dataprep_assets.errors import DataprepError, build_memory_error
from dataprep_assets.integrity.commit import translate_os_error
from dataprep_assets.stores.files import private_files

# A task has a typed id, reports counts while it runs, and returns a result.
#
# `Pool` is the interface of all kinds of workers: `processes.WorkerPool`, `pool.RayPool` and `jobs.SerialExecutor`. A
# task's function calls `report_work` with the counts of its work so far.

DEATHS = 2
"""Number of retries of a task whose worker died; a third death is attributed to the task (mostly to its memory use)."""


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

    `reports_each_row`: the task exceeded its bound, and is retried once under closer observation.
    """

    id: TaskId
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    reports_each_row: bool = False


@dataclass(frozen=True)
class TaskCounts:
    """Counts of a running task since its last message, by name (tokens, documents, source_bytes, cpu_ms)."""

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
        """Number of submitted tasks that have not finished."""

    def submit(self, task: Task, *, is_first: bool = False) -> None:
        """Queue a task; `is_first` puts it before the others."""

    def cancel(self, is_cancelled: Callable[[TaskId], bool]) -> list[TaskId]:
        """Remove queued tasks whose ids match `is_cancelled`, and return their ids; running tasks continue."""

    def events(self, tick_seconds: float = 0.5) -> Iterator[TaskCounts | FinishedTask | None]:
        """Yield the counts and ends of tasks until no task is outstanding; yield None at each tick without an event.

        A task whose worker ends without an answer is retried up to `DEATHS` times. The next death raises
        WorkerDiedError, which names the task.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exception: object) -> None: ...


# The receiver of this process's counts while it runs a task; None at all other times.
_send: Callable[[dict[str, int]], None] | None = None


def connect(send: Callable[[dict[str, int]], None] | None) -> None:
    """Set the receiver of this process's `report_work`, as workers do before they run a task; None disconnects it."""
    global _send
    _send = send


def report_work(**amount: int) -> None:
    """Report the work that the current task has done since the last call. Outside a task, this does nothing."""
    if _send is not None:
        _send(amount)


Answer = tuple[str, Any]
"""`("result", the function's return value)` or `("error", a DataprepError)`."""


def run_task(
    task: Task,
    send: Callable[[dict[str, int]], None],
    send_position: Callable[[str], None] | None = None,
    *,
    private: bool = False,
) -> Answer:
    """Run a task in this process and return its answer.

    Args:
        task: The task to run.
        send: Receives the counts that the task reports.
        send_position: Receives the task's current position (`bounds.report_position`), if this process is a worker.
        private: Whether the data are sensitive. If so, only the owner can read the files that the task writes
            (`stores.files`), and messages of other libraries' errors are withheld, because they may quote the data.
    """
    disable_core_dumps()
    connect(send)
    try:
        with (
            private_files(private),
            nullcontext()
            if send_position is None
            else report_to(send_position, reports_each_row=task.reports_each_row),
        ):
            return "result", task.function(*task.arguments)
    except DataprepError as error:
        # Return the error unchanged, because this project's own messages quote no data.
        return "error", error
    except MemoryError:
        return "error", build_memory_error(str(task.id))
    except OSError as error:
        if private:  # the system's message and the file name may contain private data
            error = OSError(error.errno, os.strerror(error.errno)) if error.errno else OSError(type(error).__name__)
        return "error", DataprepError(f"{task.id}: {translate_os_error(error, Path.cwd())}")
    except Exception as error:  # report a bug or an unexpected library error instead of terminating the worker
        frame = traceback.extract_tb(error.__traceback__)[-1]
        code = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
        message = f"{type(error).__name__}: {error}"
        if private:
            message = f"{code}. Its message is withheld because it may quote the data"
        return "error", DataprepError(f"{task.id}: {message}", code=code)
    finally:
        connect(None)


@contextmanager
def discard_output(private: bool) -> Iterator[None]:
    """Discard the standard output and error of this process while it runs a `private` task.

    Ray stores the output of its workers in files that other users can read. A user's tagger may print its input, and a
    native library that panics may quote it.
    """
    if not private:
        yield
        return
    # Redirect the descriptors, because native libraries bypass Python's streams.
    copies, nowhere = {stream: os.dup(stream) for stream in (1, 2)}, os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in copies:
            os.dup2(nowhere, stream)
        yield
    finally:
        # Flush Python's buffers before the streams are restored. Otherwise, the restored streams would show the
        # buffered text.
        for buffered in (sys.stdout, sys.stderr):
            buffered.flush()
        for stream, copy in copies.items():
            os.dup2(copy, stream)
            os.close(copy)
        os.close(nowhere)
