"""One process and its window: schedule, eviction, verification, failure, restart; the defects of the original."""

import asyncio
import gc
import io
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError, CorruptSourceError, MissingArtifactError, SourceError, TransferError
from dataprep_assets.serving import KeepBytes, Shard, ShardWindow
from dataprep_assets.serving import cache as cache_module
from dataprep_assets.serving.progress import Bar
from dataprep_assets.serving.release import Place, read_release
from dataprep_assets.serving.shard_window import WindowEvent
from dataprep_assets.stores import ranged
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stores.store import ObjectInfo, Progress
from dataprep_assets_tests.serving.releases import (
    LENGTH,
    data_files,
    debris,
    make_release,
    publish,
    published,
    tokens_of,
)

QUICK = RetryPolicy(attempts=2, base_seconds=0.01, max_seconds=0.02)


class Watched(LocalStore):
    """A folder store that notes what is downloaded, and lets a test act before or in the middle of it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fetched: list[str] = []
        self.before: Callable[[str], None] = lambda key: None

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        self.before(key)
        self.fetched.append(key)
        return super().download(key, target, sha256=sha256, progress=progress)


class Chunked(LocalStore):
    """A folder store of small ranges, each in several chunks, whose files are fetched by `workers` threads."""

    RANGE, CHUNK = 1 << 16, 1 << 14

    def __init__(self, root: Path, workers: int) -> None:
        super().__init__(root)
        self.workers = workers
        self.ranges: list[tuple[str, int]] = []
        # Called before each chunk with the file's name and how many of its chunks were given before.
        self.before: Callable[[str, int], None] = lambda key, given: None
        self._given: Counter[str] = Counter()

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        info = self.head(key)
        assert info is not None

        def read(start: int, stop: int) -> Iterator[bytes]:
            self.ranges.append((key, start))
            for at in range(start, stop, self.CHUNK):
                self.before(key, self._given[key])
                yield b"".join(self.read(key, at, min(stop, at + self.CHUNK), version=info.version))
                self._given[key] += 1

        ranged.download(
            read,
            size=info.bytes,
            target=target,
            sha256=sha256,
            etag=info.version,
            label=key,
            part_bytes=self.RANGE,
            workers=self.workers,
            progress=progress,
        )
        return info


def watched(root: Path, samples: tuple[int, ...] = (8, 8, 8), **options: Any) -> tuple[Place, Watched]:
    published(root, samples, **options)
    store = Watched(root / "store")
    return Place(store), store


def assert_is(shard: Shard, index: int, samples: int = 8) -> None:
    assert shard.index == index
    assert np.array_equal(shard.tokens, tokens_of(index, samples))


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def flip(path: Path, byte: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


# --- the schedule


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
@pytest.mark.parametrize("keep", ["all", 2])
def test_every_step_has_its_shard_for_any_number_of_shards(tmp_path: Path, shards: int, keep: Any) -> None:
    """FORMATS C.4: with 2 shards the original deletes what it prefetched, with 1 the active files; n is fixed at 10."""
    place, store = watched(tmp_path, (8,) * shards)
    with ShardWindow(place, tmp_path / "cache", 3, keep=keep, retry=QUICK) as window:
        for step in range(3 * shards * 3):
            shard = window.swap(step)
            assert_is(shard, step // 3 % shards)
            assert shard.token_path.exists()
        until(lambda: len(window.status().ready) == min(shards, 2))
    tokens = [key for key in store.fetched if key.startswith("train")]
    if keep == "all" or shards <= 2:
        assert len(tokens) == shards
    assert not debris(tmp_path / "cache")


def test_a_restart_at_any_step_activates_the_shard_of_that_step(tmp_path: Path) -> None:
    """FORMATS C.4, rows 1 and 2: after a restart at shard 4 the original goes on with 1; beyond the last it fails."""
    place, _ = watched(tmp_path, (8,) * 6)
    for step in (8, 11, 12, 25):
        with ShardWindow(place, tmp_path / "cache", 2, keep=2, retry=QUICK) as window:
            assert_is(window.swap(step), step // 2 % 6)
            assert_is(window.swap(step + 2), (step + 2) // 2 % 6)
    files = data_files(tmp_path / "cache")
    assert len([f for f in files if f.endswith(".npy")]) <= 2


def test_the_same_shard_object_is_given_until_the_schedule_moves(tmp_path: Path) -> None:
    with ShardWindow(published(tmp_path), tmp_path / "cache", 4) as window:
        first = window.swap(0)
        assert window.swap(3) is first is window.active
        assert window.swap(4) is not first


def test_another_sequence_length_is_refused_with_the_reason(tmp_path: Path) -> None:
    place = published(tmp_path)
    ShardWindow(place, tmp_path / "cache", 1, sequence_length=LENGTH).close()
    with pytest.raises(ConfigError, match="its sample ids name those samples"):
        ShardWindow(place, tmp_path / "cache", 1, sequence_length=LENGTH * 2)


def test_prefixes_share_a_cache_without_colliding(tmp_path: Path) -> None:
    """FORMATS C.1: in the original, train and val share their ids file."""
    place = published(tmp_path, (8, 8), val=2)
    with (
        ShardWindow(place, tmp_path / "cache", 1, keep=2) as train,
        ShardWindow(place, tmp_path / "cache", 1, keep=2, prefix="val") as val,
    ):
        assert_is(train.swap(0), 0)
        assert np.array_equal(val.swap(1).tokens, tokens_of(101, 4))
        assert val.active is not None
        assert val.active.token_path == tmp_path / "cache" / "val" / "val_000001.npy"


# --- what is kept


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
    size = read_release(place).of("train")[0].bytes
    limit = 2 if keep == "bytes" else keep
    most = 0

    def count(key: str) -> None:
        nonlocal most
        names = [f for f in data_files(tmp_path / "cache") if f.startswith("train") and not f.endswith(".json")]
        most = max(most, len({name.removesuffix(".part") for name in names}))

    store.before = count
    policy = KeepBytes(2 * size + 1) if keep == "bytes" else keep
    with ShardWindow(place, tmp_path / "cache", 1, keep=policy, retry=QUICK) as window:
        for step in range(11):
            shard = window.swap(step)
            assert_is(shard, step % 5)
            del shard
    assert most == limit


def test_a_limit_smaller_than_two_shards_is_an_error_at_construction(tmp_path: Path) -> None:
    """PAINS 20."""
    place = published(tmp_path)
    size = read_release(place).of("train")[0].bytes
    for keep in (1, KeepBytes(2 * size - 1)):
        with pytest.raises(ConfigError, match="keep"):
            ShardWindow(place, tmp_path / "cache", 1, keep=keep)
    ShardWindow(place, tmp_path / "cache", 1, keep=KeepBytes(2 * size)).close()
    single = published(tmp_path / "one", (8,))
    ShardWindow(single, tmp_path / "cache1", 1, keep=1).close()


def test_a_shard_that_only_this_machine_has_is_not_evicted(tmp_path: Path) -> None:
    """PAINS 20: eviction deletes the only copy."""
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
        # Back in the store, it may go.
        shutil.copy(tmp_path / "built" / "train_000000.npy", tmp_path / "store" / "train_000000.npy")
    with ShardWindow(place, tmp_path / "cache", 1, keep=2, retry=QUICK) as window:
        assert_is(window.swap(2), 2)
        until(lambda: window.status().ready == (2, 3))
    assert not (tmp_path / "cache" / "train_000000.npy").exists()


def test_a_release_used_where_it_lies_is_neither_copied_nor_evicted(tmp_path: Path) -> None:
    published(tmp_path, (8,) * 4)
    store = Watched(tmp_path / "store")
    with ShardWindow(Place(store), tmp_path / "store", 1, keep="all", retry=QUICK) as window:
        for step in range(5):
            assert_is(window.swap(step), step % 4)
    assert store.fetched == []
    with ShardWindow(Place(store), tmp_path / "store", 1, keep=2, retry=QUICK, room_seconds=0.2) as window:
        assert_is(window.swap(0), 0)
    assert len(data_files(tmp_path / "store")) >= 9


def test_a_swap_leaves_open_readers_alone(tmp_path: Path) -> None:
    """PAINS 20: swap with an open reader. What is still read is held; when the reader ends, it goes."""
    place, _ = watched(tmp_path, (8,) * 4)
    with ShardWindow(place, tmp_path / "cache", 1, keep=2, retry=QUICK) as window:
        reader = window.swap(0)
        window.swap(1)
        until(lambda: any(s == [0, 1, 2] for s in window._cache.holders().values()))
        time.sleep(0.2)
        assert reader.token_path.exists()
        assert_is(reader, 0)
        path = reader.token_path
        del reader
        gc.collect()
        until(lambda: not path.exists())
        assert_is(window.swap(2), 2)


def test_strangers_files_in_the_cache_are_never_touched(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("train_000099.npy", "notes.txt", "train_000000.npy.bak"):
        (cache / name).write_text("mine")
    with ShardWindow(published(tmp_path), cache, 1, keep=2, retry=QUICK) as window:
        for step in range(7):
            window.swap(step)
    assert {"train_000099.npy", "notes.txt", "train_000000.npy.bak"} <= set(data_files(cache))


# --- nothing wrong is trained on


@pytest.mark.parametrize(
    "kind", ["short", "long", "flipped", "foreign", "empty", "ids short", "ids header", "ids foreign"]
)
def test_a_wrong_file_under_the_right_name_is_fetched_again(tmp_path: Path, kind: str) -> None:
    """FORMATS C.4 and C.5: the original's completeness test is `os.path.exists`."""
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


