"""`dataprep prune`: list what of a dataset is in no plan any more, and with `--yes` remove it."""

import argparse

from dataprep_assets.cli import project

__all__ = ["declare"]


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser(
        "prune", help="list the artifacts that are in no plan any more; with --yes remove them"
    )
    parser.add_argument("dataset")
    parser.add_argument("--yes", action="store_true", help="remove them")
    parser.set_defaults(execute=_prune)


def _prune(options: argparse.Namespace) -> int:
    from dataprep_assets.graph.prune import listed, prune
    from dataprep_assets.planning.cost import shown_bytes

    component = project.component(options.dataset)
    specs, store = component.specs, component.store(project.storage())
    found = listed(specs, store)
    if not found:
        print(f"{options.dataset}: every artifact is in the plan, nothing to remove")
        return 0
    for one in found:
        size = "not whole" if one.bytes is None else f"{one.bytes:,} bytes"
        print(f"in no plan any more: {one.artifact}: {size}, {store.location(one.artifact)}")
    total = f"{len(found)} artifacts, {shown_bytes(sum(one.bytes or 0 for one in found))}"
    if not options.yes:
        print(f"{total}; nothing was removed: `dataprep prune {options.dataset} --yes` removes them")
        return 0
    kept = 0
    for artifact, gone in prune(specs, store):
        kept += not gone
        print(f"removed {artifact}" if gone else f"left alone, a run is building it: {artifact}", flush=True)
    return 1 if kept else 0
