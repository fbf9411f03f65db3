"""One process and its window: schedule, failures, restarts and threads, compared with the upstream defects."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError, MissingArtifactError, TransferError
from dataprep_assets.serving import Shard, ShardWindow, WindowEvent, WindowState
from dataprep_assets.serving.window.release import ReleaseLocation
from dataprep_assets.serving.window.shard_window import ProgressBar
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.serving.releases import (
    LENGTH,
    data_files,
    debris,
    published,
    tokens_of,
)
from dataprep_assets_tests.serving.watched import QUICK, Chunked, assert_is, until, watched


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
@pytest.mark.parametrize("keep", ["all", 2])
def test_every_step_has_its_shard_for_any_number_of_shards(tmp_path: Path, shards: int, keep: Any) -> None:
    """With 2 shards upstream deletes what it prefetched, with 1 the active files; n is fixed at 10.

    See docs/formats/shard-window.md#other-faults.
    """
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
    """After a restart at shard 4 upstream continues with shard 1; beyond the last shard it fails.

    See docs/formats/shard-window.md#restart.
    """
    place, _ = watched(tmp_path, (8,) * 6)
    for step in (8, 11, 12, 25):
        with ShardWindow(place, tmp_path / "cache", 2, keep=2, retry=QUICK) as window:
            assert_is(window.swap(step), step // 2 % 6)
            assert_is(window.swap(step + 2), (step + 2) // 2 % 6)
    files = data_files(tmp_path / "cache")
    assert len([f for f in files if f.endswith(".npy")]) <= 2


def test_a_saved_state_resumes_at_its_step_and_is_refused_by_another_schedule_or_release(tmp_path: Path) -> None:
    place = published(tmp_path, (8,) * 3)
    with ShardWindow(place, tmp_path / "cache", 4) as window:
        window.swap(0)
        kept = json.loads(json.dumps(window.state(17).to_json()))
    assert (kept["step"], kept["shard"], kept["epoch"]) == (17, 1, 1)
    with ShardWindow(place, tmp_path / "cache", 4) as window:
        step = window.restore(WindowState.from_json(kept))
        assert step == 17
        assert_is(window.swap(step), 1)
        assert window.state(step).to_json() == kept
    with (
        ShardWindow(place, tmp_path / "cache", 5) as other,
        raises(ConfigError, "steps_per_shard", 5, 4),
    ):
        other.restore(WindowState.from_json(kept))
    with (
        ShardWindow(published(tmp_path / "b", (8,) * 3, length=8), tmp_path / "c", 4) as other,
        raises(ConfigError, "release", "state"),
    ):
        other.restore(WindowState.from_json(kept))
    for broken in ({}, kept | {"step": "17"}, kept | {"more": 1}):
        with raises(ConfigError, "state of a window"):
            WindowState.from_json(broken)


def test_the_same_shard_object_is_returned_until_the_schedule_moves(tmp_path: Path) -> None:
    with ShardWindow(published(tmp_path), tmp_path / "cache", 4) as window:
        first = window.swap(0)
        assert window.swap(3) is first is window.active
        assert window.swap(4) is not first


def test_another_sequence_length_is_refused_with_the_reason(tmp_path: Path) -> None:
    place = published(tmp_path)
    ShardWindow(place, tmp_path / "cache", 1, sequence_length=LENGTH).close()
    with raises(ConfigError, 2 * LENGTH):
        ShardWindow(place, tmp_path / "cache", 1, sequence_length=LENGTH * 2)


def test_prefixes_share_a_cache_without_colliding(tmp_path: Path) -> None:
    """See docs/formats/npy-shards.md#layout: upstream, train and val share their ids file."""
    place = published(tmp_path, (8, 8), val=2)
    with (
        ShardWindow(place, tmp_path / "cache", 1, keep=2) as train,
        ShardWindow(place, tmp_path / "cache", 1, keep=2, prefix="val") as val,
    ):
        assert_is(train.swap(0), 0)
        assert np.array_equal(val.swap(1).tokens, tokens_of(101, 4))
        assert val.active is not None
        assert val.active.token_path == tmp_path / "cache" / "val" / "val_000001.npy"


