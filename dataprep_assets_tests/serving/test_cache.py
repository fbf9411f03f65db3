"""The kept, evicted and trusted files of a cache, and the upstream defects that follow from looking only at names."""

import gc
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError, CorruptSourceError, TransferError
from dataprep_assets.serving import CacheLimit, ShardWindow, WindowEvent
from dataprep_assets.serving.window import cache as cache_module
from dataprep_assets.serving.window.release import Release, ReleaseLocation, read_release
from dataprep_assets.stores.files import list_open_to_others
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.serving.releases import (
    data_files,
    debris,
    leases,
    make_release,
    publish,
    published,
)
from dataprep_assets_tests.serving.watched import QUICK, Chunked, Watched, assert_is, flip, until, watched


def test_keep_all_keeps_inactive_shards_and_downloads_each_once(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    with ShardWindow(place, tmp_path / "cache", 1, keep="all") as window:
        for step in range(9):
            window.swap(step)
    assert sorted(store.fetched) == sorted(set(store.fetched))
    assert len(data_files(tmp_path / "cache")) == 6


@pytest.mark.parametrize("keep", [2, 3, "bytes"])
def test_a_limit_is_never_exceeded(tmp_path: Path, keep: Any) -> None:
    place, store = watched(tmp_path, (8,) * 5)
    size = read_release(place).shards_of("train")[0].bytes
    limit = 2 if keep == "bytes" else keep
    most = 0

    def count(key: str) -> None:
        nonlocal most
        names = [f for f in data_files(tmp_path / "cache") if f.startswith("train") and not f.endswith(".json")]
        most = max(most, len({name.removesuffix(".part") for name in names}))

    store.before = count
    policy = CacheLimit(2 * size + 1) if keep == "bytes" else keep
    with ShardWindow(place, tmp_path / "cache", 1, keep=policy, retry=QUICK) as window:
        for step in range(11):
            shard = window.swap(step)
            assert_is(shard, step % 5)
            del shard
    assert most == limit


@pytest.mark.parametrize("there", [False, True], ids=["new cache", "open cache"])
def test_downloads_of_a_sensitive_release_are_private_to_their_owner(tmp_path: Path, there: bool) -> None:
    before = os.umask(0)
    try:
        built, cache = tmp_path / "built", tmp_path / "shard" / "cache"
        store = Chunked(tmp_path / "store", workers=2)
        samples = 3 * Chunked.RANGE // 4 // 16
        place = publish(make_release(built, (samples, 8, 8), sensitive=True), built, ReleaseLocation(store))
        if there:
            (cache / ".window" / "train" / "ranks").mkdir(parents=True)
            (cache / "train_000000.npy.part").touch()
        wrong: set[tuple[Path, int]] = set()
        looks: set[str] = set()

        def look(key: str, given: int) -> None:
            looks.update(path.name for path in cache.rglob("*"))
            wrong.update(list_open_to_others(cache))

        store.before = look
        with ShardWindow(place, cache, 1, keep=2, retry=QUICK) as window:
            for step in range(6):
                window.swap(step)
                wrong.update(list_open_to_others(cache))
        wrong.update(list_open_to_others(cache))
        assert wrong == set()
        assert {"train_000000.npy.part", "release.json", "state.json"} <= looks
        assert bool(list(list_open_to_others(tmp_path / "shard"))) == there, "folders made on the way are closed, too"
        Path(tmp_path, "others").touch()
        assert Path(tmp_path, "others").stat().st_mode & 0o666 == 0o666, "the trainer's umask is its own"
    finally:
        os.umask(before)


def test_the_description_of_a_release_that_is_not_sensitive_is_unchanged(tmp_path: Path) -> None:
    plain, sensitive = (make_release(tmp_path, (8,), sensitive=each) for each in (False, True))
    assert b"sensitive" not in plain.to_bytes()
    assert plain.digest != sensitive.digest
    assert Release.from_bytes(sensitive.to_bytes(), "here") == sensitive
    assert json.loads(sensitive.to_bytes())["sensitive"] is True


def test_a_limit_smaller_than_two_shards_is_an_error_at_construction(tmp_path: Path) -> None:
    """See docs/known-failures.md: two shards are on the disk at a time."""
    place = published(tmp_path)
    size = read_release(place).shards_of("train")[0].bytes
    for keep in (1, CacheLimit(2 * size - 1)):
        with raises(ConfigError, "keep"):
            ShardWindow(place, tmp_path / "cache", 1, keep=keep)
    ShardWindow(place, tmp_path / "cache", 1, keep=CacheLimit(2 * size)).close()
    single = published(tmp_path / "one", (8,))
    ShardWindow(single, tmp_path / "cache1", 1, keep=1).close()


def test_a_shard_that_exists_only_on_this_machine_is_not_evicted(tmp_path: Path) -> None:
    """See docs/known-failures.md: upstream deletes the only copy."""
    place, store = watched(tmp_path, (8, 8, 8, 8))
    events: list[WindowEvent] = []
    with ShardWindow(place, tmp_path / "cache", 1, keep=2, retry=QUICK, on_event=events.append) as window:
        window.swap(0)
        until(lambda: window.status().ready == (0, 1))
        store.delete("train_000000.npy")
        window.swap(1)
        until(lambda: any(e.kind == "waiting" for e in events))
        assert (tmp_path / "cache" / "train_000000.npy").exists()
        assert any(e.kind == "kept" and "only copy" in e.detail for e in events)
        # Once the shard is back in the store, it may be evicted.
        shutil.copy(tmp_path / "built" / "train_000000.npy", tmp_path / "store" / "train_000000.npy")
    with ShardWindow(place, tmp_path / "cache", 1, keep=2, retry=QUICK) as window:
        assert_is(window.swap(2), 2)
        until(lambda: window.status().ready == (2, 3))
    assert not (tmp_path / "cache" / "train_000000.npy").exists()


def test_a_release_used_at_its_location_is_neither_copied_nor_evicted(tmp_path: Path) -> None:
    published(tmp_path, (8,) * 4)
    store = Watched(tmp_path / "store")
    with ShardWindow(ReleaseLocation(store), tmp_path / "store", 1, keep="all", retry=QUICK) as window:
        for step in range(5):
            assert_is(window.swap(step), step % 4)
    assert store.fetched == []
    with ShardWindow(ReleaseLocation(store), tmp_path / "store", 1, keep=2, retry=QUICK, room_seconds=0.2) as window:
        assert_is(window.swap(0), 0)
    assert len(data_files(tmp_path / "store")) >= 9


def test_a_swap_does_not_affect_open_readers(tmp_path: Path) -> None:
    """A shard with an open reader stays, and is removed when the reader ends.

    See docs/known-failures.md.
    """
    place, _ = watched(tmp_path, (8,) * 4)
    with ShardWindow(place, tmp_path / "cache", 1, keep=2, retry=QUICK) as window:
        reader = window.swap(0)
        window.swap(1)
        until(lambda: any(s == [0, 1, 2] for s in leases(window).values()))
        time.sleep(0.2)
        assert reader.token_path.exists()
        assert_is(reader, 0)
        path = reader.token_path
        del reader
        gc.collect()
        until(lambda: not path.exists())
        assert_is(window.swap(2), 2)


def test_unknown_files_in_the_cache_are_never_touched(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("train_000099.npy", "notes.txt", "train_000000.npy.bak"):
        (cache / name).write_text("mine")
    with ShardWindow(published(tmp_path), cache, 1, keep=2, retry=QUICK) as window:
        for step in range(7):
            window.swap(step)
    assert {"train_000099.npy", "notes.txt", "train_000000.npy.bak"} <= set(data_files(cache))


@pytest.mark.parametrize(
    "kind", ["short", "long", "flipped", "foreign", "empty", "ids short", "ids header", "ids foreign"]
)
def test_a_wrong_file_under_the_right_name_is_downloaded_again(tmp_path: Path, kind: str) -> None:
    """See docs/formats/shard-window.md#other-faults: upstream tests completeness with `os.path.exists`."""
    place, store = watched(tmp_path)
    cache = tmp_path / "cache"
    shutil.copytree(tmp_path / "built", cache)
    tokens, ids = cache / "train_000001.npy", cache / "sample_ids_000001.bin"
    if kind == "short":
        os.truncate(tokens, 200)
    elif kind == "long":
        tokens.write_bytes(tokens.read_bytes() + b"\0" * 64)
    elif kind == "flipped":
        flip(tokens)
    elif kind == "foreign":
        shutil.copy(cache / "train_000002.npy", tokens)
    elif kind == "empty":
        tokens.write_bytes(b"")
    elif kind == "ids short":
        os.truncate(ids, 48)
    elif kind == "ids header":
        with open(ids, "wb") as file:
            np.save(file, np.zeros(8, "<u8"))
    else:
        shutil.copy(cache / "sample_ids_000002.bin", ids)
    events: list[WindowEvent] = []
    with ShardWindow(place, cache, 1, retry=QUICK, on_event=events.append) as window:
        assert_is(window.swap(1), 1)
        until(lambda: window.status().ready == (1, 2))
        assert_is(window.swap(2), 2)
    assert store.fetched == [ids.name if kind.startswith("ids") else tokens.name]
    assert any(event.kind == "refused" for event in events)


def test_valid_files_are_reused(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    shutil.copytree(tmp_path / "built", tmp_path / "cache")
    with ShardWindow(place, tmp_path / "cache", 1) as window:
        for step in range(3):
            assert_is(window.swap(step), step)
    assert store.fetched == []


def test_an_object_replaced_in_the_store_is_refused(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    with ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window:
        store.put("train_000000.npy", b"something else")
        with raises(CorruptSourceError, "train_000000.npy"):
            window.swap(0)
        shutil.copy(tmp_path / "built" / "train_000000.npy", tmp_path / "store" / "train_000000.npy")
        flip(tmp_path / "store" / "train_000000.npy")
        with raises(CorruptSourceError, "train_000000.npy", "sha256"):
            window.swap(0)
        shutil.copy(tmp_path / "built" / "train_000000.npy", tmp_path / "store" / "train_000000.npy")
        assert_is(window.swap(0), 0)
    assert not debris(tmp_path / "cache")


@pytest.mark.parametrize("kind", ["ids of another shard", "or later, or has a different dtype"])
def test_a_release_published_with_damage_is_refused_although_its_digests_match(tmp_path: Path, kind: str) -> None:
    """Ids are recomputed from the tokens, and the header is read, before a shard is used.

    See docs/formats/npy-shards.md#layout.
    """
    from dataclasses import replace

    from dataprep_assets.stores.files import sha256_file

    built = tmp_path / "built"
    release = make_release(built, (8, 8))
    first, second = release.shards_of("train")
    if kind == "or later, or has a different dtype":
        path = built / first.token_file.key
        path.write_bytes(path.read_bytes().replace(b"<u4", b"<i4"))
        first = replace(first, token_file=replace(first.token_file, sha256=sha256_file(path)))
    else:
        path = built / first.ids_file.key
        shutil.copy(built / second.ids_file.key, path)
        first = replace(first, ids_file=replace(first.ids_file, sha256=sha256_file(path)))
    release = replace(release, shards={"train": (first, second)})
    place = publish(release, built, ReleaseLocation(LocalStore(tmp_path / "store")))
    with (
        ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window,
        raises(CorruptSourceError, "published"),
    ):
        window.swap(0)


def test_a_full_disk_is_reported_before_any_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, store = watched(tmp_path)
    free = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: free._replace(free=100))
    with (
        ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window,
        raises(TransferError, 704, tmp_path),
    ):
        window.swap(0)
    assert store.fetched == []
    assert data_files(tmp_path / "cache") == []


def test_two_windows_without_space_for_both_are_reported(tmp_path: Path) -> None:
    place = published(tmp_path, (8,) * 6)
    with (
        ShardWindow(place, tmp_path / "cache", 1, keep=2, retry=QUICK) as first,
        ShardWindow(place, tmp_path / "cache", 1, keep=2, retry=QUICK, room_seconds=0.2) as second,
    ):
        first.swap(0)
        until(lambda: first.status().ready == (0, 1))
        with raises(ConfigError, "keep", "0, 1"):
            second.swap(3)
        assert_is(second.swap(0), 0)
        assert_is(second.swap(1), 1)
