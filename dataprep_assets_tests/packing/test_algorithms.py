"""Tests of `dataprep_assets.packing.algorithms` and its parts: one property for the whole family."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.errors import ConfigError
from dataprep_assets.packing.algorithms import ALGORITHMS, Algorithm, pack_items
from dataprep_assets.packing.bins import measure_fill
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.packing import textbook
from dataprep_assets_tests.packing.excerpt import select_bins, to_lists
from dataprep_assets_tests.packing.lengths import AWKWARD, draw_packable, make_realistic

SEED = 42


def find_expected(algorithm: Algorithm, lengths: list[int], capacity: int) -> list[list[int]]:
    given_order = range(len(lengths))
    if algorithm == "concatenative":
        return textbook.next_fit(given_order, lengths, capacity)
    if algorithm == "first_fit_shuffle":
        order = np.argsort(np.random.PCG64(SEED).random_raw(len(lengths)), kind="stable").tolist()
        return textbook.first_fit(order, lengths, capacity)
    scan = textbook.first_fit if algorithm.startswith("first_fit") else textbook.best_fit
    return scan(
        textbook.sort_decreasing(lengths) if algorithm.endswith("decreasing") else given_order, lengths, capacity
    )


def check(algorithm: Algorithm, lengths: list[int], capacity: int) -> None:
    bins = pack_items(np.array(lengths, np.int64), capacity, algorithm, seed=SEED)
    assert to_lists(bins) == find_expected(algorithm, lengths, capacity)
    assert sorted(bins.items.tolist()) == list(range(len(lengths)))
    assert bins.items.dtype == bins.offsets.dtype == np.int64


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(case=draw_packable())
def test_bins_equal_those_of_the_textbook_scan(algorithm: Algorithm, case: tuple[list[int], int]) -> None:
    check(algorithm, *case)


@pytest.mark.parametrize("case", AWKWARD)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_difficult_lengths_give_the_bins_of_the_textbook_scan(algorithm: Algorithm, case: str) -> None:
    check(algorithm, *AWKWARD[case])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_many_bins_equal_those_of_the_textbook_scan(algorithm: Algorithm) -> None:
    check(algorithm, make_realistic(3_000, capacity=1024).tolist(), 1024)
    check(algorithm, make_realistic(400, capacity=200_000, mean=30_000).tolist(), 200_000)


def test_the_worst_instances_need_as_many_bins_as_in_the_literature() -> None:
    lengths, capacity = AWKWARD["first fit at its worst"]
    assert (len(pack_items(np.array(lengths), capacity, "first_fit")), sum(lengths)) == (17, 10 * capacity)
    lengths, capacity = AWKWARD["decreasing at its worst"]
    assert (len(pack_items(np.array(lengths), capacity, "first_fit_decreasing")), sum(lengths)) == (11, 9 * capacity)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_integer_type_of_the_lengths_does_not_matter(algorithm: Algorithm) -> None:
    lengths = make_realistic(2_000, capacity=120, mean=30)
    wanted = pack_items(lengths, 120, algorithm)
    for dtype in ("u1", "<i4", ">u2", "u8"):
        found = pack_items(lengths.astype(dtype), 120, algorithm)
        assert np.array_equal(found.items, wanted.items)
        assert np.array_equal(found.offsets, wanted.offsets)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lengths_are_not_modified(algorithm: Algorithm) -> None:
    lengths = make_realistic(500, capacity=1024)
    lengths.flags.writeable = False
    pack_items(lengths, 1024, algorithm)


def test_a_shuffle_depends_only_on_its_seed() -> None:
    lengths = make_realistic(5_000, capacity=2048)
    found = [pack_items(lengths, 2048, "first_fit_shuffle", seed=seed) for seed in (7, 7, 8)]
    assert np.array_equal(found[0].items, found[1].items)
    assert not np.array_equal(found[0].items, found[2].items)
    for algorithm in ALGORITHMS:
        if algorithm != "first_fit_shuffle":
            assert np.array_equal(
                pack_items(lengths, 2048, algorithm, seed=1).items, pack_items(lengths, 2048, algorithm, seed=2).items
            )


def test_a_shuffle_is_equal_on_every_machine() -> None:
    lengths = np.arange(10_000) * 7919 % 2048 + 1
    bins = pack_items(lengths, 2048, "first_fit_shuffle", seed=42)
    digest = hashlib.sha256(bins.items.astype("<i8").tobytes() + bins.offsets.astype("<i8").tobytes())
    assert digest.hexdigest() == "c307ca2a2e0946275902fa7122d3194eeb94d7cc284e7def522ab2347b11badd"


@pytest.mark.parametrize("algorithm", ["first_fit_decreasing", "best_fit_decreasing"])
@pytest.mark.parametrize("capacity", [4096, 8192])
def test_decreasing_algorithms_fill_all_but_one_thousandth(algorithm: Algorithm, capacity: int) -> None:
    lengths = make_realistic(100_000, capacity=capacity)
    bins = pack_items(lengths, capacity, algorithm)
    assert measure_fill(bins, lengths, capacity) >= 0.999
    assert np.add.reduceat(lengths[bins.items], bins.offsets[:-1]).max() <= capacity


def test_fill_is_the_share_of_tokens() -> None:
    lengths = np.array([6, 5, 4])
    assert measure_fill(pack_items(lengths, 10, "first_fit"), lengths, 10) == 15 / 20
    assert measure_fill(pack_items(lengths[:0], 10, "first_fit"), lengths[:0], 10) == 1.0


@given(case=draw_packable(), data=st.data())
def test_selected_bins_are_bins_of_the_whole(case: tuple[list[int], int], data: st.DataObject) -> None:
    lengths, capacity = case
    bins = pack_items(np.array(lengths, np.int64), capacity, "best_fit")
    start = data.draw(st.integers(0, len(bins)))
    stop = data.draw(st.integers(start, len(bins)))
    assert to_lists(select_bins(bins, start, stop)) == to_lists(bins)[start:stop]


@pytest.mark.parametrize(
    ("lengths", "capacity", "values"),
    [
        (np.array([3, 0, 2]), 10, (1, 0, 10)),
        (np.array([3, 2, -4]), 10, (2, -4)),
        (np.array([11, 12]), 10, (0, 11)),
        (np.array([300], np.uint16), 10, (0, 300)),
        (np.array([2**63 + 5], np.uint64), 10, (0, 9_223_372_036_854_775_813)),
        (np.array([1.0, 2.0]), 10, ("1-d float64",)),
        (np.array([[1, 2]]), 10, ("2-d int64",)),
        (np.array([True]), 10, ("1-d bool",)),
        (np.array([1]), 0, (0,)),
        (np.array([1]), 2**31, (2147483648,)),
    ],
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lengths_that_cannot_be_packed_are_named(
    algorithm: Algorithm, lengths: Any, capacity: int, values: tuple[object, ...]
) -> None:
    with raises(ConfigError, *values):
        pack_items(lengths, capacity, algorithm)


def test_unknown_algorithms_and_negative_seeds_are_refused() -> None:
    with raises(ConfigError, "'last_fit'", *ALGORITHMS):
        pack_items(np.array([1]), 1, "last_fit")  # type: ignore[arg-type]
    with raises(ConfigError, -1):
        pack_items(np.array([1]), 1, "first_fit_shuffle", seed=-1)
