"""In the mixture, after any number of samples every source is less than one sample away from its share."""

import numpy as np
import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.sampler.mixture import PLACES, Mixture, round_shares
from dataprep_assets_tests.messages import raises


@pytest.mark.parametrize("sources", [1, 2, 3, 7, 16, 40, 200])
@pytest.mark.parametrize("kind", ["even", "random", "steep"])
def test_every_prefix_is_within_one_sample_of_the_shares(sources: int, kind: str) -> None:
    random = np.random.default_rng(sources)
    weights = {
        "even": np.ones(sources),
        "random": random.dirichlet(np.ones(sources)) + 1e-4,
        "steep": np.maximum(0.5 ** np.arange(sources), 3e-5),
    }[kind]
    found = round_shares(list(weights))
    mixture = Mixture(found)
    counts = (mixture.table[:, None] == np.arange(sources)).cumsum(axis=0)
    off = np.abs(counts - np.arange(1, PLACES + 1)[:, None] * np.array(found) / PLACES)
    assert off.max() < 1
    assert counts[-1].tolist() == found


def test_the_source_of_a_sample_and_the_sample_of_a_source_are_inverse() -> None:
    mixture = Mixture(round_shares([5, 1, 0.01]))
    samples = np.concatenate([np.arange(1000), np.random.default_rng(0).integers(0, 10**12, 1000)])
    source, ordinal = mixture.locate(samples)
    for number in range(3):
        mine = source == number
        assert np.array_equal(mixture.find_sample_numbers(number, ordinal[mine]), samples[mine])
    every = mixture.locate(np.arange(3 * PLACES + 77))[0]
    for upto in (0, 1, 77, PLACES, 3 * PLACES + 77):
        assert mixture.count_samples(upto) == np.bincount(every[:upto], minlength=3).tolist()


def test_shares_sum_to_the_total_and_are_the_nearest_integers() -> None:
    found = round_shares([1, 1, 1])
    assert sum(found) == PLACES
    assert max(abs(share - PLACES / 3) for share in found) < 1


def test_a_source_that_is_never_read_is_refused() -> None:
    with raises(ConfigError, 2, "0.0066", 65_536):
        round_shares([1, 1e-7])
    with raises(ConfigError, 65536):
        Mixture([65_535])
