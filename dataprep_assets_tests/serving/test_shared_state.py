"""The records of verified shards that processes share, and the conditions for trusting them."""

import fcntl
from pathlib import Path

import pytest

from dataprep_assets.errors import IntegrityError
from dataprep_assets.serving import ShardWindow
from dataprep_assets.serving.window import cache as cache_module
from dataprep_assets.serving.window.shared_state import SharedState
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.serving.watched import QUICK, assert_is, flip, until, watched


def test_a_shard_that_changes_after_verification_is_not_trained_on(tmp_path: Path) -> None:
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


def test_a_restart_does_not_read_a_verified_shard_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("junk", [b"no JSON", b"{}", b'["1"]', b"[-1]", b"[true]", b"[" * 100_000])
def test_an_invalid_lease_of_a_living_process_is_named(tmp_path: Path, junk: bytes) -> None:
    state = SharedState(tmp_path, "train")
    state.make_folders()
    planted = tmp_path / ".window" / "train" / "ranks" / "7-junk"
    with planted.open("wb") as file:
        file.write(junk)
        file.flush()
        with state.hold_lock():
            fcntl.flock(file, fcntl.LOCK_EX)
            with raises(IntegrityError, "7-junk"):
                state.read_leases()
    with state.hold_lock():
        assert state.read_leases() == {}  # the junk file is no longer locked, so it counts as a dead process's lease
