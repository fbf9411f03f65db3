"""A release is copied to another store by its manifest, with a plan and with resumption."""

from pathlib import Path

import pytest

from dataprep_assets.cli import main
from dataprep_assets.errors import IntegrityError, TransferError
from dataprep_assets.integrity.sync import MANIFEST
from dataprep_assets.pipelines.release.migration import migrate, plan_migration
from dataprep_assets.serving import ShardWindow
from dataprep_assets.serving.window.release import ReleaseLocation, read_release
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.fakes.buckets import new_bucket, new_store
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.release.counted_store import CountedStore
from dataprep_assets_tests.serving.releases import make_release, publish, published


def test_a_release_is_copied_between_buckets_with_a_dry_run_and_resume(moto: str, tmp_path: Path) -> None:
    release = make_release(tmp_path / "built", val=1)
    source = publish(release, tmp_path / "built", ReleaseLocation(new_store(moto, new_bucket(moto)), "tokenized/"))
    store = CountedStore(tmp_path / "own")
    target = ReleaseLocation(store, "mine/")
    plan = plan_migration(source, target)
    assert len(plan.files_to_copy) == 8
    assert plan.lines[0].startswith("8 of 8 files to copy")
    assert plan.scratch_bytes == max(file.bytes for file in release.files)
    assert list(target.store.list()) == []
    store.fail = "mine/train_000001.npy"
    with pytest.raises(TransferError):
        migrate(plan, source, target, tmp_path / "scratch")
    store.fail = None
    again = plan_migration(source, target)
    assert 0 < len(again.files_to_copy) < 8
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
    target = ReleaseLocation(LocalStore(tmp_path / "own"))
    plan = plan_migration(source, target)
    with raises(IntegrityError, "sample_ids_000001.bin"):
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
    # The copy needs no separate manifest (`MANIFEST`), because the release file is its manifest.
    assert not (tmp_path / "own" / MANIFEST).exists()
    assert read_release(ReleaseLocation(LocalStore(tmp_path / "own"))).digest == read_release(source).digest
