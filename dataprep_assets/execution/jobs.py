"""One loop for the work of many partitions, whatever its tasks and whoever does them.

A job is the work of one partition. Most are one task (`TaskJob`); a shard of token bins is several, one after another
and beside each other. `run_jobs` submits, listens, counts and yields each partition's outcome as soon as it is known.
A failed partition does not stop the others. A worker that dies does (WorkerDiedError): what is finished is committed.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.here import Here
from dataprep_assets.execution.processes import ONE_THREAD, WorkerPool
from dataprep_assets.execution.progress import Progress
from dataprep_assets.execution.tasks import Counts, Finished, Pool, Task, TaskId
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.commit import sweep
from dataprep_assets.integrity.receipt import Receipt

__all__ = ["Job", "Outcome", "TaskJob", "run_and_sweep", "run_fetches", "run_jobs", "run_tasks"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a partition: its receipt (`reused` when nothing had to be done), or the error that failed it.

    An artifact without files has `content`, a digest of what it says, and `metadata` in place of a receipt. Beside a
    receipt, `metadata` is what only this build knows: where it was logged, say.
    """

    partition: str
    receipt: Receipt | None = None
    reused: bool = False
    error: Exception | None = None
    content: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, receipt: Receipt, reused: bool) -> Self:
        """The outcome of an artifact that was built or reused."""
        return cls(partition=receipt.partition or "", receipt=receipt, reused=reused)


class Job(Protocol):
    """The work of one partition."""

    @property
    def partition(self) -> str:
        """Its key."""

    @property
    def source_bytes(self) -> int:
        """Bytes that the work reads."""

    def first(self) -> Task:
        """The task that comes before all others of the partition."""

    def finished(self, end: Finished, pool: Pool) -> Outcome | None:
        """Take the end of one of its tasks, submit what follows; the outcome as soon as it is known."""

    def turn(self, pool: Pool) -> Outcome | None:
        """Called once, in the order of the jobs, after `first` ended and when the pool has room."""

    def told(self) -> None:
        """Called when whoever listens has taken the outcome: what is held for it may be let go."""


class DirectoryJob(Job, Protocol):
    """A job of several tasks, which leaves staging beside the directory of its artifact when it is killed."""

    @property
    def directory(self) -> Path:
        """Where the artifact is built."""


class Subject(Protocol):
    """What a task that does all of a partition's work is given: it knows its artifact and how much it reads."""

    @property
    def artifact(self) -> Artifact: ...
    @property
    def source_bytes(self) -> int: ...


S = TypeVar("S", bound=Subject)


class TaskJob:
    """A partition whose work is one task, which returns the receipt and whether it was reused."""

    def __init__(self, subject: Subject, function: Callable[..., tuple[Receipt, bool]], *arguments: Any) -> None:
        self.partition = subject.artifact.partition or ""
        self.source_bytes = subject.source_bytes
        self._task = Task(TaskId(self.partition), function, (subject, *arguments))

    def first(self) -> Task:
        return self._task

    def finished(self, end: Finished, pool: Pool) -> Outcome | None:
        if end.error is not None:
            return Outcome(partition=self.partition, error=end.error)
        receipt, reused = end.result
        return Outcome(partition=self.partition, receipt=receipt, reused=reused)

    def turn(self, pool: Pool) -> Outcome | None:
        return None

    def told(self) -> None:
        """Nothing is held."""


def run_jobs(pool: Pool, jobs: Sequence[Job], progress: Progress) -> Iterator[Outcome]:
    """Yield the outcome of each job as soon as it is known. `pool` is open; `progress` counts and shows.

    Turns are given in the order of the jobs, whatever is finished first: two runs that took the locks of several
    partitions in orders of their own would wait for each other for ever.
    """
    progress.expect(sum(job.source_bytes for job in jobs), pool.count)
    by_partition = {job.partition: job for job in jobs}
    waiting, begun = deque(jobs), set[str]()
    for job in jobs:
        pool.submit(job.first())

    def counted(outcome: Outcome | None) -> Iterator[Outcome]:
        if outcome is None:
            return
        if outcome.reused:
            progress.add({"source_bytes": by_partition[outcome.partition].source_bytes})
        yield outcome
        by_partition[outcome.partition].told()

    for event in pool.events():
        if isinstance(event, Counts):
            progress.add(event.done)
        elif isinstance(event, Finished):
            job = by_partition[event.task.id.partition]
            begun.add(job.partition)
            yield from counted(job.finished(event, pool))
            while waiting and waiting[0].partition in begun and pool.outstanding < 2 * pool.count:
                yield from counted(waiting.popleft().turn(pool))
        progress.show()


def run_and_sweep(
    jobs: Sequence[DirectoryJob], *, workers: int | None, progress: Progress | None = None
) -> Iterator[Outcome]:
    """Run jobs on worker processes of this machine, then remove what killed runs left beside the reused artifacts.

    Args:
        jobs: What to do, in the order of their turns.
        workers: Processes; None does the work in this one.
        progress: Counts and shows; None counts for nobody.
    """
    with Here() if workers is None else WorkerPool(workers, ONE_THREAD) as pool:
        reused = set()
        for outcome in run_jobs(pool, jobs, progress or Progress()):
            if outcome.reused:
                reused.add(outcome.partition)
            yield outcome
        # at once, because each sweep lists the area of all partitions
        sweep(job.directory for job in jobs if job.partition in reused)


def run_tasks(
    subjects: Sequence[S],
    function: Callable[[S], tuple[Receipt, bool]],
    *,
    workers: int,
    progress: Progress | None = None,
    silent: bool = False,
) -> Iterator[Outcome]:
    """Run one task a partition on worker processes of this machine.

    Args:
        subjects: What each task is given; pickled into the workers.
        function: A module-level function that returns a subject's receipt and whether it was reused.
        workers: Processes at most.
        progress: Counts and shows; None counts for nobody.
        silent: Workers print nothing: they hold patients' data.
    """
    with WorkerPool(min(workers, max(1, len(subjects))), ONE_THREAD, silent=silent) as pool:
        yield from run_jobs(pool, [TaskJob(subject, function) for subject in subjects], progress or Progress())


def run_fetches(
    partitions: Sequence[str],
    fetch: Callable[[str, Callable[[int], None]], tuple[Receipt, bool]],
    source_bytes: int,
    progress: Progress,
) -> Iterator[Outcome]:
    """Fetch partitions one after another in this process.

    Args:
        partitions: In the order wanted.
        fetch: Given a partition and what to call with the bytes that have come; returns its receipt and whether it was
            reused.
        source_bytes: Expected in all.
        progress: Counts and shows.
    """
    progress.expect(source_bytes, 1)

    def fetched(count: int) -> None:
        progress.add({"source_bytes": count})
        progress.show()

    for partition in partitions:
        try:
            receipt, reused = fetch(partition, fetched)
        except DataprepError as error:
            yield Outcome(partition=partition, error=error)
        else:
            yield Outcome(partition=partition, receipt=receipt, reused=reused)
