"""Two runs that want the same shards at the same time make each of them once."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

from dataprep_assets.builds.token_bins import ShardResult, ShardWork, build_token_bins
from dataprep_assets_tests.builds.pipeline import debris
from dataprep_assets_tests.builds.shards import shard_work, source, stream_plan, write_lines

SHARDS = 8


def works_below(folder: Path) -> list[ShardWork]:
    found = []
    for number in range(SHARDS):
        path = write_lines(folder / f"{number}.jsonl.zst", [f"document {i} of {number}" for i in range(200)])
        work = shard_work(folder / "out", stream_plan(), [source(path)])
        found.append(replace(work, artifact=replace(work.artifact, partition=f"train-{number:05d}")))
    return found


def test_two_runs_at_once_make_every_shard_once(tmp_path: Path) -> None:
    works = works_below(tmp_path)
    start = Barrier(2)

    def run(_: int) -> list[ShardResult]:
        start.wait()
        return list(build_token_bins(works, workers=1))

    with ThreadPoolExecutor(2) as threads:
        results = [result for found in threads.map(run, range(2)) for result in found]
    assert [result.error for result in results if result.error is not None] == []
    made = Counter(result.partition for result in results if not result.reused)
    assert made == {work.partition: 1 for work in works}
    assert Counter(result.partition for result in results) == {work.partition: 2 for work in works}
    assert debris(tmp_path / "out") == []
