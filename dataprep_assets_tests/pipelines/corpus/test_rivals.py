"""Two runs that want the same shards at the same time make each of them once, and never write into one place."""

import fcntl
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from dataprep_assets.execution.jobs import Outcome, run_jobs
from dataprep_assets.execution.processes import ONE_THREAD, WorkerPool
from dataprep_assets.execution.progress import Progress
from dataprep_assets.execution.run_task import Task
from dataprep_assets.stream.shard_job import (
    SMALL_SHARD_BYTES,
    ShardJob,
    WholeShardJob,
    build_job_by_files,
    build_token_bins,
    shard_job,
)
from dataprep_assets.stream.token_shard import TokenShard
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, debris, receipts
from dataprep_assets_tests.pipelines.corpus.shards import shard_work, source, stream_plan, write_lines

SHARDS = 8


def shard(folder: Path, number: int, files: Sequence[Sequence[str | bytes]]) -> TokenShard:
    """A shard of files of lines."""
    folder.mkdir(exist_ok=True)
    paths = [write_lines(folder / f"{number}-{i}.jsonl.zst", lines) for i, lines in enumerate(files)]
    work = shard_work(folder / "out", stream_plan(), [source(path, i) for i, path in enumerate(paths)])
    return replace(work, artifact=replace(work.artifact, partition=f"train-{number:05d}"))


def documents(number: int) -> list[str]:
    """Documents of a file of more than half of what is a small shard's, compressed as it is."""
    chance = random.Random(number)
    return [f"document {chance.randrange(10**9)}" for _ in range(3_000)]


def works_below(folder: Path) -> list[TokenShard]:
    """Shards by turns of one file, which are one task, and of two."""
    return [shard(folder, n, [documents(n)] * (1 + n % 2)) for n in range(SHARDS)]


def test_two_runs_at_once_make_every_shard_once(tmp_path: Path) -> None:
    works = works_below(tmp_path)
    with ExitStack() as locks:
        assert [type(shard_job(work, "full", locks)) for work in works] == [WholeShardJob, ShardJob] * (SHARDS // 2)
    start = Barrier(2)

    def run(_: int) -> list[Outcome]:
        start.wait()
        return list(build_token_bins(works, workers=1))

    with ThreadPoolExecutor(2) as threads:
        results = [result for found in threads.map(run, range(2)) for result in found]
    assert [result.error for result in results if result.error is not None] == []
    made = Counter(result.partition for result in results if not result.reused)
    assert made == {work.partition: 1 for work in works}
    assert Counter(result.partition for result in results) == {work.partition: 2 for work in works}
    assert debris(tmp_path / "out") == []


def test_a_shard_of_few_bytes_is_one_task_with_the_bytes_and_receipt_of_many(tmp_path: Path) -> None:
    files = [[f"document {i} of {n}" for i in range(9)] for n in range(4)]
    whole, spread = shard(tmp_path / "whole", 0, files), shard(tmp_path / "spread", 0, files)
    assert len(whole.files) == 4
    ends: dict[str, list[str]] = {}
    for work, kind in ((whole, shard_job), (spread, build_job_by_files)):
        with ExitStack() as locks, Watched(2) as pool:
            (outcome,) = run_jobs(pool, [kind(work, "full", locks)], Progress())
            assert outcome.receipt is not None
            ends[kind.__name__] = sorted(pool.submitted)
    assert ends["shard_job"] == ["train-00000"]
    steps = ["encode 0", "encode 1", "encode 2", "encode 3", "seal", "verify"]
    assert ends["build_job_by_files"] == [f"train-00000 ({step})" for step in steps]
    assert data_files(tmp_path / "whole" / "out") == data_files(tmp_path / "spread" / "out")
    assert receipts(tmp_path / "whole" / "out") == receipts(tmp_path / "spread" / "out")


class Watched(WorkerPool):
    """A pool that keeps the names of its tasks."""

    def __init__(self, count: int) -> None:
        super().__init__(count, ONE_THREAD)
        self.submitted: list[str] = []

    def submit(self, task: Task, *, is_first: bool = False) -> None:
        self.submitted.append(str(task.id))
        super().submit(task, is_first=is_first)


def is_locked(work: TokenShard) -> bool:
    """Whether a run holds the lock of a shard."""
    (path,) = work.directory.parent.rglob(f"*{work.partition}*.lock")
    with open(path, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_shard_is_free_for_others_when_none_of_its_files_is_written_any_more(
    tmp_path: Path, workers: int
) -> None:
    files = [[b"{"], *map(documents, range(3))]
    bad, good = shard(tmp_path, 0, files), shard(tmp_path, 1, [documents(3), documents(4)])
    assert bad.source_bytes > SMALL_SHARD_BYTES, "its files are tasks of their own"
    held: dict[str, bool] = {}
    for result in build_token_bins([bad, good], workers=workers):
        assert (result.error is not None) == (result.partition == bad.partition)
        held[result.partition] = is_locked(bad)
    assert held[bad.partition], "not before it is told: what it had begun may still be written"
    assert workers == 2 or not held[good.partition], "a worker alone was at no other file"
    assert not is_locked(bad)
