"""Runs one task a shard on worker processes: each is verified, built or failed on its own."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from dataprep_assets.execution.pool import Pool
from dataprep_assets.execution.processes import Finished, Meter, Progress, Task, WorkerPool
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.token_bins import ONE_THREAD, ShardResult


class Work(Protocol):
    """What every task over a shard knows: its artifact, and how many bytes it reads for it."""

    @property
    def artifact(self) -> Artifact: ...
    @property
    def source_bytes(self) -> int: ...


W = TypeVar("W", bound=Work)


def run_shards(
    works: Sequence[W],
    task: Callable[[W], tuple[Receipt, bool]],
    *,
    workers: int,
    on_progress: Callable[[Meter, int], None] | None = None,
    silent: bool = False,
) -> Iterator[ShardResult]:
    """Yield what became of each shard as soon as it is known.

    `task` is a module-level function (works are pickled into the workers) that gives the shard's receipt, and whether
    the one that was there is current. `silent` workers print nothing: they hold patients' data. A failed shard does not
    stop the others. A worker that dies does (WorkerDiedError): what is finished is committed.
    """
    with WorkerPool(min(workers, max(1, len(works))), ONE_THREAD, silent=silent) as pool:
        yield from shard_results(
            pool, works, lambda work: Task(work.artifact.partition or "", task, (work,)), on_progress=on_progress
        )


def shard_results(
    pool: Pool,
    works: Sequence[W],
    task_of: Callable[[W], Task],
    *,
    on_progress: Callable[[Meter, int], None] | None = None,
) -> Iterator[ShardResult]:
    """`run_shards` on an open pool of any engine. `task_of` gives the one task of a shard, with a label of its own."""
    meter = Meter(sum(work.source_bytes for work in works))
    by_label = {}
    for work in works:
        task = task_of(work)
        by_label[task.label] = work
        pool.submit(task)
    for event in pool.events():
        if isinstance(event, Progress):
            meter.add(event.done)
        elif isinstance(event, Finished):
            work = by_label[event.task.label]
            if event.error is not None:
                yield ShardResult(partition=work.artifact.partition or "", error=event.error)
            else:
                receipt, reused = event.result
                if reused:
                    meter.add({"source_bytes": work.source_bytes})
                yield ShardResult(partition=work.artifact.partition or "", receipt=receipt, reused=reused)
        if on_progress is not None:
            on_progress(meter, pool.count)