def test_files_that_are_right_are_taken_as_they_are(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    shutil.copytree(tmp_path / "built", tmp_path / "cache")
    with ShardWindow(place, tmp_path / "cache", 1) as window:
        for step in range(3):
            assert_is(window.swap(step), step)
    assert store.fetched == []


def test_a_shard_that_changes_after_it_was_verified_is_not_trained_on(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    with ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window:
        window.swap(0)
        until(lambda: window.status().ready == (0, 1))
        flip(tmp_path / "cache" / "train_000001.npy")
        assert_is(window.swap(1), 1)
        until(lambda: window.status().ready == (1, 2))
    assert store.fetched.count("train_000001.npy") == 2
    flip(tmp_path / "cache" / "train_000002.npy")
    with ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window:
        assert_is(window.swap(2), 2)
    assert store.fetched.count("train_000002.npy") == 2


def test_a_verified_shard_is_not_read_again_at_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, store = watched(tmp_path)
    with ShardWindow(place, tmp_path / "cache", 1) as window:
        window.swap(0)
        until(lambda: window.status().ready == (0, 1))
    store.fetched.clear()

    def never(path: Path) -> str:
        raise AssertionError(f"{path} was digested again")

    monkeypatch.setattr(cache_module, "sha256_file", never)
    with ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window:
        assert_is(window.swap(0), 0)
        assert_is(window.swap(1), 1)


def test_an_object_replaced_in_the_store_is_refused(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    with ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window:
        store.put("train_000000.npy", b"something else")
        with pytest.raises(CorruptSourceError, match="Another shard lies under this name"):
            window.swap(0)
        shutil.copy(tmp_path / "built" / "train_000000.npy", tmp_path / "store" / "train_000000.npy")
        flip(tmp_path / "store" / "train_000000.npy")
        with pytest.raises(CorruptSourceError, match="expected sha256"):
            window.swap(0)
        shutil.copy(tmp_path / "built" / "train_000000.npy", tmp_path / "store" / "train_000000.npy")
        assert_is(window.swap(0), 0)
    assert not debris(tmp_path / "cache")


@pytest.mark.parametrize("kind", ["ids of another shard", "another dtype"])
def test_a_release_published_damaged_is_refused_though_its_digests_are_right(tmp_path: Path, kind: str) -> None:
    """FORMATS C.8: ids are recomputed from the tokens, the header is read, before a shard is used."""
    from dataclasses import replace

    from dataprep_assets.integrity.digest import sha256_file

    built = tmp_path / "built"
    release = make_release(built, (8, 8))
    first, second = release.of("train")
    if kind == "another dtype":
        path = built / first.token_file.key
        path.write_bytes(path.read_bytes().replace(b"<u4", b"<i4"))
        first = replace(first, token_file=replace(first.token_file, sha256=sha256_file(path)))
    else:
        path = built / first.ids_file.key
        shutil.copy(built / second.ids_file.key, path)
        first = replace(first, ids_file=replace(first.ids_file, sha256=sha256_file(path)))
    release = replace(release, shards={"train": (first, second)})
    place = publish(release, built, Place(LocalStore(tmp_path / "store")))
    with (
        ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window,
        pytest.raises(CorruptSourceError, match="was published damaged"),
    ):
        window.swap(0)


def test_a_cache_of_another_release_is_refused(tmp_path: Path) -> None:
    ShardWindow(published(tmp_path / "a"), tmp_path / "cache", 1).close()
    with pytest.raises(ConfigError, match="it holds shards of another release"):
        ShardWindow(published(tmp_path / "b", (8, 4)), tmp_path / "cache", 1)


# --- failures


def test_a_failed_prefetch_is_reported_when_it_fails_and_heals_before_the_swap(tmp_path: Path) -> None:
    """FORMATS C.4: a failed ids download returns None in the original, and is noticed only at the swap."""
    place, store = watched(tmp_path)
    broken = threading.Event()
    broken.set()

    def fail(key: str) -> None:
        if broken.is_set() and key == "sample_ids_000001.bin":
            raise TransferError("the server is down")

    store.before = fail
    events: list[WindowEvent] = []
    with ShardWindow(place, tmp_path / "cache", 5, retry=QUICK, on_event=events.append) as window:
        window.swap(0)
        until(lambda: [e.kind for e in events].count("failed") > QUICK.attempts)
        assert window.status().failures == {1: "the server is down"}
        assert window.status().gave_up == ()
        assert window.swap(4).index == 0
        broken.clear()
        until(lambda: window.status().ready == (0, 1))
        assert window.status().failures == {}
        assert_is(window.swap(5), 1)


def test_a_swap_that_waits_in_vain_says_why_and_can_be_tried_again(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    broken = threading.Event()
    broken.set()

    def fail(key: str) -> None:
        if broken.is_set():
            raise TransferError("the server is down")

    store.before = fail
    events: list[WindowEvent] = []
    with ShardWindow(place, tmp_path / "cache", 5, retry=QUICK, on_event=events.append) as window:
        with pytest.raises(TransferError, match="the server is down"):
            window.swap(0)
        assert [e.kind for e in events if e.error] == ["failed", "gave_up"]
        assert window.active is None
        broken.clear()
        assert_is(window.swap(0), 0)


def test_a_missing_object_and_a_missing_manifest_are_said(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    store.delete("sample_ids_000000.bin")
    with (
        ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window,
        pytest.raises(MissingArtifactError, match="the store does not have it"),
    ):
        window.swap(0)
    with pytest.raises(MissingArtifactError, match=r"release\.json"):
        ShardWindow(tmp_path / "nowhere", tmp_path / "cache2", 1)


def test_a_full_disk_is_said_before_a_byte_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, store = watched(tmp_path)
    free = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: free._replace(free=100))
    with (
        ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window,
        pytest.raises(TransferError, match="704 bytes are still to come"),
    ):
        window.swap(0)
    assert store.fetched == []
    assert data_files(tmp_path / "cache") == []


def test_a_restart_without_network_uses_what_is_there(tmp_path: Path) -> None:
    place, _ = watched(tmp_path)
    with ShardWindow(place, tmp_path / "cache", 1) as window:
        for step in range(3):
            window.swap(step)

    class Unreachable(Watched):
        def read(self, *arguments: Any, **options: Any) -> Any:
            raise TransferError("no route to host")

        def head(self, key: str) -> ObjectInfo | None:
            raise TransferError("no route to host")

    away = Place(Unreachable(tmp_path / "store"))
    with ShardWindow(away, tmp_path / "cache", 1, retry=QUICK) as window:
        for step in range(3):
            assert_is(window.swap(step), step)
    with pytest.raises(SourceError, match="no route"):
        ShardWindow(away, tmp_path / "empty", 1)


def test_the_callback_of_a_user_cannot_stop_the_window(tmp_path: Path) -> None:
    def raises(event: WindowEvent) -> None:
        raise RuntimeError("not our bug")

    with ShardWindow(published(tmp_path), tmp_path / "cache", 1, on_event=raises) as window:
        assert_is(window.swap(0), 0)
        assert_is(window.swap(1), 1)


# --- start, stop, threads, asyncio


def test_twenty_starts_and_stops_leave_no_debris(tmp_path: Path) -> None:
    """PAINS 21."""
    place = published(tmp_path, (8,) * 4)
    for run in range(20):
        window = ShardWindow(place, tmp_path / "cache", 1, keep=2, retry=QUICK)
        window.prepare(run)
        if run % 3 == 0:
            assert_is(window.swap(run), run % 4)
        window.close()
        window.close()
    assert not debris(tmp_path / "cache")
    assert len([f for f in data_files(tmp_path / "cache") if f.endswith(".npy")]) <= 2


def test_close_ends_a_transfer_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, _ = watched(tmp_path, (1 << 16,) * 2)
    started = threading.Event()
    add = Bar.add

    def slow(bar: Bar, count: int) -> None:
        add(bar, count)
        started.set()
        time.sleep(0.05)

    monkeypatch.setattr(Bar, "add", slow)
    window = ShardWindow(place, tmp_path / "cache", 1, retry=QUICK)
    window.prepare(0)
    assert started.wait(20)
    window.close()
    assert not window._thread.is_alive()
    for call in (lambda: window.swap(0), lambda: window.prepare(0), window.wait):
        with pytest.raises(ConfigError, match="was closed"):
            call()


def test_a_jump_gives_up_the_prefetch_of_the_old_place(tmp_path: Path) -> None:
    place, store = watched(tmp_path, (8,) * 6)
    hold = threading.Event()
    store.before = lambda key: hold.wait(0.3) and None if key == "train_000001.npy" else None
    with ShardWindow(place, tmp_path / "cache", 1, keep=2, retry=QUICK) as window:
        window.swap(0)
        assert_is(window.swap(4), 4)
        until(lambda: window.status().ready == (4, 5))
    assert [f for f in data_files(tmp_path / "cache") if f.endswith(".npy")] == ["train_000004.npy", "train_000005.npy"]


@pytest.mark.parametrize(("workers", "chunks", "finished"), [(3, 1, 0), (1, 6, 1)])
@pytest.mark.parametrize("end", ["jump", "close"])
def test_a_prefetch_ends_in_the_middle_of_its_first_ranges(
    tmp_path: Path, end: str, workers: int, chunks: int, finished: int
) -> None:
    """With several ranges under way and none finished, and with one finished, which stays."""
    cache, name = tmp_path / "cache", "train_000001.npy"
    published(tmp_path, (1 << 14,) * 6)
    store = Chunked(tmp_path / "store", workers)
    every = range(0, (tmp_path / "built" / name).stat().st_size, store.RANGE)
    paused = threading.Semaphore(0)
    events: list[WindowEvent] = []

    def pause(key: str, given: int) -> None:
        if key == name and given >= chunks:
            paused.release()
            until(lambda: window.status().next != 1 if end == "jump" else window._closed)

    store.before = pause
    with ShardWindow(Place(store), cache, 1, retry=QUICK, on_event=events.append) as window:
        window.swap(0)
        for _ in range(workers):
            assert paused.acquire(timeout=20)
        if end == "jump":
            window.prepare(4)
            window.wait(20)
            assert_is(window.swap(4), 4, 1 << 14)
        else:
            window.close()
            assert not window._thread.is_alive()
    assert [event for event in events if event.error] == []
    # Nothing was fetched again, and nothing beyond the ranges that were under way.
    assert sorted(start for key, start in store.ranges if key == name) == [*every][: workers + finished]
    left = [path for path in data_files(cache) if path.startswith(name)]
    assert left == ([f"{name}.part", f"{name}.part.json"] if finished else [])
    store.ranges.clear()
    store.before = lambda key, given: None
    with ShardWindow(Place(store), cache, 1, retry=QUICK) as window:
        assert_is(window.swap(1), 1, 1 << 14)
    assert sorted(start for key, start in store.ranges if key == name) == [*every][finished:]
    assert name in data_files(cache)


def test_many_threads_swap_together(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    with ShardWindow(place, tmp_path / "cache", 1) as window:
        for step in range(4):
            shards: list[Shard] = []
            threads = [
                threading.Thread(target=lambda step=step, shards=shards: shards.append(window.swap(step)))
                for _ in range(8)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert len(shards) == 8
            assert all(shard is shards[0] for shard in shards)
            assert_is(shards[0], step % 3)
    assert len(store.fetched) == 6


def test_asyncio_swaps_without_blocking_the_loop(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    gate = threading.Event()
    store.before = lambda key: gate.wait(20) and None

    async def run() -> None:
        with ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window:
            swap = asyncio.create_task(window.aswap(0))
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert not swap.done()
            gate.set()
            assert_is(await swap, 0)
            window.prepare(1)
            await window.await_ready(20)
            # More swaps at once than the default executor has threads.
            shards = await asyncio.gather(*(window.aswap(1) for _ in range(100)))
            assert {shard.index for shard in shards} == {1}

    asyncio.run(run())


def test_wait_times_out_and_waiting_for_nothing_returns(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    gate = threading.Event()
    store.before = lambda key: gate.wait(20) and None
    with ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window:
        window.wait()
        window.prepare(0)
        with pytest.raises(TimeoutError, match="shard 0 is not ready after"):
            window.wait(0.05)
        until(lambda: window.status().fetching == 0)
        gate.set()
        window.wait(20)
        assert window.status().ready == (0,)


def test_two_windows_without_room_for_both_are_told_so(tmp_path: Path) -> None:
    place = published(tmp_path, (8,) * 6)
    with (
        ShardWindow(place, tmp_path / "cache", 1, keep=2, retry=QUICK) as first,
        ShardWindow(place, tmp_path / "cache", 1, keep=2, retry=QUICK, room_seconds=0.2) as second,
    ):
        first.swap(0)
        until(lambda: first.status().ready == (0, 1))
        with pytest.raises(ConfigError, match=r"process \d+-\w+ holds \[0, 1\].*Raise keep"):
            second.swap(3)
        assert_is(second.swap(0), 0)
        assert_is(second.swap(1), 1)


# --- the bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_drawn_on_a_terminal_only() -> None:
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        bar = Bar("train_000000.npy", 1000, stream)
        bar.add(420)
        bar.close()
        assert ("42%" in stream.getvalue()) == shown
    assert Bar("x", 0)._stream is sys.stderr
