"""Publication: everything verified, the manifest last, what is there not sent again; and the copy to another store."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.cli import main
from dataprep_assets.errors import IntegrityError, MissingArtifactError, TransferError
from dataprep_assets.pipelines.release.migration import migrate, plan_migration
from dataprep_assets.pipelines.release.npy_shards import shard_artifact
from dataprep_assets.pipelines.release.published import (
    inventory,
    publish_release,
    release_manifest,
    send_release,
)
from dataprep_assets.serving import ShardWindow
from dataprep_assets.serving.release import MANIFEST, Place, read_release
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import ObjectInfo, Progress
from dataprep_assets_tests.fakes.buckets import new_bucket, new_store
from dataprep_assets_tests.fakes.moto_server import moto_server
from dataprep_assets_tests.pipelines.release.conftest import Bins
from dataprep_assets_tests.serving.releases import make_release, publish, published


class Counted(LocalStore):
    """A folder store that notes its uploads, and fails or spoils the one it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.sent: list[str] = []
        self.fail: str | None = None
        self.spoil: str | None = None

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        if key == self.fail:
            raise TransferError("the network is down")
        info = super().upload(path, key, sha256=sha256, progress=progress)
        self.sent.append(key)
        if key == self.spoil:
            data = bytearray(self.path(key).read_bytes())
            data[-1] ^= 1
            self.path(key).write_bytes(data)
        return info


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture
def own(bins: Bins, tmp_path: Path) -> Bins:
    """Token bins with their npy shards, to be damaged."""
    copied = Bins(Path(shutil.copytree(bins.root, tmp_path / "root")))
    copied.build(copied.declare(tokens_per_shard=512 * 64))
    return copied


def test_a_published_release_is_trained_on_through_the_window(own: Bins, server: str, tmp_path: Path) -> None:
    declared = own.declare(tokens_per_shard=512 * 64)
    layout = own.layout(declared)
    place = Place(new_store(server, new_bucket(server)), "remote/tokenized/")
    receipt, current = publish_release(declared, own.store, layout, place)
    assert not current
    assert receipt.facts["shards"] == {name: len(split.cuts) for name, split in layout.splits.items()}
    assert publish_release(declared, own.store, layout, place)[1]
    assert {info.key for info in place.store.list()} == {
        f"remote/tokenized/{name}" for name in (*(f.key for f in read_release(place).files), MANIFEST)
    }
    for prefix in layout.splits:
        with ShardWindow(place, tmp_path / "cache", 1, prefix=prefix) as window:
            for cut in layout.splits[prefix].cuts:
                shard = window.swap(cut.index)
                folder = own.store.directory(shard_artifact(declared, f"{prefix}_{cut.index:06d}"))
                assert np.array_equal(shard.tokens, np.load(folder / shard.token_path.name))


def test_the_manifest_comes_last_and_a_rerun_sends_the_rest(own: Bins, tmp_path: Path) -> None:
    declared = own.declare(tokens_per_shard=512 * 64)
    layout = own.layout(declared)
    store = Counted(tmp_path / "store")
    store.fail = "val/val_000000.npy"
    with pytest.raises(TransferError):
        publish_release(declared, own.store, layout, Place(store))
    assert store.head(MANIFEST) is None
    before, store.fail, store.sent = store.sent, None, []
    receipt, _ = publish_release(declared, own.store, layout, Place(store))
    assert before
    assert not set(before) & set(store.sent)
    assert own.store.require(declared.artifact("published_shards")).content == receipt.content


def test_bytes_that_arrive_wrong_fail_the_publication(tmp_path: Path) -> None:
    """The original writer reports success after a failed upload."""
    release = make_release(tmp_path / "built")
    store = Counted(tmp_path / "store")
    store.spoil = "train_000001.npy"
    with pytest.raises(IntegrityError, match=r"train_000001\.npy: sha256 .* after the upload"):
        send_release(Place(store), release, lambda file: tmp_path / "built" / file.key)
    assert store.head(MANIFEST) is None
    with pytest.raises(MissingArtifactError):
        ShardWindow(Place(store), tmp_path / "cache", 1)


def test_a_changed_local_shard_is_not_published(own: Bins, tmp_path: Path) -> None:
    declared = own.declare(tokens_per_shard=512 * 64)
    layout = own.layout(declared)
    path = own.store.directory(shard_artifact(declared, "train_000000")) / "train_000000.npy"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="changed since it was recorded"):
        publish_release(declared, own.store, layout, Place(LocalStore(tmp_path / "store")))


