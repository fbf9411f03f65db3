"""A cache folder belongs to one release, and contains its manifest for use without a network."""

from pathlib import Path
from typing import Any

from dataprep_assets.errors import ConfigError, TransferError
from dataprep_assets.serving import ShardWindow
from dataprep_assets.serving.window.release import ReleaseLocation
from dataprep_assets.stores.store import ObjectInfo
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.serving.releases import (
    published,
)
from dataprep_assets_tests.serving.watched import QUICK, Watched, assert_is, watched


def test_a_cache_of_another_release_is_refused(tmp_path: Path) -> None:
    ShardWindow(published(tmp_path / "a"), tmp_path / "cache", 1).close()
    with raises(ConfigError, tmp_path / "cache"):
        ShardWindow(published(tmp_path / "b", (8, 4)), tmp_path / "cache", 1)


def test_a_folder_with_another_published_release_is_refused_and_unchanged(tmp_path: Path) -> None:
    published(tmp_path / "a")
    there = tmp_path / "a" / "store"
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    with raises(ConfigError, tmp_path / "a" / "store", "published"):
        ShardWindow(published(tmp_path / "b", (8, 4)), there, 1, keep=2)
    assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "release.json").write_text('{"tag": "v1.2"}')
    with raises(ConfigError, tmp_path / "other", "manifest"):
        ShardWindow(published(tmp_path / "c"), tmp_path / "other", 1)


def test_a_restart_without_network_uses_the_cache(tmp_path: Path) -> None:
    place, _ = watched(tmp_path)
    with ShardWindow(place, tmp_path / "cache", 1) as window:
        for step in range(3):
            window.swap(step)

    class Unreachable(Watched):
        def read(self, *arguments: Any, **options: Any) -> Any:
            raise TransferError("no route to host")

        def head(self, key: str) -> ObjectInfo | None:
            raise TransferError("no route to host")

    away = ReleaseLocation(Unreachable(tmp_path / "store"))
    with ShardWindow(away, tmp_path / "cache", 1, retry=QUICK) as window:
        for step in range(3):
            assert_is(window.swap(step), step)
    with raises(TransferError, "no route"):
        ShardWindow(away, tmp_path / "empty", 1)
