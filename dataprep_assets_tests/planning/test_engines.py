"""Engines are compared by their overhead for the same work."""

import pytest

from dataprep_assets.cli.plan import OVERHEADS, estimate_engine_seconds, format_engine_table
from dataprep_assets.execution.pool import ENGINES
from dataprep_assets.planning.cost import Cost, Machine, SplitSizes, compute_cost

MACHINE = Machine(cores=16, bandwidth=125e6)


def of_shards(count: int, size: int, machine: Machine = MACHINE) -> Cost:
    sizes = (size,) * count
    return compute_cost([SplitSizes(split="train", files=sizes, shards=sizes, mirrored=False)], machine)


def test_every_engine_is_compared_with_the_processes_of_the_plan() -> None:
    found = of_shards(2_000, 1_000)
    assert set(OVERHEADS) == set(ENGINES)
    assert estimate_engine_seconds(found, MACHINE, "processes") == found.seconds


def test_ray_costs_one_start_per_tiny_shard_and_almost_nothing_for_default_shards() -> None:
    tiny, usual = of_shards(2_000, 1_000), of_shards(900, 1_000_000_000)
    more = estimate_engine_seconds(tiny, MACHINE, "ray") - tiny.seconds
    a_shard = OVERHEADS["ray"].shard_seconds - OVERHEADS["processes"].shard_seconds
    a_run = OVERHEADS["ray"].run_seconds - OVERHEADS["processes"].run_seconds
    assert more == pytest.approx(2_000 * a_shard / 16 + 40 * a_run)
    for engine in OVERHEADS:
        assert estimate_engine_seconds(usual, MACHINE, engine) < 1.05 * usual.seconds


def test_one_shard_uses_one_core_and_concurrent_runs_share_the_starts() -> None:
    one = of_shards(1, 1_000)
    a_shard = OVERHEADS["ray"].shard_seconds - OVERHEADS["processes"].shard_seconds
    a_run = OVERHEADS["ray"].run_seconds - OVERHEADS["processes"].run_seconds
    assert estimate_engine_seconds(one, MACHINE, "ray") - one.seconds == pytest.approx(a_shard + a_run)
    two = Machine(cores=16, bandwidth=125e6, runs_at_a_time=2)
    found = of_shards(200, 1_000, two)
    ray = OVERHEADS["ray"].run_seconds - OVERHEADS["processes"].run_seconds
    every = 200 * (OVERHEADS["ray"].shard_seconds - OVERHEADS["processes"].shard_seconds) / 16
    assert estimate_engine_seconds(found, two, "ray") - found.seconds == pytest.approx(4 / 2 * ray + every)


def test_the_table_has_a_line_per_engine_with_its_time_and_overhead() -> None:
    lines = format_engine_table(of_shards(50, 1_000_000_000), MACHINE).splitlines()
    assert [line.split()[1] for line in lines] == list(OVERHEADS)
    assert all(" overhead: " in line and line.endswith(" ms of CPU time per shard") for line in lines)
