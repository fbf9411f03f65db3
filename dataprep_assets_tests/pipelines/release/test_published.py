"""A release is uploaded and verified at its location with the manifest last, and an inventory lists the state there."""

from pathlib import Path

import pytest

from dataprep_assets.errors import IntegrityError, MissingArtifactError, TransferError
from dataprep_assets.pipelines.release.published import compare_with_release, send_release
from dataprep_assets.serving import ShardWindow
from dataprep_assets.serving.window.release import MANIFEST, ReleaseLocation, read_release
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.release.counted_store import CountedStore
from dataprep_assets_tests.serving.releases import make_release, publish, published


def test_bytes_that_are_damaged_in_transit_fail_the_publication(tmp_path: Path) -> None:
    """Writers report success after a failed upload (docs/known-failures.md)."""
    release = make_release(tmp_path / "built")
    store = CountedStore(tmp_path / "store")
    store.spoil = "train_000001.npy"
    with raises(IntegrityError, "train_000001.npy", "sha256"):
        send_release(ReleaseLocation(store), release, lambda file: tmp_path / "built" / file.key)
    assert store.head(MANIFEST) is None
    with pytest.raises(MissingArtifactError):
        ShardWindow(ReleaseLocation(store), tmp_path / "cache", 1)


def test_an_earlier_manifest_is_withdrawn_before_its_files_change(tmp_path: Path) -> None:
    store = CountedStore(tmp_path / "store")
    place = publish(make_release(tmp_path / "a", (8, 8)), tmp_path / "a", ReleaseLocation(store))
    store.fail = "sample_ids_000001.bin"
    other = make_release(tmp_path / "b", (8, 4))
    with pytest.raises(TransferError):
        publish(other, tmp_path / "b", place)
    with pytest.raises(MissingArtifactError):
        read_release(place)
    store.fail = None
    publish(other, tmp_path / "b", place)
    assert read_release(place).digest == other.digest


def test_an_inventory_changes_nothing_and_reports_everything(tmp_path: Path) -> None:
    place = published(tmp_path, (8, 8, 8))
    release = read_release(place)
    root = tmp_path / "store"
    (root / "train_000000.npy").unlink()
    with open(root / "train_000001.npy", "r+b") as file:
        file.seek(300)
        file.write(b"\xff")
    (root / "train_000009.npy").write_bytes(b"old")
    (root / "notes.txt").write_bytes(b"not a shard")
    found = compare_with_release(place, release)
    assert [file.key for file in found.missing] == ["train_000000.npy"]
    assert list(found.different) == ["train_000001.npy"]
    assert found.extra == ("train_000009.npy",)
    assert not found.is_complete
