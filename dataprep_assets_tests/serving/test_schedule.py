"""The schedule is one pure function, so start, swap and restart cannot disagree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.window.schedule import Schedule
from dataprep_assets_tests.messages import raises


@given(st.integers(1, 40), st.integers(1, 500), st.integers(0, 10**7))
def test_every_step_has_one_shard_and_the_swap_step_has_the_next(shards: int, steps: int, step: int) -> None:
    schedule = Schedule(shards=shards, steps_per_shard=steps)
    shard = schedule.shard(step)
    assert 0 <= shard < shards
    assert schedule.shard(schedule.swap_step(step)) == schedule.next_shard(step) == (shard + 1) % shards
    assert schedule.shard(schedule.swap_step(step) - 1) == shard
    assert schedule.epoch(step) == step // (steps * shards)
    number, count = schedule.sample_steps(step)
    assert 0 <= number < count == steps


def test_a_restart_at_shard_4_continues_with_5() -> None:
    """Upstream's counter is not set at a start, so its next swap activates shard 1.

    See docs/formats/shard-window.md#restart.
    """
    schedule = Schedule(shards=10, steps_per_shard=455)
    assert schedule.shard(4 * 455 + 3) == 4
    assert schedule.next_shard(4 * 455 + 3) == 5


def test_a_start_beyond_the_last_shard_wraps_around() -> None:
    """Upstream does not reduce the start index, and requests a shard that does not exist.

    See docs/formats/shard-window.md#other-faults.
    """
    assert Schedule(shards=10, steps_per_shard=455).shard(10 * 455) == 0


def test_invalid_numbers_are_refused() -> None:
    for shards, steps in ((0, 1), (1, 0)):
        with raises(ConfigError, 1):
            Schedule(shards=shards, steps_per_shard=steps)
    with raises(ConfigError, -1):
        Schedule(shards=1, steps_per_shard=1).shard(-1)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_divide_a_step_and_together_read_the_same_for_any_number(world_size: int) -> None:
    schedule, count = Schedule(shards=3, steps_per_shard=5), 23
    turn = []
    for step in range(5, 10):
        together = [schedule.samples(step, count, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert sorted(k for own in together for k in own) == list(range(step - 5, count, 5))
        turn += [int(k) for own in together for k in own]
    assert sorted(turn) == list(range(count))


def test_a_rank_beyond_the_last_is_refused() -> None:
    with raises(ConfigError, 2):
        Schedule(shards=1, steps_per_shard=1).samples(0, 4, rank=2, world_size=2)