def test_a_failed_prefetch_is_reported_at_once_and_recovers_before_the_swap(tmp_path: Path) -> None:
    """Upstream, a failed download of ids returns None, and is noticed only at the swap.

    See docs/formats/shard-window.md#other-faults.
    """
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


def test_a_swap_that_times_out_names_the_reason_and_can_be_retried(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    broken = threading.Event()
    broken.set()

    def fail(key: str) -> None:
        if broken.is_set():
            raise TransferError("the server is down")

    store.before = fail
    events: list[WindowEvent] = []
    with ShardWindow(place, tmp_path / "cache", 5, retry=QUICK, on_event=events.append) as window:
        with raises(TransferError, "server is down"):
            window.swap(0)
        assert [e.kind for e in events if e.error] == ["failed", "gave_up"]
        assert window.active is None
        broken.clear()
        assert_is(window.swap(0), 0)


def test_a_missing_object_and_a_missing_manifest_are_reported(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    store.delete("sample_ids_000000.bin")
    with (
        ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window,
        raises(MissingArtifactError, "sample_ids_000000.bin"),
    ):
        window.swap(0)
    with raises(MissingArtifactError, "release.json"):
        ShardWindow(tmp_path / "nowhere", tmp_path / "cache2", 1)


def test_twenty_starts_and_stops_leave_no_leftovers(tmp_path: Path) -> None:
    """See docs/known-failures.md."""
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


def test_close_ends_an_active_transfer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, _ = watched(tmp_path, (1 << 16,) * 2)
    started = threading.Event()
    add = ProgressBar.add

    def slow(bar: ProgressBar, count: int) -> None:
        add(bar, count)
        started.set()
        time.sleep(0.05)

    monkeypatch.setattr(ProgressBar, "add", slow)
    window = ShardWindow(place, tmp_path / "cache", 1, retry=QUICK)
    window.prepare(0)
    assert started.wait(20)
    window.close()
    assert not window._thread.is_alive()
    for call in (lambda: window.swap(0), lambda: window.prepare(0), window.wait):
        with raises(ConfigError, "closed"):
            call()


def test_a_jump_cancels_the_prefetch_for_the_old_position(tmp_path: Path) -> None:
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
def test_a_prefetch_can_be_cancelled_during_its_first_ranges(
    tmp_path: Path, end: str, workers: int, chunks: int, finished: int
) -> None:
    """With several active ranges, none or one of which is finished, no file remains."""
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
    with ShardWindow(ReleaseLocation(store), cache, 1, retry=QUICK, on_event=events.append) as window:
        window.swap(0)
        for _ in range(workers):
            assert paused.acquire(timeout=120)
        if end == "jump":
            window.prepare(4)
            window.wait(20)
            assert_is(window.swap(4), 4, 1 << 14)
        else:
            window.close()
            assert not window._thread.is_alive()
    assert [event for event in events if event.error] == []
    # No ranges are requested except those already in progress.
    assert sorted(start for key, start in store.ranges if key == name) == [*every][: workers + finished]
    assert [path for path in data_files(cache) if path.startswith(name)] == []
    store.ranges.clear()
    store.before = lambda key, given: None
    with ShardWindow(ReleaseLocation(store), cache, 1, retry=QUICK) as window:
        assert_is(window.swap(1), 1, 1 << 14)
    assert sorted(start for key, start in store.ranges if key == name) == [*every]
    assert name in data_files(cache)


def test_many_threads_can_swap_together(tmp_path: Path) -> None:
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
            swap = asyncio.create_task(window.swap_async(0))
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert not swap.done()
            gate.set()
            assert_is(await swap, 0)
            window.prepare(1)
            await window.await_ready(20)
            # Request more simultaneous swaps than the default executor has threads.
            shards = await asyncio.gather(*(window.swap_async(1) for _ in range(100)))
            assert {shard.index for shard in shards} == {1}

    asyncio.run(run())


def test_wait_times_out_and_returns_at_once_if_nothing_is_pending(tmp_path: Path) -> None:
    place, store = watched(tmp_path)
    gate = threading.Event()
    store.before = lambda key: gate.wait(20) and None
    with ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window:
        window.wait()
        window.prepare(0)
        with raises(TimeoutError, 0):
            window.wait(0.05)
        until(lambda: window.status().fetching == 0)
        gate.set()
        window.wait(20)
        assert window.status().ready == (0,)
