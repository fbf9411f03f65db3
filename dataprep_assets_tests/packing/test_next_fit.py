"""Tests of `dataprep_assets.packing.next_fit.concat_then_split`; `next_fit` is tested with its family."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.errors import ConfigError
from dataprep_assets.packing.bins import Segments
from dataprep_assets.packing.next_fit import concat_then_split
from dataprep_assets_tests.packing.excerpt import select_bins


def list_tokens_by_bin(segments: Segments) -> list[list[tuple[int, int]]]:
    """Return each bin as a list of `(item, index in the item)` of its tokens."""
    found = []
    for at in range(len(segments)):
        one = select_bins(segments, at, at + 1)
        parts = zip(one.items.tolist(), one.starts.tolist(), one.stops.tolist(), strict=True)
        found.append([(item, token) for item, start, stop in parts for token in range(start, stop)])
    return found


@given(lengths=st.lists(st.integers(1, 40), max_size=30), capacity=st.integers(1, 30))
def test_bins_are_the_concatenation_split_every_capacity_tokens(lengths: list[int], capacity: int) -> None:
    segments = concat_then_split(np.array(lengths, np.int64), capacity)
    stream = [(item, token) for item, length in enumerate(lengths) for token in range(length)]
    cut = [stream[start : start + capacity] for start in range(0, len(stream), capacity)]
    assert list_tokens_by_bin(segments) == cut
    assert (segments.starts < segments.stops).all()
    # An item never has two pieces in one bin, because these would be two segments of one document.
    for at in range(len(segments)):
        items = select_bins(segments, at, at + 1).items
        assert len(set(items.tolist())) == items.size


def test_no_items_give_no_bins() -> None:
    segments = concat_then_split(np.array([], np.int64), 8)
    assert len(segments) == 0
    assert segments.offsets.tolist() == [0]


def test_an_item_may_be_longer_than_many_bins() -> None:
    segments = concat_then_split(np.array([1, 10**6]), 1000)
    assert len(segments) == 1001
    assert (segments.starts[:3].tolist(), segments.stops[:3].tolist()) == ([0, 0, 999], [1, 999, 1999])


@pytest.mark.parametrize(("lengths", "capacity"), [([1, 0], 4), ([-1], 4), ([1], 0), ([1.5], 4)])
def test_items_that_cannot_be_concatenated_are_refused(lengths: list[int], capacity: int) -> None:
    with pytest.raises(ConfigError):
        concat_then_split(np.array(lengths), capacity)
