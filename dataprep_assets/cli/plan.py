"""`dataprep plan`: what a dataset will cost to build from nothing."""

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

# What the engines cost beside the work itself, so that `dataprep plan` can compare them for one dataset.
#
# Measured by `python -m dataprep_assets_tests.tools.bench.engines`; deploy/README.md#measured has the table.

_PROCESSES = "processes"


@dataclass(frozen=True, kw_only=True)
class EngineOverhead:
    """What an engine adds to the work of a dataset, in seconds.

    `run_seconds`: until the first worker of a run has done something. `shard_seconds`: of a core, for a shard beside
    its data.
    """

    run_seconds: float
    shard_seconds: float


OVERHEADS: Mapping[str, EngineOverhead] = {
    # tiny shards of one file on 2 quiet cores; Ray's cluster begins with the run
    _PROCESSES: EngineOverhead(run_seconds=0.3, shard_seconds=0.008),
    "ray": EngineOverhead(run_seconds=4.1, shard_seconds=0.018),
}
"""By the name that `run_on` has for it."""


def engine_seconds(found: "Cost", machine: "Machine", engine: str) -> float:
    """Expected wall time (seconds) of a build on an engine, with the same cores.

    Args:
        found: What the build costs on processes of one machine.
        machine: Its cores share the shards, and runs at a time the starts.
        engine: One of `OVERHEADS`.
    """
    own, known = OVERHEADS[engine], OVERHEADS[_PROCESSES]
    # runs at a time share the starts; cores share the shards, but a shard has one core alone
    starts = found.runs / machine.runs_at_a_time
    shards = found.shards / min(machine.cores, max(found.shards, 1))
    more = starts * (own.run_seconds - known.run_seconds) + shards * (own.shard_seconds - known.shard_seconds)
    return found.seconds + more


def engine_table(found: "Cost", machine: "Machine") -> str:
    """A line for each engine: the expected time on it with the same cores, and what of it is the engine's own."""
    from dataprep_assets.planning.cost import shown_time

    lines = []
    for engine, own in OVERHEADS.items():
        lines.append(
            f"{f'on {engine}':<15}{shown_time(engine_seconds(found, machine, engine))}   "
            f"a run begins after {own.run_seconds:.1f} s, a shard costs {own.shard_seconds * 1000:,.0f} ms of a core"
        )
    return "\n".join(lines)


def command(
    dataset: Name,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Cores of all machines together. [default: the cores of this machine]")
    ] = None,
    # by default a gigabit a second
    bandwidth: Annotated[
        float, typer.Option(help="Network bandwidth to source and bucket, in bytes per second.")
    ] = 125e6,
    runs_at_a_time: Annotated[int, typer.Option(min=1, help="Number of batches that run at the same time.")] = 1,
    json_: AsJson = False,
) -> int:
    """Estimate the cost of building a dataset from scratch: shards, time, disk, requests."""
    from dataprep_assets.engine.privacy import privacy_of
    from dataprep_assets.planning.cost import Machine, table

    opened = project.open_dataset(dataset)
    machine = Machine(cores=cores or len(os.sched_getaffinity(0)), bandwidth=bandwidth, runs_at_a_time=runs_at_a_time)
    costs = opened.component.cost(opened.store, machine)
    privacy = privacy_of(opened.component.declaration, opened.store)
    if json_:
        engines = {engine: round(engine_seconds(costs.cost, machine, engine), 1) for engine in OVERHEADS}
        amounts = {**costs.cost.to_json(), "seconds_on": engines, "rates_measured_on": costs.measured}
        print(json.dumps({"dataset": dataset, "machine": asdict(machine), **privacy.amounts(amounts)}))
        return 0
    measured = f"measured on {count_of(costs.measured, 'finished shard')}" if costs.measured else "from the benchmark"
    rates = f"rates          {measured}; the cost is for a build from scratch"
    project.tell([table(dataset, costs.cost, machine), engine_table(costs.cost, machine), rates], f"{dataset}: planned")
    return 0
