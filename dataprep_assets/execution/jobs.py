"""Main loop over the work on many partitions, for all kinds of tasks and workers.

A job is the work on one partition. Most jobs have one task (`TaskJob`). A job for a shard of token bins has several
tasks, some of which run in parallel. `run_jobs` submits tasks, handles their events and yields each partition's outcome
as soon as it is known.

A failed partition does not stop the others. A task whose workers die repeatedly stops the run (WorkerDiedError);
finished partitions stay committed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

from dataprep_assets.bounds import must_read_single_rows
from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.execution.run_task import FinishedTask, Pool, Task, TaskCounts, TaskId, run_task
from dataprep_assets.integrity.artifacts import Artifact
from dataprep_assets.integrity.commit import sweep
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stores.files import is_private_mode

_MAX_CHECKED = 128
"""Number of artifacts to check before the outcomes of the current ones are yielded."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a partition: its receipt (`reused` if nothing had to be done), or the error with which it failed.

    An artifact without files has `content` (the digest of its report) and `metadata` instead of a receipt. With a
    receipt, `metadata` contains facts that only this build knows, such as the location of its log.
    """

    partition: str
    receipt: Receipt | None = None
    reused: bool = False
    error: Exception | None = None
    content: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_receipt(cls, receipt: Receipt, reused: bool) -> Self:
        """Return the outcome of an artifact that was built or reused."""
        return cls(partition=receipt.partition or "", receipt=receipt, reused=reused)


class Job(Protocol):
    """All tasks that build one partition."""

    @property
    def partition(self) -> str:
        """The partition key."""

    @property
    def source_bytes(self) -> int:
        """Bytes that the work reads from the source."""

    def first_task(self) -> Task:
        """Return the first task of the partition."""

    def handle_end(self, end: FinishedTask, pool: Pool) -> Outcome | None:
        """Handle the end of a task and submit its successors; return the outcome once it is known, else None."""

    def take_turn(self, pool: Pool) -> Outcome | None:
        """Return the outcome if it is known without more tasks; otherwise submit them and return None.

        `run_jobs` calls this once per job, in the order of the jobs, after the first task has ended and when the pool
        has room.
        """

    def release(self) -> None:
        """Release the resources held for the outcome, such as a lock; called when the caller has taken the outcome."""


class DirectoryJob(Job, Protocol):
    """A job of several tasks, which leaves staging files next to the directory of its artifact if it is killed."""

    @property
    def directory(self) -> Path:
        """Directory of the artifact."""


class TaskSubject(Protocol):
    """First argument of a task that does all the work on a partition: an artifact with its number of source bytes."""

    @property
    def artifact(self) -> Artifact: ...
    @property
    def source_bytes(self) -> int: ...


class TaskJob:
    """A job with one task, whose function returns the receipt and whether the artifact was reused."""

    def __init__(
        self,
        subject: TaskSubject,
        function: Callable[..., tuple[Receipt, bool]],
        *arguments: Any,
        find_receipt: Callable[[], Receipt | None] = lambda: None,
    ) -> None:
        """Create the job's task.

        Args:
            subject: The artifact to build; the function's first argument.
            function: A module-level function, because workers import it.
            arguments: The function's other arguments.
            find_receipt: Returns the receipt if the artifact is current and needs no task. `run_tasks` calls it in a
                thread if the workers are on other machines.
        """
        self.found = find_receipt
        self.partition = subject.artifact.partition or ""
        self.source_bytes = subject.source_bytes
        self._task = Task(TaskId(self.partition), function, (subject, *arguments))

    def first_task(self) -> Task:
        return self._task

    def handle_end(self, end: FinishedTask, pool: Pool) -> Outcome | None:
        if end.error is not None:
            return Outcome(partition=self.partition, error=end.error)
        receipt, reused = end.result
        return Outcome(partition=self.partition, receipt=receipt, reused=reused)

    def take_turn(self, pool: Pool) -> Outcome | None:
        return None

    def release(self) -> None:
        """Do nothing: this job holds no resources."""


class SerialExecutor:
    """A pool that runs tasks one after another in this process, for work that is shorter than the start of a worker.

    The counts of a task are reported when it ends.
    """

    count = 1

    def __init__(self) -> None:
        self._queue: deque[Task] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._queue.clear()

    @property
    def outstanding(self) -> int:
        """Number of submitted tasks that have not finished."""
        return len(self._queue)

    def submit(self, task: Task, *, is_first: bool = False) -> None:
        """Queue a task; `is_first` puts it before the others."""
        (self._queue.appendleft if is_first else self._queue.append)(task)

    def cancel(self, is_cancelled: Callable[[TaskId], bool]) -> list[TaskId]:
        """Remove queued tasks whose ids match `is_cancelled`, and return their ids."""
        cancelled = [task.id for task in self._queue if is_cancelled(task.id)]
        self._queue = deque(task for task in self._queue if not is_cancelled(task.id))
        return cancelled

    def events(self, tick_seconds: float = 0.5) -> Iterator[TaskCounts | FinishedTask | None]:
        """Run the queued tasks; yield the counts and the end of each task. Tasks may be submitted while iterating."""
        while self._queue:
            task = self._queue.popleft()
            all_counts: list[dict[str, int]] = []
            # Do not pass `send_position`, because the process that watches the command already receives this process's
            # positions.
            kind, value = run_task(task, all_counts.append, private=is_private_mode())
            yield from (TaskCounts(task.id, counts) for counts in all_counts)
            yield FinishedTask(task, value if kind == "result" else None, value if kind == "error" else None)


def run_jobs(pool: Pool, jobs: Sequence[Job], progress: Progress) -> Iterator[Outcome]:
    """Yield the outcome of each job as soon as it is known. `pool` must be open; `progress` counts and shows the work.

    `take_turn` is called in the order of the jobs, even if they finish in a different order. Otherwise two runs that
    lock partitions in different orders could wait for each other forever.
    """
    progress.expect(sum(job.source_bytes for job in jobs), pool.count)
    by_partition = {job.partition: job for job in jobs}
    uncounted_bytes = {job.partition: job.source_bytes for job in jobs}
    waiting, started_partitions = deque(jobs), set[str]()
    for job in jobs:
        pool.submit(job.first_task())

    def add_counts(partition: str, counts: Mapping[str, int]) -> None:
        # Count at most the job's bytes, because a job may read some of its bytes twice, or more of a file than its own
        # rows.
        source_bytes = min(counts.get("source_bytes", 0), uncounted_bytes[partition])
        uncounted_bytes[partition] -= source_bytes
        progress.add({**counts, "source_bytes": source_bytes})

    def take_outcome(outcome: Outcome | None) -> Iterator[Outcome]:
        if outcome is None:
            return
        if outcome.error is None:
            add_counts(outcome.partition, {"source_bytes": uncounted_bytes[outcome.partition]})
        yield outcome
        by_partition[outcome.partition].release()

    for event in pool.events():
        if isinstance(event, TaskCounts):
            add_counts(event.id.partition, event.done)
        elif isinstance(event, FinishedTask):
            job = by_partition[event.task.id.partition]
            started_partitions.add(job.partition)
            yield from take_outcome(job.handle_end(event, pool))
            # A turn may take a lock and queue many tasks. Start a turn only while fewer than two tasks per worker are
            # outstanding, so that all workers stay busy, but few locks are held.
            while waiting and waiting[0].partition in started_partitions and pool.outstanding < 2 * pool.count:
                yield from take_outcome(waiting.popleft().take_turn(pool))
        progress.show()


def run_and_sweep(
    jobs: Sequence[DirectoryJob],
    *,
    workers: int | None,
    progress: Progress | None = None,
    prepare: Callable[[], object] | None = None,
) -> Iterator[Outcome]:
    """Run jobs on worker processes of this machine, then remove killed runs' staging files of reused artifacts.

    Args:
        jobs: The jobs, in the order of their turns.
        workers: Number of processes. None runs the jobs in this process, unless it exceeded its bound before.
        progress: Counts and shows the work; None shows nothing.
        prepare: The `prepare` argument of `WorkerPool`.
    """
    from dataprep_assets.execution.processes import ONE_THREAD, WorkerPool

    in_this_process = workers is None and not must_read_single_rows()
    with SerialExecutor() if in_this_process else WorkerPool(workers or 1, ONE_THREAD, prepare) as pool:
        reused = set()
        for outcome in run_jobs(pool, jobs, progress or Progress()):
            if outcome.reused:
                reused.add(outcome.partition)
            yield outcome
        # Sweep once for all artifacts, because each sweep lists the staging files of all partitions.
        sweep(job.directory for job in jobs if job.partition in reused)


def run_tasks(
    jobs: Sequence[TaskJob],
    *,
    workers: int,
    engine: TaskEngine = ON_PROCESSES,
    progress: Progress | None = None,
    prepare: Callable[[], object] | None = None,
) -> Iterator[Outcome]:
    """Run one task per partition. With workers on other machines, a partition with a receipt gets no task.

    Args:
        jobs: The tasks; their arguments are pickled and sent to the workers.
        workers: Maximum number of workers.
        engine: The engine that runs the tasks.
        progress: Counts and shows the work; None shows nothing.
        prepare: The `prepare` argument of `WorkerPool`.
    """
    if not engine.is_this_machine:
        from dataprep_assets.stores.pool import REQUESTS_AT_ONCE, map_all

        current_receipts: dict[str, Receipt] = {}
        for start in range(0, len(jobs), _MAX_CHECKED):
            part = jobs[start : start + _MAX_CHECKED]
            receipts = zip(part, map_all(lambda job: job.found(), part, REQUESTS_AT_ONCE), strict=True)
            current_receipts |= {job.partition: receipt for job, receipt in receipts if receipt is not None}
            yield from (
                Outcome.from_receipt(current_receipts[job.partition], True)
                for job in part
                if job.partition in current_receipts
            )
        jobs = [job for job in jobs if job.partition not in current_receipts]
    if jobs:
        with engine.open(min(workers, len(jobs)), prepare) as pool:
            yield from run_jobs(pool, jobs, progress or Progress())


def run_fetches(
    partitions: Sequence[str],
    fetch: Callable[[str, Callable[[int], None]], tuple[Receipt, bool]],
    source_bytes: int,
    progress: Progress,
) -> Iterator[Outcome]:
    """Fetch partitions one after another in this process.

    Args:
        partitions: The partition keys, in the order in which they are fetched.
        fetch: Called with a partition and a callback for the number of received bytes. Returns the receipt and whether
            the artifact was reused.
        source_bytes: Expected total number of bytes of all partitions.
        progress: Counts and shows the work.
    """
    progress.expect(source_bytes, 1)

    def report_received(count: int) -> None:
        progress.add({"source_bytes": count})
        progress.show()

    for partition in partitions:
        try:
            receipt, reused = fetch(partition, report_received)
        except DataprepError as error:
            yield Outcome(partition=partition, error=error)
        else:
            yield Outcome(partition=partition, receipt=receipt, reused=reused)
