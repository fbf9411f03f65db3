"""Finished shards need no task of a cluster, so a missing engine does not matter."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.pool import TaskEngine
from dataprep_assets.integrity import artifacts
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.stream.shard_job import build_token_bins
from dataprep_assets.stream.token_shard import TOKENS, TokenShard
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.pipeline import debris
from dataprep_assets_tests.tools.bench.engines import shards

ABSENT = TaskEngine("ray")


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)


def built(works: Iterable[TokenShard]) -> list[TokenShard]:
    works = list(works)
    assert [outcome.error for outcome in build_token_bins(works, workers=None)] == [None] * len(works)
    return works


def again(works: list[TokenShard]) -> list[Outcome]:
    return list(build_token_bins(works, workers=2, engine=ABSENT))


def test_finished_shards_in_a_folder_are_read_by_the_run_itself(tmp_path: Path) -> None:
    works = built(shards(tmp_path, 3))
    left = works[0].directory.parent / ".staging" / f"{works[0].partition}-{'0' * 16}"
    left.mkdir()
    assert [(o.partition, o.reused) for o in again(works)] == [(work.partition, True) for work in works]
    assert debris(tmp_path / "out") == [], "what a killed run left is swept"


def test_a_damaged_shard_is_a_task_and_finished_ones_are_reported_first(tmp_path: Path) -> None:
    works = built(shards(tmp_path, 3))
    path = works[1].directory / TOKENS
    path.chmod(0o600)
    path.write_bytes(bytes(path.stat().st_size))
    outcomes = build_token_bins(works, workers=2, engine=ABSENT)
    assert [next(outcomes).partition, next(outcomes).partition] == [works[0].partition, works[2].partition]
    with raises(ConfigError, "`ray`"):
        next(outcomes)


def test_large_finished_shards_in_a_folder_are_read_by_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = built(shards(tmp_path, 1))
    monkeypatch.setattr(artifacts, "_FEW_BYTES", 10)
    with raises(ConfigError, "`ray`"):
        again(works)
    assert [o.reused for o in build_token_bins(works, workers=2, engine=ABSENT, verification="size")] == [True]


@pytest.mark.parametrize("kind", ["moto", "gcs"])
def test_finished_shards_in_a_bucket_are_recognized_by_their_digests(
    kind: str, servers: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "_FEW_BYTES", 10)
    place = servers.new(kind)
    store = BucketArtifacts(tmp_path / "machine", place, place.url)
    works = built(replace(work, store=store) for work in shards(tmp_path, 3))
    elsewhere = BucketArtifacts(tmp_path / "another machine", place, place.url)
    outcomes = again([replace(work, store=elsewhere) for work in works])
    assert [(o.partition, o.reused) for o in outcomes] == [(work.partition, True) for work in works]
    assert not list(elsewhere.root.rglob(TOKENS)), "nothing was fetched"
