"""`dataprep plan`: what a dataset will cost to build from nothing."""

import argparse
import os

from dataprep_assets.cli import project

__all__ = ["declare"]


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser("plan", help="say what a dataset will cost: shards, runs, hours, disk, requests")
    parser.add_argument("dataset")
    parser.add_argument("--cores", type=int, help="of all machines (default: those that this process may use)")
    parser.add_argument(
        "--bandwidth", type=float, default=125e6, help="bytes a second to source and bucket (default: 125e6, 1 Gbit/s)"
    )
    parser.add_argument("--runs-at-a-time", type=int, default=1, help="batches beside each other (default: 1)")
    parser.set_defaults(execute=_plan)


def _plan(options: argparse.Namespace) -> int:
    from dataprep_assets.planning.cost import Machine, table

    component = project.component(options.dataset)
    cores = len(os.sched_getaffinity(0)) if options.cores is None else options.cores
    machine = Machine(cores=cores, bandwidth=options.bandwidth, runs_at_a_time=options.runs_at_a_time)
    found = component.cost(component.store(project.storage()), machine)
    print(table(options.dataset, found.cost, machine))
    print(
        f"rates          {f'measured on {found.measured:,} finished shards' if found.measured else 'of the bench'}; "
        "the cost is of all, from nothing"
    )
    return 0
