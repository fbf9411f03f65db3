"""Groups of checks that share a subject: a partition, or an artifact as a whole.

Entry points: `PartitionChecks`, `WholeChecks`, `CheckWorkers`; `find_all` for one partition.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from dataprep_assets.engine.checks.check import Check, Checkable, Finding
from dataprep_assets.engine.checks.verdicts import Verdicts, find_in_workers, of_all_partitions
from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.pool import TaskEngine, worker_count
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt

S = TypeVar("S")
T = TypeVar("T", bound=Checkable)


class CheckedSpec(Protocol):
    """The part of an artifact's spec that its checks need."""

    @property
    def noun(self) -> str: ...
    def slots(self, store: ArtifactStore) -> Sequence[str | None]: ...
    def located(self, store: ArtifactStore, partition: str | None = None) -> Artifact: ...


@dataclass(frozen=True, kw_only=True)
class CheckWorkers:
    """The workers that check partitions.

    Attributes:
        engine: Who does the work.
        declared: The declared number of workers; None: as the environment says.
        prepare: As for `WorkerPool`.
    """

    engine: TaskEngine
    declared: int | None
    prepare: Callable[[], object] | None = None


Guard = Callable[[str], AbstractContextManager[None]]
"""Returns what checks run in, given the partition or dataset: it may replace errors that quote data."""


def itself(partition: Any) -> Any:
    """Open a partition that is its own subject."""
    return partition


def _in_this_process(store: ArtifactStore, partitions: Sequence[str]) -> CheckWorkers | None:
    return None


@dataclass(frozen=True, kw_only=True)
class PartitionChecks(Generic[T, S]):
    """Checks of each partition by itself. The verdicts are kept: a run examines only what it touched.

    Attributes:
        checks: The checks.
        planned: Returns the given partitions as they are handed to workers.
        open: Opens one of them; a function of a module. If it raises a DataprepError, all checks fail with it. By
            default a partition is its own subject.
        workers: Returns the workers for the given partitions; None: this process, where checks take no time.
        guard: What the checks of a partition run in.
        documents: Counts, from a receipt, the documents of which checks with `samples` make some again; None if there
            are no such checks.
    """

    checks: tuple[Check[S], ...]
    planned: Callable[[ArtifactStore, Sequence[str]], Iterable[T]]
    open: Callable[[T], S] = itself
    workers: Callable[[ArtifactStore, Sequence[str]], CheckWorkers | None] = _in_this_process
    guard: Guard | None = None
    documents: Callable[[Receipt], int] | None = None

    def find(self, store: ArtifactStore, partitions: Sequence[str]) -> Verdicts:
        """Check these partitions; yields each with its findings when they are there."""
        find, workers = partial(find_all, self.checks, self.open, self.guard), self.workers(store, partitions)
        planned = self.planned(store, partitions)
        if workers is None:
            return ((one.artifact.partition or "", find(one)) for one in planned)
        count = worker_count(workers.declared)
        return find_in_workers(planned, find, count, engine=workers.engine, prepare=workers.prepare)

    def examine(
        self, spec: CheckedSpec, store: ArtifactStore, partitions: Sequence[str]
    ) -> Iterator[tuple[str, Finding]]:
        """Yield the finding of each check over all partitions, of which those given are examined now."""
        yield from of_all_partitions(
            store,
            self.checks,
            [slot for slot in spec.slots(store) if slot is not None],
            partitions,
            artifact=partial(spec.located, store),
            find=partial(self.find, store),
            noun=spec.noun,
        )


def find_all(
    checks: Sequence[Check[S]], open: Callable[[T], S], guard: Guard | None, partition: T
) -> dict[str, Finding]:
    """Open one partition and return the findings of all checks, by name."""
    with nullcontext() if guard is None else guard(partition.artifact.partition or partition.artifact.dataset):
        try:
            subject = open(partition)
        except DataprepError as error:  # an unreadable receipt is the finding
            return {check.name: Finding(passed=False, summary=str(error)) for check in checks}
        return {check.name: check.find(subject) for check in checks}


@dataclass(frozen=True, kw_only=True)
class WholeChecks(Generic[S]):
    """Checks of an artifact as a whole: of one without partitions, or of all partitions together.

    Attributes:
        checks: The checks.
        open: Opens the subject, given the partitions of the run. If it raises a DataprepError, all checks fail with it.
        guard: What the checks run in, given the dataset.
    """

    checks: tuple[Check[S], ...]
    open: Callable[[ArtifactStore, Sequence[str]], S]
    guard: Callable[[], AbstractContextManager[None]] = nullcontext

    def examine(
        self, spec: CheckedSpec, store: ArtifactStore, partitions: Sequence[str]
    ) -> Iterator[tuple[str, Finding]]:
        """Yield the finding of each check; raises DataprepError if the subject cannot be opened."""
        with self.guard():
            subject = self.open(store, partitions)
            for check in self.checks:
                yield check.name, check.find(subject)


CheckGroup = PartitionChecks[Any, Any] | WholeChecks[Any]
