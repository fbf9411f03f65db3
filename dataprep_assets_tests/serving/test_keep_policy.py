"""The evictions of a policy, and limits that are refused before any download."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.window.keep_policy import CacheLimit, check_keep, choose_victims, has_room
from dataprep_assets_tests.messages import raises


@pytest.mark.parametrize(
    ("keep", "sizes"),
    [(1, [5, 5]), (0, [5]), (True, [5]), (CacheLimit(9), [5, 5]), (CacheLimit(4), [5]), (CacheLimit(11), [2, 6, 6])],
)
def test_a_limit_smaller_than_required_is_an_error(keep: Any, sizes: list[int]) -> None:
    with raises(ConfigError, "keep"):
        check_keep(keep, sizes)


@pytest.mark.parametrize(
    ("keep", "sizes"), [("all", [5, 5]), (2, [5, 5]), (1, [5]), (CacheLimit(10), [5, 5]), (CacheLimit(12), [2, 6, 6])]
)
def test_a_limit_that_is_exactly_enough_works(keep: Any, sizes: list[int]) -> None:
    check_keep(keep, sizes)


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)), st.integers(0, 9), st.integers(2, 6))
def test_victims_are_never_held_and_free_enough_space_if_possible(
    present: set[int], held: set[int], wanted: int, keep: int
) -> None:
    sizes = dict.fromkeys(present, 5)
    chosen = choose_victims(keep, sizes, 5, held_shards=held, needed_shard=wanted, shards=10)
    assert not set(chosen) & (held | {wanted})
    left = {i: 5 for i in present if i != wanted and i not in chosen}
    assert has_room(keep, left, 5) or set(left) <= held


def test_the_shard_needed_last_is_evicted_first() -> None:
    present = dict.fromkeys([1, 2, 6, 9], 5)
    assert choose_victims(2, present, 5, held_shards={1}, needed_shard=3, shards=10) == [2, 9, 6]
    assert choose_victims(CacheLimit(20), present, 5, held_shards={1}, needed_shard=3, shards=10) == [2]
    assert choose_victims("all", present, 5, held_shards=set(), needed_shard=3, shards=10) == []
