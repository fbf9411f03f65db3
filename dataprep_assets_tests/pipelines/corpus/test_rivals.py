"""Two runs that want the same shards at the same time make each of them once, and never write into one place."""

import fcntl
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.pipelines.corpus.token_bins import build_token_bins
from dataprep_assets.pipelines.corpus.token_shard import TokenShard
from dataprep_assets_tests.pipelines.corpus.pipeline import debris
from dataprep_assets_tests.pipelines.corpus.shards import shard_work, source, stream_plan, write_lines

SHARDS = 8


def shard(folder: Path, number: int, files: Sequence[Sequence[str | bytes]]) -> TokenShard:
    """A shard of files of lines."""
    paths = [write_lines(folder / f"{number}-{i}.jsonl.zst", lines) for i, lines in enumerate(files)]
    work = shard_work(folder / "out", stream_plan(), [source(path, i) for i, path in enumerate(paths)])
    return replace(work, artifact=replace(work.artifact, partition=f"train-{number:05d}"))


def works_below(folder: Path) -> list[TokenShard]:
    return [shard(folder, n, [[f"document {i} of {n}" for i in range(200)]]) for n in range(SHARDS)]


def test_two_runs_at_once_make_every_shard_once(tmp_path: Path) -> None:
    works = works_below(tmp_path)
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
    files = [[b"{"], *[[f"document {i} of {n}" for i in range(2000)] for n in range(3)]]
    bad, good = shard(tmp_path, 0, files), shard(tmp_path, 1, [["a document"]])
    held: dict[str, bool] = {}
    for result in build_token_bins([bad, good], workers=workers):
        assert (result.error is not None) == (result.partition == bad.partition)
        held[result.partition] = is_locked(bad)
    assert held[bad.partition], "not before it is told: what it had begun may still be written"
    assert workers == 2 or not held[good.partition], "a worker alone was at no other file"
    assert not is_locked(bad)
