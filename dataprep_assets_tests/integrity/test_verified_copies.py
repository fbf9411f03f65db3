"""Copies of a bucket's files on this machine, and the budget of their cache."""

import os
import pickle
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity import verified_copies
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.receipt import NAME, FileRecord, Receipt
from dataprep_assets.stores.connect import LocalAddress, StoreAddress
from dataprep_assets_tests.integrity.builds import ARTIFACT, OLD, build, open_store, run_killed
from dataprep_assets_tests.messages import raises


def publish(tmp_path: Path, count: int, size: int) -> tuple[StoreAddress, list[Artifact]]:
    place = LocalAddress(root=tmp_path / "bucket")
    store = open_store(place, tmp_path / "builder")
    artifacts = [Artifact(dataset="ds", name="shard", partition=f"s-{n}") for n in range(count)]
    for n, artifact in enumerate(artifacts):
        build(store, {"t.bin": bytes([n]) * size}, "k", artifact)
    return place, artifacts


def list_copies(store: BucketArtifacts) -> set[str]:
    return {path.parent.parent.name for path in (store.root / verified_copies.FETCHED).rglob("t.bin")}


def test_the_least_recently_used_copies_are_evicted_first_within_the_budget(tmp_path: Path) -> None:
    place, artifacts = publish(tmp_path, 4, 1000)
    store = open_store(place, tmp_path / "cache", 2500)
    for number in (0, 1):
        store.local(artifacts[number])
    os.utime(store.local(artifacts[0]) / NAME, (2e9, 2e9))
    store.local(artifacts[2])
    assert list_copies(store) == {"s-0", "s-2"}
    store.local(artifacts[3])
    assert len(list_copies(store)) == 2
    assert "s-3" in list_copies(store)


def test_a_budget_smaller_than_an_artifact_is_refused_with_the_remedy(tmp_path: Path) -> None:
    place, (artifact,) = publish(tmp_path, 1, 1000)
    store = open_store(place, tmp_path / "cache", 999)
    with raises(ConfigError, 999, "ds/shard/s-0", 1000, "DATAPREP_CACHE_BYTES"):
        store.local(artifact)
    assert list_copies(store) == set()
    assert ArtifactHandle.from_store(store, artifact).read("t.bin", 10, 20) == bytes(10)


def test_an_open_or_mapped_file_survives_its_eviction(tmp_path: Path) -> None:
    place, artifacts = publish(tmp_path, 3, 1000)
    store = open_store(place, tmp_path / "cache", 1000)
    path = store.local(artifacts[1]) / "t.bin"
    file, mapped = path.open("rb"), np.memmap(path, np.uint8, mode="r")
    store.local(artifacts[2])
    assert not path.exists()
    assert file.read() == bytes([1]) * 1000
    assert int(mapped.sum()) == 1000
    file.close()


def test_a_copy_held_by_a_handle_is_not_evicted(tmp_path: Path) -> None:
    place, artifacts = publish(tmp_path, 3, 1000)
    store = open_store(place, tmp_path / "cache", 1500)
    handle = ArtifactHandle.from_store(store, artifacts[0])
    path = handle.path("t.bin")
    with raises(ConfigError, "DATAPREP_CACHE_BYTES", "readers"):
        store.local(artifacts[1])
    assert path.read_bytes() == bytes(1000)
    del handle
    store.local(artifacts[1])
    assert not path.exists()


def test_a_copy_leased_by_another_process_is_not_evicted_until_that_ends(tmp_path: Path) -> None:
    place, artifacts = publish(tmp_path, 2, 1000)
    store = open_store(place, tmp_path / "cache", 1500)
    program = (
        "import sys, pickle\n"
        "store, artifact = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "store.local(artifact)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", program, pickle.dumps((store, artifacts[0])).hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert reader.stdout is not None
    try:
        assert reader.stdout.readline() == "ready\n"
        with raises(ConfigError, "DATAPREP_CACHE_BYTES", "readers"):
            store.local(artifacts[1])
        assert list_copies(store) == {"s-0"}
    finally:
        reader.kill()
        reader.wait()
        reader.stdout.close()
        assert reader.stdin is not None
        reader.stdin.close()
    store.local(artifacts[1])
    assert list_copies(store) == {"s-1"}


def test_copies_that_another_process_deletes_meanwhile_cause_no_error(tmp_path: Path) -> None:
    place, artifacts = publish(tmp_path, 1, 1000)
    receipt = open_store(place, tmp_path / "cache").require(artifacts[0])
    records = [replace(receipt.files[0], path=f"{n:03d}.bin", bytes=1) for n in range(50)]
    cache = verified_copies.VerifiedCopies(tmp_path / "cache", budget_bytes=1 << 20)
    over = threading.Event()

    def fetch(record: FileRecord, path: Path) -> None:
        path.write_bytes(b"x")

    def come_and_go() -> None:
        while not over.is_set():
            cache.ensure(artifacts[0], receipt, records, fetch)
            cache.forget(artifacts[0])

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(3000):
            with cache.make_room(0):
                pass
    finally:
        over.set()
        other.join()


def test_unpublished_artifacts_are_never_evicted(tmp_path: Path) -> None:
    place, artifacts = publish(tmp_path, 2, 1000)
    cache = tmp_path / "cache"
    assert run_killed(tmp_path / "bucket", cache, "old", 1)
    store = open_store(place, cache, 1000)
    for artifact in artifacts:
        store.local(artifact)
    only = store.directory(ARTIFACT)
    assert {name: (only / name).read_bytes() for name in OLD} == OLD
    assert store.find_current(ARTIFACT, "old") is not None


def test_a_kill_during_downloads_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    place, (artifact,) = publish(tmp_path, 1, 1000)
    store = open_store(place, tmp_path / "cache")
    directory = store.copies.directory(artifact, store.require(artifact).content)
    directory.mkdir(parents=True)
    (directory / "t.bin.part").write_bytes(b"half")
    assert (store.local(artifact) / "t.bin").read_bytes() == bytes(1000)


def test_a_copy_has_the_current_receipt_of_the_artifact(tmp_path: Path) -> None:
    place = LocalAddress(root=tmp_path / "bucket")
    reader = open_store(place, tmp_path / "reader")
    build(open_store(place, tmp_path / "builder"), OLD, "k1")
    reader.local(ARTIFACT)
    receipt: Receipt = build(open_store(place, tmp_path / "builder"), OLD, "k2")[0]
    assert (reader.local(ARTIFACT) / NAME).read_bytes() == b"".join(place().read(f"{ARTIFACT}/{NAME}"))
    assert receipt.key == "k2"


def test_making_a_file_read_only_does_not_open_it_to_others(tmp_path: Path) -> None:
    for before, after in ((0o600, 0o400), (0o640, 0o440), (0o644, 0o444)):
        (path := tmp_path / f"{before:o}").touch()
        path.chmod(before)
        verified_copies._make_read_only(path)
        assert path.stat().st_mode & 0o777 == after
