"""Lengths to pack: random ones from hypothesis, realistic ones, and difficult ones."""

import math

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray


@st.composite
def draw_packable(draw: st.DrawFn) -> tuple[list[int], int]:
    """Draw `(lengths, capacity)`; cases with few and with many different lengths are equally frequent."""
    capacity = draw(st.integers(1, 60))
    pool = st.sampled_from(draw(st.lists(st.integers(1, capacity), min_size=1, max_size=4)))
    return draw(st.lists(draw(st.sampled_from([pool, st.integers(1, capacity)])), max_size=80)), capacity


def make_realistic(count: int, *, capacity: int, mean: float = 500, seed: int = 0) -> NDArray[np.int64]:
    """Return log-normal lengths that have this mean before they are clipped to 1..capacity."""
    drawn = np.random.default_rng(seed).lognormal(math.log(mean) - 0.5, 1.0, count)
    return np.clip(drawn.astype(np.int64), 1, capacity)


AWKWARD: dict[str, tuple[list[int], int]] = {
    "nothing": ([], 10),
    "one": ([7], 10),
    "capacity 1": ([1] * 9, 1),
    "all full": ([10] * 9, 10),
    "all equal, some fit": ([3] * 50, 10),
    "all equal, rest in every bin": ([4] * 50, 10),
    "just above half": (list(range(51, 101)), 100),
    "halves and just below": ([50, 49, 51] * 20, 100),
    "ones last": ([6] * 20 + [4] * 10 + [1] * 45, 10),
    "ones first": ([1] * 45 + [4] * 10 + [6] * 20, 10),
    # Johnson's example: first fit uses 17 bins where 10 are enough.
    "first fit at its worst": ([6] * 7 + [10] * 7 + [16] * 3 + [34] * 10 + [51] * 10, 101),
    # First-fit-decreasing uses 11 bins where 9 are enough.
    "decreasing at its worst": ([51] * 6 + [27] * 6 + [26] * 6 + [23] * 12, 100),
    "rising": (list(range(1, 101)), 100),
    "falling": (list(range(100, 0, -1)), 100),
    "powers of two": ([2**i for i in range(10)] * 7, 512),
    "wide capacity": ([2**31 - 1, 2**30, 2**30, 5, 2**30 - 5], 2**31 - 1),
}
