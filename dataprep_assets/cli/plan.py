"""`dataprep plan`: what a dataset will cost to build from nothing."""

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name


def command(
    dataset: Name,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Cores of all machines together; default: those of this one.")
    ] = None,
    # by default a gigabit a second
    bandwidth: Annotated[float, typer.Option(help="Bytes a second to source and bucket.")] = 125e6,
    runs_at_a_time: Annotated[int, typer.Option(min=1, help="Batches that run at the same time.")] = 1,
    json_: AsJson = False,
) -> int:
    """Say what building a dataset from nothing will cost: shards, runs, hours, disk, requests."""
    from dataprep_assets.engine.privacy import privacy_of
    from dataprep_assets.planning.cost import Machine, table
    from dataprep_assets.planning.engines import OVERHEADS, engine_seconds, engine_table

    opened = project.open_dataset(dataset)
    machine = Machine(cores=cores or len(os.sched_getaffinity(0)), bandwidth=bandwidth, runs_at_a_time=runs_at_a_time)
    costs = opened.component.cost(opened.store, machine)
    privacy = privacy_of(opened.component.declaration, opened.store)
    if json_:
        engines = {engine: round(engine_seconds(costs.cost, machine, engine), 1) for engine in OVERHEADS}
        amounts = {**costs.cost.to_json(), "seconds_on": engines, "rates_measured_on": costs.measured}
        print(json.dumps({"dataset": dataset, "machine": asdict(machine), **privacy.amounts(amounts)}))
        return 0
    rates = (
        f"rates          {f'measured on {costs.measured:,} finished shards' if costs.measured else 'of the bench'}; "
        "the cost is of all, from nothing"
    )
    project.tell([table(dataset, costs.cost, machine), engine_table(costs.cost, machine), rates], f"{dataset}: planned")
    return 0
