"""The publication of a release: unchanged shards, a receipt, and no repeated upload."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.errors import IntegrityError, MissingArtifactError, TransferError
from dataprep_assets.pipelines.release.npy_shard import get_shard_artifact
from dataprep_assets.pipelines.release.published_shards import build_release_manifest, publish_release
from dataprep_assets.serving import ShardWindow
from dataprep_assets.serving.window.release import MANIFEST, ReleaseLocation, read_release
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.fakes.buckets import new_bucket, new_store
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.release.conftest import Bins
from dataprep_assets_tests.pipelines.release.counted_store import CountedStore


@pytest.fixture
def own(bins: Bins, tmp_path: Path) -> Bins:
    """Return token bins with npy shards that a test may damage."""
    copied = Bins(Path(shutil.copytree(bins.root, tmp_path / "root")))
    copied.build(copied.declare(tokens_per_shard=512 * 64))
    return copied


def test_a_published_release_is_trained_on_through_the_window(own: Bins, moto: str, tmp_path: Path) -> None:
    declared = own.declare(tokens_per_shard=512 * 64)
    layout = own.layout(declared)
    place = ReleaseLocation(new_store(moto, new_bucket(moto)), "remote/tokenized/")
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
                folder = own.store.directory(get_shard_artifact(declared, f"{prefix}_{cut.index:06d}"))
                assert np.array_equal(shard.tokens, np.load(folder / shard.token_path.name))


def test_the_manifest_is_uploaded_last_and_a_rerun_uploads_the_rest(own: Bins, tmp_path: Path) -> None:
    declared = own.declare(tokens_per_shard=512 * 64)
    layout = own.layout(declared)
    store = CountedStore(tmp_path / "store")
    store.fail = "val/val_000000.npy"
    with pytest.raises(TransferError):
        publish_release(declared, own.store, layout, ReleaseLocation(store))
    assert store.head(MANIFEST) is None
    before, store.fail, store.sent = store.sent, None, []
    receipt, _ = publish_release(declared, own.store, layout, ReleaseLocation(store))
    assert before
    assert not set(before) & set(store.sent)
    assert own.store.require(declared.artifact("published_shards")).content == receipt.content


def test_a_changed_local_shard_is_not_published(own: Bins, tmp_path: Path) -> None:
    declared = own.declare(tokens_per_shard=512 * 64)
    layout = own.layout(declared)
    path = own.store.directory(get_shard_artifact(declared, "train_000000")) / "train_000000.npy"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with raises(IntegrityError, "changed"):
        publish_release(declared, own.store, layout, ReleaseLocation(LocalStore(tmp_path / "store")))


def test_missing_and_stale_shards_are_named(own: Bins, tmp_path: Path) -> None:
    declared = own.declare(tokens_per_shard=512 * 64)
    layout = own.layout(declared)
    shutil.rmtree(own.store.directory(get_shard_artifact(declared, "train_000001")))
    with raises(MissingArtifactError, 1, "train_000001"):
        build_release_manifest(declared, own.store, layout)
    other = own.declare(tokens_per_shard=512 * 64, shuffle_seed=8)
    with raises(MissingArtifactError, "train_000000", "train_000001"):
        build_release_manifest(other, own.store, own.layout(other))
