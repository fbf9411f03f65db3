"""What is done by workers and what they answer: tasks with typed ids, counts while they run, results at their end.

`Pool` is what every kind of worker offers: `processes.WorkerPool`, `ray_pool.RayPool`, `slurm_pool.SlurmPool`. A
task's function calls `report` to say what it has done so far.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

__all__ = [
    "Counts",
    "Finished",
    "Pool",
    "Task",
    "TaskId",
    "connect",
    "keep_for_this_pool_only",
    "kept_for_later",
    "report",
]


@dataclass(frozen=True, order=True)
class TaskId:
    """Which partition a task is for, which step of its work, and which of that step's pieces (from 0)."""

    partition: str
    step: str = ""
    piece: int | None = None

    def __str__(self) -> str:
        piece = "" if self.piece is None else f" {self.piece}"
        return f"{self.partition} ({self.step}{piece})" if self.step else self.partition


@dataclass(frozen=True)
class Task:
    """A picklable module-level function and its arguments; errors and progress name the id."""

    id: TaskId
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Counts:
    """What a running task has done since its last message: counts by name (tokens, documents, source_bytes, cpu_ms)."""

    id: TaskId
    done: dict[str, int]


@dataclass(frozen=True)
class Finished:
    """A task's end: its result, or the error it raised."""

    task: Task
    result: Any
    error: Exception | None


class Pool(Protocol):
    """What every kind of worker offers. Leaving the context ends what is still running."""

    count: int

    @property
    def outstanding(self) -> int:
        """Tasks submitted and not finished."""

    def submit(self, task: Task, *, first: bool = False) -> None:
        """Queue a task; `first` puts it before the others."""

    def cancel(self, doomed: Callable[[TaskId], bool]) -> list[TaskId]:
        """Forget queued tasks whose id is doomed, and say which; running ones go on."""

    def events(self, tick_seconds: float = 0.5) -> Iterator[Counts | Finished | None]:
        """Counts and ends of tasks, None at a tick without one; ends when nothing is outstanding.

        Raises WorkerDiedError naming the task whose worker ended without an answer.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exception: object) -> None: ...


_send: Callable[[dict[str, int]], None] | None = None


def connect(send: Callable[[dict[str, int]], None] | None) -> None:
    """Say where this process's `report` goes: a worker connects itself before it runs a task, None disconnects."""
    global _send
    _send = send


def report(**done: int) -> None:
    """Called inside a task: tell the run what was done since the last call. Nothing happens outside a worker."""
    if _send is not None:
        _send(done)


_later = True


def keep_for_this_pool_only() -> None:
    """Called inside a task that loads what may be another in the next pool under the same name, as a user's module.

    Its worker is not kept when the pool is left.
    """
    global _later
    _later = False


def kept_for_later() -> bool:
    """Whether this process may serve another pool."""
    return _later
