"""Claims about `dataprep_assets.packing.next_fit.concat_then_split`; `next_fit` is tested with its family."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.errors import ConfigError
from dataprep_assets.packing.bins import Segments
from dataprep_assets.packing.next_fit import concat_then_split
from dataprep_assets_tests.packing.excerpt import bins_between


def tokens_by_bin(segments: Segments) -> list[list[tuple[int, int]]]:
    """Each bin as `(item, index in the item)` of its tokens."""
    found = []
    for at in range(len(segments)):
        one = bins_between(segments, at, at + 1)
        parts = zip(one.items.tolist(), one.starts.tolist(), one.stops.tolist(), strict=True)
        found.append([(item, token) for item, start, stop in parts for token in range(start, stop)])
    return found


@given(lengths=st.lists(st.integers(1, 40), max_size=30), capacity=st.integers(1, 30))
def test_bins_are_the_concatenation_cut_every_capacity_tokens(lengths: list[int], capacity: int) -> None:
    segments = concat_then_split(np.array(lengths, np.int64), capacity)
    stream = [(item, token) for item, length in enumerate(lengths) for token in range(length)]
    cut = [stream[start : start + capacity] for start in range(0, len(stream), capacity)]
    assert tokens_by_bin(segments) == cut
    assert (segments.starts < segments.stops).all()
    # An item is never in two pieces of one bin: that would be two segments where there is one document.
    for at in range(len(segments)):
        items = bins_between(segments, at, at + 1).items
        assert len(set(items.tolist())) == items.size


def test_nothing_has_no_bins() -> None:
    segments = concat_then_split(np.array([], np.int64), 8)
    assert len(segments) == 0
    assert segments.offsets.tolist() == [0]


def test_an_item_may_be_longer_than_many_bins() -> None:
    segments = concat_then_split(np.array([1, 10**6]), 1000)
    assert len(segments) == 1001
    assert (segments.starts[:3].tolist(), segments.stops[:3].tolist()) == ([0, 0, 999], [1, 999, 1999])


@pytest.mark.parametrize(("lengths", "capacity"), [([1, 0], 4), ([-1], 4), ([1], 0), ([1.5], 4)])
def test_what_cannot_be_concatenated_is_refused(lengths: list[int], capacity: int) -> None:
    with pytest.raises(ConfigError):
        concat_then_split(np.array(lengths), capacity)
