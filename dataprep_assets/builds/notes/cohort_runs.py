"""Runs one task a cohort on worker processes: each is verified, built or failed on its own."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from dataprep_assets.builds.token_bins import ONE_THREAD, ShardResult
from dataprep_assets.builds.workers import Finished, Meter, Progress, Task, WorkerPool
from dataprep_assets.integrity.receipt import Receipt


class CohortWork(Protocol):
    """What every task over a cohort knows."""

    @property
    def month(self) -> str: ...
    @property
    def source_bytes(self) -> int: ...
    @property
    def sensitive(self) -> bool: ...


W = TypeVar("W", bound=CohortWork)


def run_cohorts(
    works: Sequence[W],
    task: Callable[[W], tuple[Receipt, bool]],
    *,
    workers: int,
    on_progress: Callable[[Meter, int], None] | None = None,
) -> Iterator[ShardResult]:
    """Yield what became of each cohort as soon as it is known; `partition` is the month.

    A failed cohort does not stop the others. A worker that dies does (WorkerDiedError): what is finished is committed.
    """
    meter = Meter(sum(work.source_bytes for work in works))
    by_month = {work.month: work for work in works}
    silent = any(work.sensitive for work in works)
    with WorkerPool(min(workers, max(1, len(works))), ONE_THREAD, silent=silent) as pool:
        for work in works:
            pool.submit(Task(work.month, task, (work,)))
        for event in pool.events():
            if isinstance(event, Progress):
                meter.add(event.done)
            elif isinstance(event, Finished):
                month = event.task.label
                if event.error is not None:
                    yield ShardResult(partition=month, error=event.error)
                else:
                    receipt, was_there = event.result
                    if was_there:
                        meter.add({"source_bytes": by_month[month].source_bytes})
                    yield ShardResult(partition=month, receipt=receipt, reused=was_there)
            if on_progress is not None:
                on_progress(meter, pool.count)
