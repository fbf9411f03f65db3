"""Hashes of slices equal the hashes of the library."""

import random

import numpy as np
import xxhash

from dataprep_assets.tokenization.short_hashes import hash_slices


def test_hashes_of_slices_of_every_size_equal_the_library() -> None:
    draw = random.Random(3)
    data = draw.randbytes(2_000) + bytes(20) + b"\xff" * 20
    starts = np.array(
        [draw.randrange(len(data) - 20) for _ in range(3_000)] + [len(data) - size for size in range(1, 20)]
    )
    ends = np.minimum(starts + np.array([draw.randint(1, 20) for _ in starts]), len(data))
    expected = [xxhash.xxh3_64_intdigest(data[start:end]) for start, end in zip(starts, ends, strict=True)]
    assert hash_slices(data, starts, ends).tolist() == expected
    assert set((ends - starts).tolist()) == set(range(1, 21))


def test_no_slices_have_no_hashes() -> None:
    no_positions = np.zeros(0, np.int64)
    for data in (b"", b"ab"):
        assert hash_slices(data, no_positions, no_positions).tolist() == []
