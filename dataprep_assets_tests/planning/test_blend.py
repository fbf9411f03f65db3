"""Tests of the arithmetic of a blend."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.errors import ConfigError
from dataprep_assets.planning import blend
from dataprep_assets_tests.messages import raises

SIZES = st.lists(st.integers(0, 10_000), min_size=1, max_size=40)


def test_files_are_assigned_by_size_then_path_to_the_least_loaded_shard() -> None:
    """The order and the ties are those of Nemotron's `create_size_balanced_assignments`."""
    files = [("b", 5), ("a", 5), ("d", 9), ("c", 1), ("e", 5)]
    # The largest file, `d`, gets shard 0. `a` and `b` get the empty shards 1 and 2. `e` gets shard 1, because it has a
    # lower number than shard 2, which is as large. `c` gets shard 2.
    assert blend.assign_by_size(files, 3) == [[2], [1, 4], [0, 3]]


def test_files_of_size_zero_are_assigned_in_turn() -> None:
    assert blend.assign_by_size([(name, 0) for name in "abcde"], 2) == [[0, 2, 4], [1, 3]]


def test_files_of_a_shard_are_in_natural_order() -> None:
    assert blend.assign_by_size([("part-10", 9), ("part-2", 1), ("part-1", 5)], 1) == [[2, 1, 0]]


@given(SIZES, st.integers(1, 40))
def test_every_file_is_in_exactly_one_shard_for_any_listing_order(sizes: list[int], shards: int) -> None:
    files = [(f"f{i}", size) for i, size in enumerate(sizes)]
    shards = min(shards, len(files))
    groups = blend.assign_by_size(files, shards)
    assert sorted(i for group in groups for i in group) == list(range(len(files)))
    assert len(groups) == shards
    assert all(groups) or not min(sizes)  # only files without bytes leave a shard empty
    mixed = random.Random(len(files)).sample(files, len(files))
    again = [[mixed[i][0] for i in group] for group in blend.assign_by_size(mixed, shards)]
    assert again == [[files[i][0] for i in group] for group in groups]


def test_the_skew_that_crashes_upstream_is_handled() -> None:
    """Sizes 1000, 1, 1 over 4 shards raise an IndexError upstream."""
    assert blend.divide_shards_by_size([("a", 1000), ("b", 1), ("c", 1)], 4) == [2, 1, 1]


@given(SIZES, st.integers(0, 200))
def test_with_any_skew_each_file_gets_a_shard_and_each_shard_a_file(sizes: list[int], more: int) -> None:
    files = [(f"f{i}", size) for i, size in enumerate(sizes)]
    shares = blend.divide_shards_by_size(files, len(files) + more)
    assert sum(shares) == len(files) + more
    assert min(shares) >= 1
    for i, j in ((i, j) for i in range(len(files)) for j in range(len(files)) if shares[j] > 1):
        # With one shard fewer, the shards of file j would be at least as large as the shards of file i.
        assert sizes[j] * shares[i] >= sizes[i] * (shares[j] - 1)


def test_too_many_or_too_few_files_are_refused() -> None:
    with raises(ConfigError, "num_shards"):
        blend.assign_by_size([("a", 1)], 2)
    with raises(ConfigError, "num_shards"):
        blend.divide_shards_by_size([("a", 1), ("b", 1)], 1)


def test_a_sample_is_reproducible_and_different_for_each_dataset() -> None:
    kept = blend.sample_shards(100, dataset="code", percent=10)
    assert kept == blend.sample_shards(100, dataset="code", percent=10)
    assert len(kept) == len(set(kept)) == 10
    assert kept == sorted(kept)
    assert kept != blend.sample_shards(100, dataset="web", percent=10)
    assert kept != blend.sample_shards(100, dataset="code", percent=10, seed=1)
    assert len(blend.sample_shards(100, dataset="code", count=7)) == 7
    assert len(blend.sample_shards(3, dataset="code", percent=0.1)) == 1
    assert blend.sample_shards(3, dataset="code", count=99) == [0, 1, 2]
    assert blend.sample_shards(3, dataset="code") == [0, 1, 2]