def test_missing_and_stale_shards_are_named(own: Bins, tmp_path: Path) -> None:
    declared = own.declare(tokens_per_shard=512 * 64)
    layout = own.layout(declared)
    shutil.rmtree(own.store.directory(shard_artifact(declared, "train_000001")))
    with pytest.raises(MissingArtifactError, match="1 shards of the release are missing or out of date: train_000001"):
        release_manifest(declared, own.store, layout)
    other = own.declare(tokens_per_shard=512 * 64, shuffle_seed=8)
    with pytest.raises(MissingArtifactError, match="train_000000, train_000001"):
        release_manifest(other, own.store, own.layout(other))


def test_an_earlier_manifest_is_withdrawn_before_its_files_change(tmp_path: Path) -> None:
    store = Counted(tmp_path / "store")
    place = publish(make_release(tmp_path / "a", (8, 8)), tmp_path / "a", Place(store))
    store.fail = "sample_ids_000001.bin"
    other = make_release(tmp_path / "b", (8, 4))
    with pytest.raises(TransferError):
        publish(other, tmp_path / "b", place)
    with pytest.raises(MissingArtifactError):
        read_release(place)
    store.fail = None
    publish(other, tmp_path / "b", place)
    assert read_release(place).digest == other.digest


def test_an_inventory_changes_nothing_and_tells_all(tmp_path: Path) -> None:
    place = published(tmp_path, (8, 8, 8))
    release = read_release(place)
    root = tmp_path / "store"
    (root / "train_000000.npy").unlink()
    with open(root / "train_000001.npy", "r+b") as file:
        file.seek(300)
        file.write(b"\xff")
    (root / "train_000009.npy").write_bytes(b"old")
    (root / "notes.txt").write_bytes(b"not a shard")
    found = inventory(place, release)
    assert [file.key for file in found.missing] == ["train_000000.npy"]
    assert list(found.different) == ["train_000001.npy"]
    assert found.extra == ("train_000009.npy",)
    assert not found.complete


def test_a_release_is_copied_between_buckets_with_a_dry_run_and_resume(server: str, tmp_path: Path) -> None:
    release = make_release(tmp_path / "built", val=1)
    source = publish(release, tmp_path / "built", Place(new_store(server, new_bucket(server)), "tokenized/"))
    store = Counted(tmp_path / "own")
    target = Place(store, "mine/")
    plan = plan_migration(source, target)
    assert len(plan.todo) == 8
    assert plan.lines[0].startswith("8 of 8 files are to be copied")
    assert plan.scratch_bytes == max(file.bytes for file in release.files)
    assert list(target.store.list()) == []
    store.fail = "mine/train_000001.npy"
    with pytest.raises(TransferError):
        migrate(plan, source, target, tmp_path / "scratch")
    store.fail = None
    again = plan_migration(source, target)
    assert 0 < len(again.todo) < 8
    assert migrate(again, source, target, tmp_path / "scratch")
    assert len(store.sent) == 8
    assert list((tmp_path / "scratch").iterdir()) == []
    assert read_release(target).digest == release.digest
    assert not migrate(plan_migration(source, target), source, target, tmp_path / "scratch")
    with ShardWindow(target, tmp_path / "cache", 1) as window:
        assert window.swap(2).index == 2


def test_a_source_with_gaps_is_refused(tmp_path: Path) -> None:
    source = published(tmp_path)
    (tmp_path / "store" / "sample_ids_000001.bin").unlink()
    target = Place(LocalStore(tmp_path / "own"))
    plan = plan_migration(source, target)
    with pytest.raises(IntegrityError, match=r"The source does not have sample_ids_000001\.bin"):
        migrate(plan, source, target, tmp_path / "scratch")


def test_sync_copies_a_release_by_its_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = published(tmp_path)
    path = tmp_path / "store" / "train_000000.npy"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    ends = [str(tmp_path / "store"), str(tmp_path / "own")]
    assert main(["sync", *ends]) == 1
    assert "train_000000.npy" in capsys.readouterr().err
    assert not (tmp_path / "own" / "release.json").exists()
    path.write_bytes(good)
    assert main(["sync", *ends, "--dry-run"]) == 0
    assert main(["sync", *ends]) == 0
    assert "ShardWindow" in capsys.readouterr().out
    assert read_release(Place(LocalStore(tmp_path / "own"))).digest == read_release(source).digest
