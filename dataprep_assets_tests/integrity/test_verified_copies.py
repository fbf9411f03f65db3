"""Copies of a bucket's files on this machine, and their budget."""

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
from dataprep_assets_tests.integrity.builds import ARTIFACT, OLD, build, killed_at, opened
from dataprep_assets_tests.messages import raises


def published(tmp_path: Path, count: int, size: int) -> tuple[StoreAddress, list[Artifact]]:
    place = LocalAddress(root=tmp_path / "bucket")
    store = opened(place, tmp_path / "builder")
    artifacts = [Artifact(dataset="ds", name="shard", partition=f"s-{n}") for n in range(count)]
    for n, artifact in enumerate(artifacts):
        build(store, {"t.bin": bytes([n]) * size}, "k", artifact)
    return place, artifacts


def copied(store: BucketArtifacts) -> set[str]:
    return {path.parent.parent.name for path in (store.root / verified_copies.FETCHED).rglob("t.bin")}


def test_the_least_recently_used_copies_go_first_and_the_budget_holds(tmp_path: Path) -> None:
    place, artifacts = published(tmp_path, 4, 1000)
    store = opened(place, tmp_path / "cache", 2500)
    for number in (0, 1):
        store.local(artifacts[number])
    os.utime(store.local(artifacts[0]) / NAME, (2e9, 2e9))
    store.local(artifacts[2])
    assert copied(store) == {"s-0", "s-2"}
    store.local(artifacts[3])
    assert len(copied(store)) == 2
    assert "s-3" in copied(store)


def test_a_budget_smaller_than_an_artifact_is_refused_with_what_to_change(tmp_path: Path) -> None:
    place, (artifact,) = published(tmp_path, 1, 1000)
    store = opened(place, tmp_path / "cache", 999)
    with raises(ConfigError, 999, "ds/shard/s-0", 1000, "DATAPREP_CACHE_BYTES"):
        store.local(artifact)
    assert copied(store) == set()
    assert ArtifactHandle.from_store(store, artifact).read("t.bin", 10, 20) == bytes(10)


def test_what_is_open_or_mapped_survives_its_eviction(tmp_path: Path) -> None:
    place, artifacts = published(tmp_path, 3, 1000)
    store = opened(place, tmp_path / "cache", 1000)
    path = store.local(artifacts[1]) / "t.bin"
    file, mapped = path.open("rb"), np.memmap(path, np.uint8, mode="r")
    store.local(artifacts[2])
    assert not path.exists()
    assert file.read() == bytes([1]) * 1000
    assert int(mapped.sum()) == 1000
    file.close()


def test_a_copy_that_a_handle_holds_is_not_evicted_while_the_handle_lives(tmp_path: Path) -> None:
    place, artifacts = published(tmp_path, 3, 1000)
    store = opened(place, tmp_path / "cache", 1500)
    handle = ArtifactHandle.from_store(store, artifacts[0])
    path = handle.path("t.bin")
    with raises(ConfigError, "DATAPREP_CACHE_BYTES", "readers"):
        store.local(artifacts[1])
    assert path.read_bytes() == bytes(1000)
    del handle
    store.local(artifacts[1])
    assert not path.exists()


def test_a_copy_that_another_process_leases_is_not_evicted_until_it_ends(tmp_path: Path) -> None:
    place, artifacts = published(tmp_path, 2, 1000)
    store = opened(place, tmp_path / "cache", 1500)
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
        assert copied(store) == {"s-0"}
    finally:
        reader.kill()
        reader.wait()
        reader.stdout.close()
        assert reader.stdin is not None
        reader.stdin.close()
    store.local(artifacts[1])
    assert copied(store) == {"s-1"}


def test_copies_that_another_process_forgets_are_counted_or_not_and_no_error(tmp_path: Path) -> None:
    place, artifacts = published(tmp_path, 1, 1000)
    receipt = opened(place, tmp_path / "cache").require(artifacts[0])
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


def test_what_is_not_published_is_never_evicted(tmp_path: Path) -> None:
    place, artifacts = published(tmp_path, 2, 1000)
    cache = tmp_path / "cache"
    assert killed_at(tmp_path / "bucket", cache, "old", 1)
    store = opened(place, cache, 1000)
    for artifact in artifacts:
        store.local(artifact)
    only = store.directory(ARTIFACT)
    assert {name: (only / name).read_bytes() for name in OLD} == OLD
    assert store.find_current(ARTIFACT, "old") is not None


def test_a_kill_while_copies_are_fetched_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    place, (artifact,) = published(tmp_path, 1, 1000)
    store = opened(place, tmp_path / "cache")
    directory = store.copies.directory(artifact, store.require(artifact).content)
    directory.mkdir(parents=True)
    (directory / "t.bin.part").write_bytes(b"half")
    assert (store.local(artifact) / "t.bin").read_bytes() == bytes(1000)


def test_a_copy_has_the_receipt_of_the_artifact_as_it_is_now(tmp_path: Path) -> None:
    place = LocalAddress(root=tmp_path / "bucket")
    reader = opened(place, tmp_path / "reader")
    build(opened(place, tmp_path / "builder"), OLD, "k1")
    reader.local(ARTIFACT)
    receipt: Receipt = build(opened(place, tmp_path / "builder"), OLD, "k2")[0]
    assert (reader.local(ARTIFACT) / NAME).read_bytes() == b"".join(place().read(f"{ARTIFACT}/{NAME}"))
    assert receipt.key == "k2"


def test_making_a_file_read_only_opens_it_to_nobody(tmp_path: Path) -> None:
    for before, after in ((0o600, 0o400), (0o640, 0o440), (0o644, 0o444)):
        (path := tmp_path / f"{before:o}").touch()
        path.chmod(before)
        verified_copies._make_read_only(path)
        assert path.stat().st_mode & 0o777 == after