def test_held_out_shards_are_in_one_split_each_and_training_keeps_some() -> None:
    splits = blend.split_shards([0, 2, 3, 5, 9], dataset="code", valid=1, test=2)
    assert sorted(i for members in splits.values() for i in members) == [0, 2, 3, 5, 9]
    assert {name: len(members) for name, members in splits.items()} == {"train": 2, "valid": 1, "test": 2}
    with raises(ConfigError, "code", 3):
        blend.split_shards([0, 1, 2], dataset="code", valid=1, test=2)


def test_shares_sum_to_one_and_weight_zero_has_none() -> None:
    assert blend.normalize_weights({"a": 3, "b": 1, "c": 0}) == {"a": 0.75, "b": 0.25}
    with raises(ConfigError, "positive"):
        blend.normalize_weights({"a": 0.0})


def test_epochs_follow_from_the_weights_and_the_available_tokens() -> None:
    small, large = blend.compute_outlooks({"small": 0.5, "large": 0.5}, {"small": 100, "large": 900})
    assert (small.epochs, large.epochs) == (5.0, 500 / 900)
    assert small.realizable == 0.5
    small, large = blend.compute_outlooks({"small": 0.5, "large": 0.5}, {"small": 100, "large": 900}, max_epochs=1)
    assert small.realizable == pytest.approx(100 / 600)
    small, _ = blend.compute_outlooks({"small": 0.5, "large": 0.5}, {"small": 100, "large": 900}, train_tokens=100)
    assert small.epochs == 0.5
    empty, _ = blend.compute_outlooks({"empty": 0.5, "large": 0.5}, {"empty": 0, "large": 900})
    assert (empty.realizable, empty.epochs) == (0.0, float("inf"))


@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=50), st.floats(0.001, 1))
def test_shards_of_a_dataset_share_its_weight_by_tokens(tokens: list[int], share: float) -> None:
    weights = blend.divide_share(share, tokens)
    assert sum(weights) == pytest.approx(share)
    assert all(w / t == pytest.approx(share / sum(tokens)) for w, t in zip(weights, tokens, strict=True))


def test_empty_shards_have_no_weight() -> None:
    with raises(ConfigError, "empty"):
        blend.divide_share(1.0, [3, 0])


def test_whole_shards_approximate_the_shares_as_well_as_possible() -> None:
    rows = {"big": [10] * 10, "small": [5, 5]}
    assert blend.choose_whole_shards(rows, {"big": 0.5, "small": 0.5}) == {"big": [0], "small": [0, 1]}
    assert blend.choose_whole_shards(rows, {"big": 0.8, "small": 0.2}) == {"big": [0, 1, 2, 3], "small": [0, 1]}


def test_drift_is_the_largest_difference_and_counts_missing_datasets() -> None:
    assert blend.measure_drift({"a": 0.5, "b": 0.5}, {"a": 0.4, "b": 0.6}) == pytest.approx(0.1)
    assert blend.measure_drift({"a": 0.5, "b": 0.5}, {"a": 1.0}) == 0.5
    assert blend.measure_drift({}, {}) == 0.0


def test_records_are_repeated_by_their_weight_relative_to_the_smallest() -> None:
    assert blend.compute_repeats({"a": 0.1, "b": 0.3, "c": 0.0}) == {"a": 1, "b": 3}
    assert blend.compute_repeats({"a": 2, "b": 5}) == {"a": 1, "b": 2}
    with raises(ConfigError, 101):
        blend.compute_repeats({"a": 1, "b": 101})


def test_shares_of_records_refer_to_read_records() -> None:
    assert blend.compute_record_shares({"a": 10, "b": 30}, {"a": 3, "b": 1}) == {"a": 0.5, "b": 0.5}
    assert blend.compute_record_shares({"a": 0, "b": 0}, {"a": 3, "b": 1}) == {"a": 0.0, "b": 0.0}
