"""The plan predicts the window's behavior: whether it stalls, its requirements, and possible remedies."""

from types import SimpleNamespace
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.window.keep_policy import CacheLimit
from dataprep_assets.serving.window.plan import WindowPlan, plan_window

GB = 10**9


class Sized:
    """A release of shards with these sizes and without tokens."""

    def __init__(self, sizes: list[int]) -> None:
        self._shards = [SimpleNamespace(bytes=size) for size in sizes]

    def shards_of(self, prefix: str) -> list[SimpleNamespace]:
        return self._shards


def planned(sizes: list[int], **changes: Any) -> WindowPlan:
    options: dict[str, Any] = {
        "disk_bytes": 10_000 * GB,
        "bandwidth": 0.5 * GB,
        "verify_bandwidth": 1.0 * GB,
        "step_seconds": 10.0,
        "steps_per_shard": 455,
    }
    return plan_window(Sized(sizes), **(options | changes))  # type: ignore[arg-type]


def test_the_published_dimensions_do_not_stall_at_four_gigabit() -> None:
    plan = planned([430 * GB] * 14, keep=2)
    assert not plan.stalls
    assert plan.disk_bytes == 860 * GB
    assert plan.first_wait_seconds == pytest.approx(430 / 0.5 + 430)
    assert plan.fetched_bytes == 28 * 430 * GB
    assert "never waits" in plan.summary
    assert plan.advice == ()


def test_a_slow_line_stalls_and_the_required_bandwidth_is_exactly_enough() -> None:
    plan = planned([430 * GB] * 14, keep=2, bandwidth=0.05 * GB)
    assert plan.stalls
    assert plan.stalled_swaps == plan.swaps == 27
    assert plan.stall_seconds == pytest.approx(430 / 0.05 + 430 - 4550)
    assert not planned([430 * GB] * 14, keep=2, bandwidth=plan.needed_bandwidth * 1.0001).stalls
    assert planned([430 * GB] * 14, keep=2, bandwidth=plan.needed_bandwidth * 0.999).stalls
    steps = int(plan.advice[1].split("at least ")[1].split()[0])
    assert not planned([430 * GB] * 14, keep=2, bandwidth=0.05 * GB, steps_per_shard=steps).stalls
    assert planned([430 * GB] * 14, keep=2, bandwidth=0.05 * GB, steps_per_shard=steps - 1).stalls
    assert "keep='all'" in plan.advice[2]


def test_kept_shards_are_not_downloaded_in_the_second_epoch() -> None:
    plan = planned([430 * GB] * 4, keep="all", bandwidth=0.05 * GB)
    assert plan.fetched_bytes == 4 * 430 * GB
    assert plan.stalled_swaps == 3


def test_a_single_shard_is_downloaded_once_and_never_stalls() -> None:
    plan = planned([430 * GB], keep=1, bandwidth=0.01 * GB)
    assert not plan.stalls
    assert plan.needed_bandwidth == 0


def test_a_disk_that_is_too_small_is_reported_with_the_remedy() -> None:
    plan = planned([430 * GB] * 14, disk_bytes=1000 * GB)
    assert not plan.fits_disk
    assert plan.advice[0].startswith("Set keep=CacheLimit(1000000000000)")
    again = planned([430 * GB] * 14, disk_bytes=1000 * GB, keep=CacheLimit(1000 * GB))
    assert again.fits_disk
    tiny = planned([430 * GB] * 14, disk_bytes=500 * GB)
    assert "a release with smaller shards" in tiny.advice[0]


def test_steps_too_short_for_any_bandwidth_get_no_bandwidth_advice() -> None:
    plan = planned([430 * GB] * 14, keep=2, step_seconds=0.1)
    assert plan.needed_bandwidth == float("inf")
    assert not any("bandwidth" in line for line in plan.advice)


def test_impossible_values_are_refused() -> None:
    for wrong in ({"bandwidth": 0}, {"steps_per_shard": 0}, {"keep": 1}):
        with pytest.raises(ConfigError):
            planned([GB, GB], **wrong)
