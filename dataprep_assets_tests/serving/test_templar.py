"""A templar trainer changes one import, and our manager gives it the shards that the upstream manager should give."""

from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.window.templar import ShardedDatasetManager
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.pytorch import managed_turns, restarted
from dataprep_assets_tests.serving.releases import LENGTH, published, tokens_of


@pytest.mark.parametrize("start", [0, 4])
def test_the_manager_continues_from_any_shard_and_wraps_around(tmp_path: Path, start: int) -> None:
    """Upstream continues with shard 1 after a start at 4, and requests shards beyond the last.

    See docs/formats/shard-window.md#restart and docs/formats/shard-window.md#other-faults.
    """
    published(tmp_path, (8, 6, 8))
    turns = managed_turns(tmp_path / "store", tmp_path / "cache", LENGTH, start, 4)
    assert [turn["shard"] for turn in turns] == [(start + at) % 3 for at in range(5)]
    for turn in turns:
        tokens = tokens_of(turn["shard"], 6 if turn["shard"] == 1 else 8)
        assert turn["of"] == 3
        assert np.array_equal(turn["samples"].reshape(-1), tokens.astype(np.int64))
        assert len(set(turn["ids"])) == len(turn["samples"])


@pytest.mark.parametrize("start", range(10))
def test_a_restart_at_any_step_reads_the_same_as_an_uninterrupted_run(tmp_path: Path, start: int) -> None:
    """At a step at which shards change, templar's loop initializes that step's shard, and then swaps at once."""
    published(tmp_path, (8, 6, 8))
    read = restarted(tmp_path / "store", tmp_path / "cache", LENGTH, start, 3, 12, "")
    assert read == [step // 3 % 3 for step in range(start, 12)]


@pytest.mark.parametrize("workers", ["fork", "spawn"])
def test_reads_of_loader_workers_start_a_turn(tmp_path: Path, workers: str) -> None:
    published(tmp_path, (8, 6, 8))
    read = restarted(tmp_path / "store", tmp_path / "cache", LENGTH, 1, 1, 4, workers)
    assert read == [1, 2, 0]


def test_the_location_equals_the_upstream_one_and_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("R2_DATASET_BUCKET_NAME", raising=False)
    monkeypatch.setenv("DATASET_BINS_PATH", "remote/tokenized/")
    with raises(ConfigError, "R2_DATASET_BUCKET_NAME"):
        ShardedDatasetManager(LENGTH, 0, 1, object())


def test_other_types_and_ranks_are_refused(tmp_path: Path) -> None:
    with raises(ConfigError, "token_dtype", "uint32"):
        ShardedDatasetManager(LENGTH, 0, 1, None, np.uint16, release=tmp_path, cache_dir=tmp_path)
    with raises(ConfigError, 2):
        ShardedDatasetManager(LENGTH, 2, 2, None, release=tmp_path, cache_dir=tmp_path)
