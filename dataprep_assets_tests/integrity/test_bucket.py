"""Artifacts in a bucket: publication, replacement, kills, rivals, copies and their budget; folder, S3 and GCS alike."""

import dataclasses
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity import copies
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, Part
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.handle import ArtifactHandle
from dataprep_assets.integrity.receipt import NAME, Receipt
from dataprep_assets.stores.connect import GcsPlace, LocalPlace, Place
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import ObjectInfo, Store
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.fakes.places import Places, places

ARTIFACT = Artifact(dataset="ds", name="thing", partition="p-0")
OLD = {"a.bin": b"a" * 1000, "sub/b.bin": b"b" * 2000, "gone.bin": b"g" * 10}
NEW = {"a.bin": b"A" * 1000, "sub/b.bin": b"b" * 2000, "more.bin": b"m" * 30}
CONDITIONAL = ("folder", "moto", "gcs")
"""Swift has no conditional replacement (If-Match), so it is tried with first publications only."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with places(tmp_path_factory.mktemp("servers")) as found:
        yield found


def opened(place: Place, root: Path, budget: int | None = None) -> BucketArtifacts:
    return BucketArtifacts(root, place, place.url, budget)


def build(store: ArtifactStore, files: dict[str, bytes], key: str, artifact: Artifact = ARTIFACT) -> tuple[Any, bool]:
    def write(staged: Path) -> Written:
        for name, data in files.items():
            (staged / name).parent.mkdir(parents=True, exist_ok=True)
            (staged / name).write_bytes(data)
        return Written(inputs={}, facts={"dtype": "uint16"})

    return ensure(artifact, store, key, write)


def contents(place: Place, below: str = "") -> dict[str, bytes]:
    """Key → bytes of everything in the place but receipts."""
    store = place()
    return {
        info.key: b"".join(store.read(info.key)) for info in store.list(below) if info.key.rpartition("/")[2] != NAME
    }


def as_objects(files: dict[str, bytes], artifact: Artifact = ARTIFACT) -> dict[str, bytes]:
    return {f"{artifact}/{name}": data for name, data in files.items()}


def read_by(store: BucketArtifacts, artifact: Artifact = ARTIFACT) -> dict[str, bytes]:
    """What a reader gets who follows the receipt."""
    handle = ArtifactHandle.of(store, artifact)
    return {record.path: handle.read(record.path) for record in handle.files}


@pytest.mark.parametrize("kind", ["folder", "moto", "swift", "gcs"])
def test_what_one_machine_publishes_another_reads_and_does_not_build_again(
    kind: str, servers: Places, tmp_path: Path
) -> None:
    place = servers.new(kind)
    first = opened(place, tmp_path / "first")
    receipt, reused = build(first, OLD, "k1")
    assert not reused
    assert contents(place) == as_objects(OLD)
    second = pickle.loads(pickle.dumps(opened(place, tmp_path / "second")))
    assert build(second, {"never": b""}, "k1") == (receipt, True)
    directory = second.local(ARTIFACT)
    assert {n: (directory / n).read_bytes() for n in OLD} == OLD
    assert second.location(ARTIFACT) == f"{place.url}/ds/thing/p-0"
    assert second.receipt(Artifact(dataset="ds", name="nothing")) is None


@pytest.mark.parametrize("kind", CONDITIONAL)
def test_a_replacement_leaves_exactly_the_new_files(kind: str, servers: Places, tmp_path: Path) -> None:
    place = servers.new(kind)
    store = opened(place, tmp_path)
    build(store, OLD, "k1")
    old = ArtifactHandle.of(store, ARTIFACT)
    receipt, reused = build(store, NEW, "k2")
    assert not reused
    assert contents(place) == as_objects(NEW)
    assert store.current(ARTIFACT, "k2") == receipt
    assert read_by(store) == NEW
    far = opened(place, tmp_path / "far")
    with pytest.raises(MissingArtifactError, match="replaced"):
        dataclasses.replace(old, store=far).read("a.bin")


@pytest.mark.parametrize("kind", ["folder", "moto", "swift", "gcs"])
def test_a_joined_file_is_made_by_the_server_of_published_parts(kind: str, servers: Places, tmp_path: Path) -> None:
    place = servers.new(kind)
    store = opened(place, tmp_path / "first")
    shards = [Artifact(dataset="ds", name="shard", partition=f"s-{n}") for n in range(3)]
    datas = [bytes([n]) * size for n, size in enumerate((6 << 20, 100, 5 << 20))]
    parts = []
    for shard, data in zip(shards, datas, strict=True):
        receipt, _ = build(store, {"t.bin": data}, "s", shard)
        parts.append(Part(shard, receipt.file("t.bin")))
    whole = Artifact(dataset="ds", name="whole")

    def write(staged: Path) -> Written:
        joined = store.join(staged, "all.bin", parts)
        assert not (staged / "all.bin").exists()
        return Written(inputs={}, facts={}, joined=(joined,))

    receipt, _ = ensure(whole, store, "k", write)
    assert contents(place, "ds/whole/") == {"ds/whole/all.bin": b"".join(datas)}
    second = opened(place, tmp_path / "second")
    assert second.current(whole, "k") == receipt
    assert (second.local(whole) / "all.bin").read_bytes() == b"".join(datas)


def test_a_joined_file_is_verified_on_another_machine_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GcsServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        place = GcsPlace(bucket=server.bucket, prefix=tmp_path.name, project="project")
        store = opened(place, tmp_path / "first")
        parts = []
        for number in range(3):
            shard = Artifact(dataset="ds", name="shard", partition=f"s-{number}")
            parts.append(Part(shard, build(store, {"t.bin": b"%d" % number * 1000}, "s", shard)[0].file("t.bin")))
        whole = Artifact(dataset="ds", name="whole")
        joining = len(server.log)
        receipt, _ = ensure(
            whole,
            store,
            "k",
            lambda staged: Written(inputs={}, facts={}, joined=(store.join(staged, "all.bin", parts),)),
        )
        assert server.count("compose", since=joining) == 1
        before = len(server.log)
        assert opened(place, tmp_path / "second").current(whole, "k") == receipt
        assert server.count("media", "all.bin", since=before) == 0


@pytest.mark.parametrize("kind", CONDITIONAL)
def test_a_damaged_object_is_found_and_the_artifact_built_again(kind: str, servers: Places, tmp_path: Path) -> None:
    place = servers.new(kind)
    store = opened(place, tmp_path)
    build(store, OLD, "k1")
    place().put(f"{ARTIFACT}/a.bin", b"x" * 1000)
    assert store.current(ARTIFACT, "k1") is None
    (defect,) = store.damage(ARTIFACT, store.require(ARTIFACT))
    assert defect.startswith("a.bin: sha256")
    with pytest.raises(IntegrityError, match=r"a.bin.*Materialize"):
        opened(place, tmp_path / "far", None).local(ARTIFACT, ["a.bin"])
    assert build(store, OLD, "k1")[1] is False
    assert contents(place) == as_objects(OLD)
    place().delete(f"{ARTIFACT}/sub/b.bin")
    assert store.damage(ARTIFACT, store.require(ARTIFACT), "size") == ["sub/b.bin: missing"]


def test_a_torn_receipt_is_damage_and_is_replaced(tmp_path: Path) -> None:
    place = LocalPlace(root=tmp_path / "bucket")
    store = opened(place, tmp_path / "cache")
    build(store, OLD, "k1")
    place().put(f"{ARTIFACT}/{NAME}", b"{")
    with pytest.raises(IntegrityError, match="not a receipt"):
        store.receipt(ARTIFACT)
    assert build(store, NEW, "k2")[1] is False
    assert contents(place) == as_objects(NEW)


# Kills: a real process, killed before the n-th write to the bucket, then the same work done again.


class KillingStore(LocalStore):
    """Ends its process at the n-th call that writes."""

    def __init__(self, root: Path, at: int) -> None:
        super().__init__(root)
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> ObjectInfo:
        self._count()
        return super().put(key, data, if_absent=if_absent, if_version=if_version)

    def upload(self, path: Path, key: str, **named: Any) -> ObjectInfo:
        self._count()
        return super().upload(path, key, **named)

    def compose(self, keys: Sequence[str], key: str, *, sha256: str | None = None) -> ObjectInfo:
        self._count()
        return super().compose(keys, key, sha256=sha256)

    def delete(self, key: str) -> None:
        self._count()
        super().delete(key)


@dataclass(frozen=True)
class KillingPlace:
    root: Path
    at: int

    def __call__(self) -> Store:
        return KillingStore(self.root, self.at)


def main(bucket: str, cache: str, version: str, at: str) -> None:
    store = BucketArtifacts(Path(cache), KillingPlace(Path(bucket), int(at)), "file://bucket")
    build(store, OLD if version == "old" else NEW, version)


def killed_at(bucket: Path, cache: Path, version: str, at: int) -> bool:
    """Run `main` in a process; whether it was killed."""
    program = f"from {__name__} import main; import sys; main(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", program, bucket, cache, version, str(at)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("same_machine", [True, False])
def test_a_first_publication_killed_anywhere_is_not_there_and_the_next_run_completes_it(
    same_machine: bool, tmp_path: Path
) -> None:
    for at in range(1, 30):
        bucket, cache = tmp_path / f"bucket-{at}", tmp_path / f"cache-{at}"
        if not killed_at(bucket, cache, "old", at):
            assert at > 4, "too few points"
            return
        place = LocalPlace(root=bucket)
        seen = opened(place, tmp_path / f"reader-{at}")
        assert seen.receipt(ARTIFACT) is None or read_by(seen) == OLD
        again = opened(place, cache if same_machine else tmp_path / f"other-{at}")
        build(again, OLD, "old")
        assert contents(place) == as_objects(OLD)
        assert read_by(again) == OLD
    raise AssertionError("never finished")


@pytest.mark.slow
@pytest.mark.parametrize("same_machine", [True, False])
def test_a_replacement_killed_anywhere_leaves_the_old_or_the_new_whole_and_the_next_run_completes_it(
    same_machine: bool, tmp_path: Path
) -> None:
    place = LocalPlace(root=tmp_path / "prepared")
    build(opened(place, tmp_path / "prepared-cache"), OLD, "old")
    seen_versions = set()
    for at in range(1, 40):
        bucket, cache = tmp_path / f"bucket-{at}", tmp_path / f"cache-{at}"
        shutil.copytree(tmp_path / "prepared", bucket)
        if not killed_at(bucket, cache, "new", at):
            assert at > 6, "too few points"
            assert seen_versions == {"old", "new"}
            return
        reader = opened(LocalPlace(root=bucket), tmp_path / f"reader-{at}")
        version = reader.require(ARTIFACT).key
        seen_versions.add(version)
        assert read_by(reader) == (OLD if version == "old" else NEW)
        assert reader.current(ARTIFACT, version) is not None
        again = opened(LocalPlace(root=bucket), cache if same_machine else tmp_path / f"other-{at}")
        build(again, NEW, "new")
        assert contents(LocalPlace(root=bucket)) == as_objects(NEW)
    raise AssertionError("never finished")


def test_what_was_built_and_not_published_is_published_by_the_next_look_without_a_build(tmp_path: Path) -> None:
    bucket, cache = tmp_path / "bucket", tmp_path / "cache"
    assert killed_at(bucket, cache, "old", 1)
    store = opened(LocalPlace(root=bucket), cache)
    assert store.receipt(ARTIFACT) is None
    assert store.current(ARTIFACT, "old") is not None
    assert contents(LocalPlace(root=bucket)) == as_objects(OLD)


# Rivals.


@pytest.mark.parametrize("kind", ["folder", "moto", "swift", "gcs"])
def test_two_runs_that_publish_the_same_both_succeed(kind: str, servers: Places, tmp_path: Path) -> None:
    place = servers.new(kind)
    barrier, results = threading.Barrier(2), []

    def run(name: str) -> None:
        barrier.wait()
        results.append(build(opened(place, tmp_path / name), OLD, "k1")[0].content)

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert len(set(results)) == 1
    assert contents(place) == as_objects(OLD)


@dataclass(frozen=True)
class InterruptingPlace:
    """A place in which another machine publishes just before this one's receipt."""

    place: Place
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
def test_of_two_runs_that_publish_different_bytes_the_second_is_refused(
    kind: str, replacing: bool, servers: Places, tmp_path: Path
) -> None:
    place = servers.new(kind)
    other = opened(place, tmp_path / "other")
    if replacing:
        build(other, OLD, "k0")
    rival = {"a.bin": b"R" * 1000}
    interrupted = InterruptingPlace(place, other, tuple(rival.items()))
    with pytest.raises(IntegrityError, match="at the same time"):
        build(BucketArtifacts(tmp_path / "mine", interrupted, place.url), NEW, "k1")
    receipt = other.require(ARTIFACT)
    assert receipt.key == "rival"
    assert other.damage(ARTIFACT, receipt) == []
    assert read_by(opened(place, tmp_path / "reader")) == rival
    assert {key: data for key, data in contents(place).items() if ".staging" not in key} == as_objects(rival)


