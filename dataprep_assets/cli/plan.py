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

# Overhead of the engines, so that `dataprep plan` can compare them for one dataset.
#
# Measured by `python -m dataprep_assets_tests.tools.bench.engines`; deploy/README.md#measured has the table.

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
    # measured with tiny shards of one file on 2 idle cores; the start of Ray's cluster is included
    _PROCESSES: EngineOverhead(run_seconds=0.3, shard_seconds=0.008),
    "ray": EngineOverhead(run_seconds=4.1, shard_seconds=0.018),
}
"""Overhead of each engine, by its name in `run_on`."""


def engine_seconds(found: "Cost", machine: "Machine", engine: str) -> float:
    """Return the expected elapsed time of a build on an engine, in seconds, with the same cores.

    Args:
        found: The cost of the build on processes of one machine.
        machine: The machine, whose cores share the shards, and whose concurrent runs share the starts.
        engine: A key of `OVERHEADS`.
    """
    own, baseline = OVERHEADS[engine], OVERHEADS[_PROCESSES]
    # concurrent runs share the starts, and cores share the shards, but each shard uses only one core
    starts = found.runs / machine.runs_at_a_time
    shards = found.shards / min(machine.cores, max(found.shards, 1))
    extra = starts * (own.run_seconds - baseline.run_seconds) + shards * (own.shard_seconds - baseline.shard_seconds)
    return found.seconds + extra


def engine_table(found: "Cost", machine: "Machine") -> str:
    """Return a line per engine: the expected time on it with the same cores, and its overhead."""
    from dataprep_assets.planning.cost import format_seconds

    lines = []
    for engine, own in OVERHEADS.items():
        lines.append(
            f"{f'on {engine}':<15}{format_seconds(engine_seconds(found, machine, engine))}   "
            f"a run begins after {own.run_seconds:.1f} s, a shard costs {own.shard_seconds * 1000:,.0f} ms of a core"
        )
    return "\n".join(lines)


def command(
    dataset: Name,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Cores of all machines together. [default: the cores of this machine]")
    ] = None,
    # the default is 1 Gbit/s
    bandwidth: Annotated[
        float, typer.Option(help="Network bandwidth to source and bucket, in bytes per second.")
    ] = 125e6,
    runs_at_a_time: Annotated[int, typer.Option(min=1, help="Number of batches that run at the same time.")] = 1,
    json_: AsJson = False,
) -> int:
    """Estimate the cost of building a dataset from scratch: shards, time, disk, requests."""
    from dataprep_assets.engine.privacy import privacy_of
    from dataprep_assets.planning.cost import Machine, table

    open_dataset = project.open_dataset(dataset)
    machine = Machine(cores=cores or len(os.sched_getaffinity(0)), bandwidth=bandwidth, runs_at_a_time=runs_at_a_time)
    costs = open_dataset.component.cost(open_dataset.store, machine)
    privacy = privacy_of(open_dataset.component.declaration, open_dataset.store)
    if json_:
        engines = {engine: round(engine_seconds(costs.cost, machine, engine), 1) for engine in OVERHEADS}
        amounts = {**costs.cost.to_json(), "seconds_on": engines, "rates_measured_on": costs.measured}
        print(json.dumps({"dataset": dataset, "machine": asdict(machine), **privacy.amounts(amounts)}))
        return 0
    rates_origin = (
        f"measured on {count_of(costs.measured, 'finished shard')}" if costs.measured else "from the benchmark"
    )
    rates = f"rates          {rates_origin}; the cost is for a build from scratch"
    project.tell([table(dataset, costs.cost, machine), engine_table(costs.cost, machine), rates], f"{dataset}: planned")
    return 0
