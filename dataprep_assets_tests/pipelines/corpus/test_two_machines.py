"""Two machines that make the same shard over one bucket leave it once, whole, and neither fails."""

from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.execution.pool import open_pool
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskId
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stream.shard_job import ensure_shard
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.pipelines.corpus.shards import build, shard_work, source, stream_plan, write_lines


@pytest.mark.slow
def test_the_same_shard_at_the_same_time_is_one_artifact(servers: Places, tmp_path: Path) -> None:
    pytest.importorskip("google.cloud.storage", reason="the extra `gcs` is not installed")
    files = [source(write_lines(tmp_path / f"{n}.jsonl.zst", ["a document"] * 300), n) for n in range(2)]
    alone = build(shard_work(tmp_path / "alone", stream_plan(), files))
    place = servers.new("gcs")
    machines = [BucketArtifacts(tmp_path / name, place, place.url) for name in ("first", "second")]
    works = [replace(shard_work(m.root, stream_plan(), files), store=m) for m in machines]
    with open_pool(2, {}, {}) as pool:
        for work in works:
            pool.submit(Task(TaskId(work.store.root.name), ensure_shard, (work, "full", None)))
        answers = [event for event in pool.events() if isinstance(event, FinishedTask)]
    assert [answer.error for answer in answers] == [None, None]
    third = BucketArtifacts(tmp_path / "third", place, place.url)
    receipt = third.find_current(works[0].artifact, works[0].key)
    assert receipt is not None
    assert receipt.content == alone.receipt.content
    copies = third.local(works[0].artifact)
    assert {r.path: sha256_file(copies / r.path) for r in receipt.files} == {
        r.path: r.sha256 for r in alone.receipt.files
    }
