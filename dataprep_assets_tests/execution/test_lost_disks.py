"""Real clusters whose nodes share no disk: one that is lost with its own costs the shard that it held, and no more."""

import importlib.util
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.stores.connect import S3Place
from dataprep_assets_tests.deploy.tiny_corpus import attributes, write_corpus
from dataprep_assets_tests.deploy.weather import Job, differences
from dataprep_assets_tests.execution.ray_runs import ray_cluster
from dataprep_assets_tests.fakes.buckets import new_bucket, new_client
from dataprep_assets_tests.fakes.own_disk import seen_by
from dataprep_assets_tests.fakes.slurm_cluster import SlurmCluster, slurm_cluster
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.graph.building import build_all
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, debris
from dataprep_assets_tests.servers import wait_until

pytestmark = pytest.mark.slow
SHARDS, FILES_A_SHARD = 4, 2


class Bucket:
    """A bucket of a test's S3 server, and what lies in it."""

    def __init__(self, url: str) -> None:
        self._client: Any = new_client(url)
        self.name = new_bucket(url)

    def put(self, folder: Path, prefix: str) -> None:
        """Upload the files of a folder."""
        for path in folder.rglob("*"):
            if path.is_file():
                key = f"{prefix}/{path.relative_to(folder).as_posix()}"
                self._client.put_object(Bucket=self.name, Key=key, Body=path.read_bytes())

    def files(self, prefix: str) -> dict[str, bytes]:
        """Key below the prefix → bytes."""
        return {key: self._client.get_object(Bucket=self.name, Key=f"{prefix}/{key}")["Body"].read()
                for key in self.versions(prefix)}  # fmt: skip

    def versions(self, prefix: str) -> dict[str, Any]:
        """Key below the prefix → when it was written."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=f"{prefix}/")
        found = [entry for page in pages for entry in page.get("Contents", [])]
        return {entry["Key"].removeprefix(f"{prefix}/"): entry["LastModified"] for entry in found}

    def finished(self, prefix: str) -> dict[str, Any]:
        """The receipts of token bins, and when they were written."""
        found = self.versions(prefix).items()
        return {key: when for key, when in found if "/token_bins/" in key and key.endswith(f"/{NAME}")}

    def uploads(self) -> list[Any]:
        """Those that were begun and not ended."""
        return list(self._client.list_multipart_uploads(Bucket=self.name).get("Uploads", []))


def declared(source: dict[str, Any], run_on: str) -> CorpusDeclaration:
    """The corpus, by the engine that is slow enough to be caught at work; its bytes are those of the fast one."""
    said = attributes(Path("nowhere"), SHARDS, views=[], source=source, run_on=run_on)
    said["tokenizer"] |= {"engine": "tokenizers"}
    return CorpusDeclaration.model_validate(said)


def in_hand(pid: int, disk: Path) -> list[Path]:
    """The parts of shards that lie on the disk of a process."""
    return list(seen_by(pid, disk).glob("**/token_bins/.staging/*/*.tokens"))


def in_state(cluster: SlurmCluster, state: str) -> set[str]:
    """The tasks in this state."""
    return {line.split()[0] for line in cluster.jobs() if line.endswith(f" {state}")}


def test_a_node_of_slurm_that_is_lost_with_its_disk_costs_one_shard(
    moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(tmp_path / "corpus", SHARDS * FILES_A_SHARD, documents=6_000)
    (disk := tmp_path / "disk").mkdir()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    bucket = Bucket(moto)
    bucket.put(corpus, "source")
    remote = {"kind": "object_store", "url": f"s3://{bucket.name}/source", "endpoint_url": moto, "region": "us-east-1"}
    source = remote | {"cache_dir": str(disk / "mirror")}
    place = S3Place(bucket=bucket.name, prefix="made", endpoint_url=moto, region="us-east-1",
                    access_key_id=KEY_ID, secret_access_key=SECRET)  # fmt: skip
    with slurm_cluster(nodes=2, cpus=1, private=disk) as cluster, ThreadPoolExecutor(1) as thread:
        monkeypatch.setenv("DATAPREP_SLURM_FOLDER", str(cluster.folder / "meet"))
        store = BucketArtifacts(disk / "artifacts", place, place.url)
        run = thread.submit(build_all, corpus_specs(declared(source, "slurm")), store)

        lost = cluster.nodes[1]
        slurmd = cluster.processes[lost].pid
        cluster.wait(
            lambda: run.done() or bool(bucket.finished("made") and in_hand(slurmd, disk)), 120, "a node at work"
        )
        while not run.done() and not in_hand(slurmd, disk):
            time.sleep(0.01)
        (job,) = set(cluster.run("squeue", "--noheader", "--format=%F").split())
        held = in_state(cluster, "RUNNING")
        cluster.lose_node(lost)
        before = bucket.finished("made")
        assert 0 < len(before) < SHARDS
        # what Slurm does by itself after SlurmdTimeout, and a new node with an empty disk
        cluster.run("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=test")
        cluster.wait(lambda: bool(held & in_state(cluster, "PENDING")), 30, "the task that Slurm takes back")
        (again,) = held & in_state(cluster, "PENDING")
        cluster.start_node(lost)
        cluster.run("scontrol", "update", f"NodeName={lost}", "State=RESUME")
        # Slurm would let it wait for half a minute, in which it ends what the node was told to do before
        cluster.wait(cluster.has_told_nodes, 30, "what the controller sends to the node")
        cluster.run("scontrol", "update", f"JobId={again}", "StartTime=now")
        run.result(120)
        after = bucket.finished("made")
        restarts = [
            word for word in cluster.run("scontrol", "show", "job", job).split() if word.startswith("Restarts=")
        ]
        left = [debris(seen_by(cluster.processes[node].pid, disk)) for node in cluster.nodes]
        cluster.wait(lambda: cluster.jobs() == [] and cluster.tasks() == [], 30, "the end of all tasks")
    assert sorted(restarts) == ["Restarts=0"] * (SHARDS - 1) + ["Restarts=1"], (
        "one shard was begun again, with its files"
    )
    assert {key: after[key] for key in before} == before
    assert left == [[], []]
    assert debris(disk) == []
    quiet = LocalArtifacts(tmp_path / "quiet")
    build_all(corpus_specs(declared(remote | {"cache_dir": str(tmp_path / "mirror")}, "processes")), quiet)
    found = bucket.files("made")
    assert {k: v for k, v in found.items() if "/token_bins/" in k and not k.endswith(NAME)} == {
        k: v for k, v in data_files(quiet.root).items() if "/token_bins/" in k
    }
    assert sorted(found) == sorted(
        p.relative_to(quiet.root).as_posix()
        for p in quiet.root.rglob("*")
        if p.is_file() and "/." not in f"/{p.relative_to(quiet.root)}"
    )
    assert bucket.uploads() == []


def test_a_node_of_ray_that_is_lost_with_its_disk_costs_one_shard(moto: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("the extra `ray` is not installed")
    bucket = Bucket(moto)
    job = Job(tmp_path, SHARDS, "ray", moto, bucket.name)
    write_corpus(tmp_path / "corpus", SHARDS * FILES_A_SHARD, documents=6_000)
    (disk := tmp_path / "machine").mkdir()
    with ray_cluster(tmp_path, disk) as cluster:
        with open(tmp_path / "run.log", "wb") as log:
            run = subprocess.Popen(job.words, stdout=log, stderr=log, env=os.environ | cluster.variables)
        try:
            lost = cluster.second.process.pid
            wait_until(lambda: bool(bucket.finished("weather") and in_hand(lost, disk)), 240, every=0.02)
            cluster.second.lose()
            before = bucket.finished("weather")
            assert 0 < len(before) < SHARDS
            cluster.second = cluster.new_node()
            assert run.wait(240) == 0, (tmp_path / "run.log").read_text()[-2000:]
            left = [debris(seen_by(node.process.pid, disk)) for node in (cluster.head, cluster.second)]
        finally:
            run.kill()
            run.wait()
    after = bucket.finished("weather")
    assert len(after) == SHARDS
    assert {key: after[key] for key in before} == before
    assert [*left, debris(disk)] == [[], [], []]
    assert differences(job) == []
    assert bucket.uploads() == []
