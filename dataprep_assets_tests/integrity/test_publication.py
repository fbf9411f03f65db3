"""Publications in a bucket with kills before any write and with competing writers; equal for folder, S3 and GCS."""

import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.stores.connect import LocalAddress, StoreAddress
from dataprep_assets.stores.store import ObjectInfo, Store
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.integrity.builds import (
    ARTIFACT,
    CONDITIONAL,
    NEW,
    OLD,
    build,
    make_objects,
    open_store,
    read_artifact,
    read_contents,
    run_killed,
)
from dataprep_assets_tests.messages import raises


@pytest.mark.slow
def test_a_first_publication_killed_anywhere_is_invisible_and_the_next_run_completes_it(tmp_path: Path) -> None:
    for at in range(1, 30):
        bucket, cache = tmp_path / f"bucket-{at}", tmp_path / f"cache-{at}"
        if not run_killed(bucket, cache, "old", at):
            assert at > 4, "too few points"
            return
        for resumed, its_cache in list_machines_that_resume(bucket, cache):
            place = LocalAddress(root=resumed)
            seen = open_store(place, tmp_path / f"reader of {resumed.name}")
            assert seen.receipt(ARTIFACT) is None or read_artifact(seen) == OLD
            again = open_store(place, its_cache)
            build(again, OLD, "old")
            assert read_contents(place) == make_objects(OLD)
            assert read_artifact(again) == OLD
    raise AssertionError("never finished")


@pytest.mark.slow
def test_a_replacement_killed_anywhere_leaves_the_old_or_new_artifact_and_the_next_run_completes_it(
    tmp_path: Path,
) -> None:
    place = LocalAddress(root=tmp_path / "prepared")
    build(open_store(place, tmp_path / "prepared-cache"), OLD, "old")
    seen_versions = set()
    for at in range(1, 40):
        bucket, cache = tmp_path / f"bucket-{at}", tmp_path / f"cache-{at}"
        shutil.copytree(tmp_path / "prepared", bucket)
        if not run_killed(bucket, cache, "new", at):
            assert at > 6, "too few points"
            assert seen_versions == {"old", "new"}
            return
        for resumed, its_cache in list_machines_that_resume(bucket, cache):
            reader = open_store(LocalAddress(root=resumed), tmp_path / f"reader of {resumed.name}")
            version = reader.require(ARTIFACT).key
            seen_versions.add(version)
            assert read_artifact(reader) == (OLD if version == "old" else NEW)
            assert reader.find_current(ARTIFACT, version) is not None
            again = open_store(LocalAddress(root=resumed), its_cache)
            build(again, NEW, "new")
            assert read_contents(LocalAddress(root=resumed)) == make_objects(NEW)
    raise AssertionError("never finished")


def list_machines_that_resume(bucket: Path, cache: Path) -> list[tuple[Path, Path]]:
    """Return the bucket of a killed run with its machine's cache, and a copy of the bucket with an empty cache."""
    copied = bucket.with_name(f"{bucket.name} elsewhere")
    if bucket.exists():  # a kill before the first write leaves no bucket
        shutil.copytree(bucket, copied)
    return [(bucket, cache), (copied, cache.with_name(f"{cache.name} elsewhere"))]


def test_an_unpublished_build_is_published_by_the_next_check_without_a_rebuild(tmp_path: Path) -> None:
    bucket, cache = tmp_path / "bucket", tmp_path / "cache"
    assert run_killed(bucket, cache, "old", 1)
    store = open_store(LocalAddress(root=bucket), cache)
    assert store.receipt(ARTIFACT) is None
    assert store.find_current(ARTIFACT, "old") is not None
    assert read_contents(LocalAddress(root=bucket)) == make_objects(OLD)


def test_an_unpublished_build_is_not_rebuilt(tmp_path: Path) -> None:
    bucket, cache = tmp_path / "bucket", tmp_path / "cache"
    assert run_killed(bucket, cache, "old", 1)
    _, reused = build(open_store(LocalAddress(root=bucket), cache), {"other": b"what is built now"}, "old")
    assert reused
    assert read_contents(LocalAddress(root=bucket)) == make_objects(OLD)


@pytest.mark.parametrize("kind", ["folder", "moto", "swift", "gcs"])
def test_two_runs_that_publish_equal_bytes_both_succeed(kind: str, servers: Places, tmp_path: Path) -> None:
    place = servers.new(kind)
    barrier, results = threading.Barrier(2), []

    def run(name: str) -> None:
        barrier.wait()
        results.append(build(open_store(place, tmp_path / name), OLD, "k1")[0].content)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert len(set(results)) == 1
    assert read_contents(place) == make_objects(OLD)


@dataclass(frozen=True)
class InterruptingPlace:
    """A location in which another machine publishes just before the receipt of this machine."""

    place: StoreAddress
    other: BucketArtifacts
    files: tuple[tuple[str, bytes], ...]

    def __call__(self) -> Store:
        store = self.place()
        put, rest = store.put, [None]

        def interrupted(key: str, data: bytes, **named: Any) -> ObjectInfo:
            if rest and key.endswith(NAME):
                rest.clear()
                build(self.other, dict(self.files), "rival")
            return put(key, data, **named)

        store.put = interrupted  # type: ignore[method-assign]
        return store


@pytest.mark.parametrize("kind", CONDITIONAL)
@pytest.mark.parametrize("replacing", [False, True])
def test_the_second_of_two_runs_that_publish_different_bytes_is_refused(
    kind: str, replacing: bool, servers: Places, tmp_path: Path
) -> None:
    place = servers.new(kind)
    other = open_store(place, tmp_path / "other")
    if replacing:
        build(other, OLD, "k0")
    rival = {"a.bin": b"R" * 1000}
    interrupted = InterruptingPlace(place, other, tuple(rival.items()))
    with raises(IntegrityError, "same time"):
        build(BucketArtifacts(tmp_path / "mine", interrupted, place.url), NEW, "k1")
    receipt = other.require(ARTIFACT)
    assert receipt.key == "rival"
    assert other.damage(ARTIFACT, receipt) == []
    assert read_artifact(open_store(place, tmp_path / "reader")) == rival
    assert {key: data for key, data in read_contents(place).items() if ".staging" not in key} == make_objects(rival)
