"""What workers do and answer: tasks with typed ids, counts while they run, results at their end.

`Pool` is the interface of all kinds of workers: `processes.WorkerPool`, `ray_pool.RayPool`, `jobs.SerialExecutor`. A
task's function calls `report` to say what it has done so far.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

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
