"""Work that takes less time than a worker takes to start is done in this process."""

from collections import deque
from collections.abc import Callable, Iterator

from dataprep_assets.execution.answer import answer
from dataprep_assets.execution.tasks import Counts, Finished, Task, TaskId
from dataprep_assets.stores.private import are_private


class Here:
    """Runs tasks in this process, one after another, and answers as a worker does. A `tasks.Pool`.

    Counts of a task are told when it ends.
    """

    count = 1

    def __init__(self) -> None:
        self._queue: deque[Task] = deque()

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *_exception: object) -> None:
        self._queue.clear()

    @property
    def outstanding(self) -> int:
        """Tasks submitted and not finished."""
        return len(self._queue)

    def submit(self, task: Task, *, first: bool = False) -> None:
        """Queue a task; `first` puts it before the others."""
        (self._queue.appendleft if first else self._queue.append)(task)

    def cancel(self, doomed: Callable[[TaskId], bool]) -> list[TaskId]:
        """Forget queued tasks whose id is doomed, and say which."""
        forgotten = [task.id for task in self._queue if doomed(task.id)]
        self._queue = deque(task for task in self._queue if not doomed(task.id))
        return forgotten

    def events(self, tick_seconds: float = 0.5) -> Iterator[Counts | Finished | None]:
        """Do what is queued; counts and the end of each task. Tasks may be submitted while iterating."""
        while self._queue:
            task = self._queue.popleft()
            done: list[dict[str, int]] = []
            # without `tell`: what this process says of itself goes to whoever watches the command
            kind, value = answer(task, done.append, private=are_private())
            yield from (Counts(task.id, counts) for counts in done)
            yield Finished(task, value if kind == "result" else None, value if kind == "error" else None)
