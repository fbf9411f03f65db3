"""`dataprep plan`: estimate the cost of building a dataset from scratch."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name
from dataprep_assets.errors import count_of

if TYPE_CHECKING:
    from dataprep_assets.planning.cost import Cost, Machine

# The overhead of each engine was measured with `python -m dataprep_assets_tests.tools.bench.engines`.
# deploy/README.md#measured has the table.

_PROCESSES = "processes"


@dataclass(frozen=True, kw_only=True)
class EngineOverhead:
    """The time that an engine adds to the build of a dataset.

    Attributes:
        run_seconds: Seconds until a run's first worker starts its work.
        shard_seconds: Core seconds per shard, in addition to the work on the data.
    """

    run_seconds: float
    shard_seconds: float


OVERHEADS: Mapping[str, EngineOverhead] = {
    # Each shard of the measurement was one tiny file, and the machine had 2 idle cores. The value for Ray includes the
    # start of its cluster.
    _PROCESSES: EngineOverhead(run_seconds=0.3, shard_seconds=0.008),
    "ray": EngineOverhead(run_seconds=4.1, shard_seconds=0.018),
}
"""Overhead of each engine, by its name in `run_on`."""


def estimate_engine_seconds(cost: "Cost", machine: "Machine", engine: str) -> float:
    """Return the expected elapsed time of a build on an engine, in seconds, with the same cores.

    Args:
        cost: The cost of the build on processes of one machine.
        machine: The machine, whose cores share the shards, and whose concurrent runs share the starts.
        engine: A key of `OVERHEADS`.
    """
    engine_overhead, baseline = OVERHEADS[engine], OVERHEADS[_PROCESSES]
    # Concurrent runs start at the same time, and cores share the shards. A shard uses only one core, so more cores than
    # shards do not help.
    starts = cost.runs / machine.runs_at_a_time
    shards = cost.shards / min(machine.cores, max(cost.shards, 1))
    extra = starts * (engine_overhead.run_seconds - baseline.run_seconds) + shards * (
        engine_overhead.shard_seconds - baseline.shard_seconds
    )
    return cost.seconds + extra


def format_engine_table(cost: "Cost", machine: "Machine") -> str:
    """Return a line per engine: the expected time on it with the same cores, and its overhead."""
    from dataprep_assets.planning.cost import format_seconds

    lines = []
    for engine, engine_overhead in OVERHEADS.items():
        lines.append(
            f"{f'on {engine}':<15}{format_seconds(estimate_engine_seconds(cost, machine, engine))}   "
            f"overhead: {engine_overhead.run_seconds:.1f} s per run, "
            f"{engine_overhead.shard_seconds * 1000:,.0f} ms of CPU time per shard"
        )
    return "\n".join(lines)


def command(
    dataset: Name,
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="Assume N cores in total, across all machines. [default: the cores of this machine]"),
    ] = None,
    # 125e6 bytes per second is 1 Gbit/s.
    bandwidth: Annotated[
        float, typer.Option(help="Assume this network bandwidth to the source and the storage, in bytes per second.")
    ] = 125e6,
    runs_at_a_time: Annotated[int, typer.Option(min=1, help="Assume that N runs build shards at the same time.")] = 1,
    json_: AsJson = False,
) -> int:
    """Estimate the cost of building a dataset from scratch: shards, time, disk space and requests."""
    from dataprep_assets.engine.privacy import load_privacy
    from dataprep_assets.planning.cost import Machine, format_cost

    open_dataset = project.open_dataset(dataset)
    machine = Machine(cores=cores or len(os.sched_getaffinity(0)), bandwidth=bandwidth, runs_at_a_time=runs_at_a_time)
    costs = open_dataset.component.cost(open_dataset.store, machine)
    privacy = load_privacy(open_dataset.component.declaration, open_dataset.store)
    if json_:
        engines = {engine: round(estimate_engine_seconds(costs.cost, machine, engine), 1) for engine in OVERHEADS}
        amounts = {**costs.cost.to_json(), "seconds_on": engines, "rates_measured_on": costs.measured}
        print(json.dumps({"dataset": dataset, "machine": asdict(machine), **privacy.public_amounts(amounts)}))
        return 0
    rates_origin = (
        f"measured on {count_of(costs.measured, 'finished shard')}" if costs.measured else "from the benchmark"
    )
    rates = f"rates          {rates_origin}; the cost is for a build from scratch"
    project.print_unless_private(
        [format_cost(dataset, costs.cost, machine), format_engine_table(costs.cost, machine), rates],
        f"{dataset}: costs estimated",
    )
    return 0
