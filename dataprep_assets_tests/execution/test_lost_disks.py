"""A real Ray cluster whose nodes share no disk: losing a node with its disk costs only the shard that it processed."""

import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets_tests.deploy.tiny_corpus import write_corpus
from dataprep_assets_tests.execution.ray_runs import run_ray_cluster
from dataprep_assets_tests.fakes.buckets import new_bucket, new_client
from dataprep_assets_tests.fakes.own_disk import find_own_folder
from dataprep_assets_tests.pipelines.corpus.pipeline import debris
from dataprep_assets_tests.servers import wait_until
from dataprep_assets_tests.tools.weather import Job, differences

pytestmark = pytest.mark.slow
SHARDS, FILES_A_SHARD = 4, 2


class Bucket:
    """A bucket of a test's S3 server and its objects."""

    def __init__(self, url: str) -> None:
        self._client: Any = new_client(url)
        self.name = new_bucket(url)

    def versions(self, prefix: str) -> dict[str, Any]:
        """Return the keys below the prefix → when each was written."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=f"{prefix}/")
        found = [entry for page in pages for entry in page.get("Contents", [])]
        return {entry["Key"].removeprefix(f"{prefix}/"): entry["LastModified"] for entry in found}

    def finished(self, prefix: str) -> dict[str, Any]:
        """Return the receipts of token bins, and when they were written."""
        found = self.versions(prefix).items()
        return {key: when for key, when in found if "/token_bins/" in key and key.endswith(f"/{NAME}")}

    def uploads(self) -> list[Any]:
        """Return the uploads that were started but not finished."""
        return list(self._client.list_multipart_uploads(Bucket=self.name).get("Uploads", []))


def find_parts(pid: int, disk: Path) -> list[Path]:
    """Return the parts of shards that are on the disk of a process."""
    return list(find_own_folder(pid, disk).glob("**/token_bins/.staging/*/*.tokens"))


def test_losing_a_ray_node_with_its_disk_costs_one_shard(moto: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the extra `ray` is not installed")
    bucket = Bucket(moto)
    job = Job(tmp_path, SHARDS, "ray", moto, bucket.name)
    write_corpus(tmp_path / "corpus", SHARDS * FILES_A_SHARD, documents=3_000)
    (disk := tmp_path / "machine").mkdir()
    with run_ray_cluster(tmp_path, disk) as cluster:
        with open(tmp_path / "run.log", "wb") as log:
            run = subprocess.Popen(job.words, stdout=log, stderr=log, env=os.environ | cluster.variables)
        try:
            lost = cluster.second.process.pid
            wait_until(lambda: bool(find_parts(lost, disk) and bucket.finished("weather")), 240, every=0.1)
            cluster.second.lose()
            before = bucket.finished("weather")
            assert 0 < len(before) < SHARDS
            cluster.second = cluster.new_node()
            assert run.wait(240) == 0, (tmp_path / "run.log").read_text()[-2000:]
            left = [debris(find_own_folder(node.process.pid, disk)) for node in (cluster.head, cluster.second)]
        finally:
            run.kill()
            run.wait()
    after = bucket.finished("weather")
    assert len(after) == SHARDS
    assert {key: after[key] for key in before} == before
    assert [*left, debris(disk)] == [[], [], []]
    assert differences(job) == []
    assert bucket.uploads() == []
