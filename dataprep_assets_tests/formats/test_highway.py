"""HighwayHash-64 against the values of its authors (google/highwayhash, `highwayhash/highwayhash_test.cc`)."""

import numpy as np
import pytest

from dataprep_assets.formats.highway import hash64

KEY = bytes(range(32))


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0x907A56DE22C26E53), (16, 0xCFAB3489F97EB832), (32, 0xA0C964D9ECD580FC)]
)
def test_hashes_are_those_of_the_authors(length: int, expected: int) -> None:
    assert hash64(np.arange(length, dtype=np.uint8)[None], KEY).tolist() == [expected]


@pytest.mark.parametrize("length", [16, 32, 64])
def test_many_messages_are_hashed_as_each_alone(length: int) -> None:
    messages = np.random.default_rng(1).integers(0, 256, (9, length), np.uint8)
    found = hash64(messages, KEY)
    assert [hash64(one[None], KEY)[0] for one in messages] == found.tolist()
    assert len(set(found.tolist())) == 9


def test_a_length_that_is_not_needed_is_refused() -> None:
    with pytest.raises(ValueError, match="messages of 17 bytes"):
        hash64(np.zeros((1, 17), np.uint8), KEY)
