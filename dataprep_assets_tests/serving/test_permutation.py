"""The keyed permutation is a permutation for every size, uniform over keys, and invertible."""

import itertools
from collections import Counter
from math import factorial, sqrt

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.sampler.source_order import LARGEST, Permutation
from dataprep_assets_tests.messages import raises

KEYS = 12_000


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 8, 9, 10, 99, 100, 101, 1000, 65_535, 65_536, 65_537])
def test_it_is_a_permutation_with_an_inverse(size: int) -> None:
    permutation, numbers = Permutation(size, "seed", size), np.arange(size)
    found = permutation(numbers)
    assert np.array_equal(np.sort(found), numbers)
    assert np.array_equal(permutation.invert(found), numbers)


@pytest.mark.parametrize("size", [10**9, 2**40 + 1, LARGEST])
def test_large_sizes_stay_in_range_and_are_invertible(size: int) -> None:
    numbers = np.unique(np.random.default_rng(0).integers(0, size, 10_000))
    permutation = Permutation(size, 7)
    found = permutation(numbers)
    assert found.min() >= 0
    assert found.max() < size
    assert len(np.unique(found)) == len(numbers)
    assert np.array_equal(permutation.invert(found), numbers)


@pytest.mark.parametrize("size", [2, 5])
def test_every_order_of_a_few_numbers_is_equally_likely(size: int) -> None:
    found = Counter(tuple(Permutation(size, "order", key)(np.arange(size)).tolist()) for key in range(KEYS))
    orders = factorial(size)
    chi = sum((found[one] - KEYS / orders) ** 2 / (KEYS / orders) for one in itertools.permutations(range(size)))
    assert (chi - (orders - 1)) / sqrt(2 * (orders - 1)) < 4


@pytest.mark.parametrize("size", [60])
def test_positions_and_distances_of_neighbors_are_uniform(size: int) -> None:
    places, apart, keys = np.zeros((size, size)), np.zeros(size), 200 * size
    for key in range(keys):
        found = Permutation(size, "place", key)(np.arange(size))
        places[np.arange(size), found] += 1
        apart += np.bincount((found[1:] - found[:-1]) % size, minlength=size)
    expected, degrees = keys / size, (size - 1) ** 2
    chi = float(((places - expected) ** 2 / expected).sum())
    assert abs(chi - degrees) / sqrt(2 * degrees) < 4
    assert apart[0] == 0
    assert np.abs(apart[1:] - keys).max() < 5 * sqrt(keys)


def test_neighbors_of_a_large_range_are_far_apart() -> None:
    found = Permutation(10**9, "far")(np.arange(100_000))
    share = np.histogram(found, 64, (0, 10**9))[0] / 100_000
    assert abs(share * 64 - 1).max() < 0.15
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.02


def test_another_key_gives_another_order() -> None:
    numbers = np.arange(1000)
    same, other = Permutation(1000, 1, "a")(numbers), Permutation(1000, 1, "b")(numbers)
    assert np.array_equal(same, Permutation(1000, 1, "a")(numbers))
    assert (same == other).mean() < 0.01


def test_the_order_equals_that_of_earlier_versions() -> None:
    """A changed order would repeat and lose samples in every active run."""
    assert Permutation(10, 0, "books", 0, 0)(np.arange(10)).tolist() == [3, 5, 0, 6, 1, 9, 2, 7, 8, 4]
    assert Permutation(10**12, 3, "web", 1, 2)(np.arange(3)).tolist() == [976300446117, 782361667683, 488762759956]


def test_a_size_above_the_maximum_is_refused() -> None:
    with raises(ConfigError, 0, "2**62"):
        Permutation(LARGEST + 1)