# Copies.


def published(tmp_path: Path, count: int, size: int) -> tuple[Place, list[Artifact]]:
    place = LocalPlace(root=tmp_path / "bucket")
    store = opened(place, tmp_path / "builder")
    artifacts = [Artifact(dataset="ds", name="shard", partition=f"s-{n}") for n in range(count)]
    for n, artifact in enumerate(artifacts):
        build(store, {"t.bin": bytes([n]) * size}, "k", artifact)
    return place, artifacts


def copied(store: BucketArtifacts) -> set[str]:
    return {path.parent.parent.name for path in (store.root / copies.FETCHED).rglob("t.bin")}


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
    with pytest.raises(ConfigError, match=r"999 bytes; ds/shard/s-0 alone needs 1,000.*DATAPREP_CACHE_BYTES"):
        store.local(artifact)
    assert copied(store) == set()
    assert ArtifactHandle.of(store, artifact).read("t.bin", 10, 20) == bytes(10)


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
    handle = ArtifactHandle.of(store, artifacts[0])
    path = handle.path("t.bin")
    with pytest.raises(ConfigError, match="in use by running readers"):
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
        with pytest.raises(ConfigError, match="in use by running readers"):
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


def test_what_is_not_published_is_never_evicted(tmp_path: Path) -> None:
    place, artifacts = published(tmp_path, 2, 1000)
    cache = tmp_path / "cache"
    assert killed_at(tmp_path / "bucket", cache, "old", 1)
    store = opened(place, cache, 1000)
    for artifact in artifacts:
        store.local(artifact)
    only = store.directory(ARTIFACT)
    assert {name: (only / name).read_bytes() for name in OLD} == OLD
    assert store.current(ARTIFACT, "old") is not None


def test_a_kill_while_copies_are_fetched_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    place, (artifact,) = published(tmp_path, 1, 1000)
    store = opened(place, tmp_path / "cache")
    directory = store.copies.directory(artifact, store.require(artifact).content)
    directory.mkdir(parents=True)
    (directory / "t.bin.part").write_bytes(b"half")
    assert (store.local(artifact) / "t.bin").read_bytes() == bytes(1000)


def test_a_copy_has_the_receipt_of_the_artifact_as_it_is_now(tmp_path: Path) -> None:
    place = LocalPlace(root=tmp_path / "bucket")
    reader = opened(place, tmp_path / "reader")
    build(opened(place, tmp_path / "builder"), OLD, "k1")
    reader.local(ARTIFACT)
    receipt: Receipt = build(opened(place, tmp_path / "builder"), OLD, "k2")[0]
    assert (reader.local(ARTIFACT) / NAME).read_bytes() == b"".join(place().read(f"{ARTIFACT}/{NAME}"))
    assert receipt.key == "k2"
