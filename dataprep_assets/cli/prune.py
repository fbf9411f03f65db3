"""`dataprep prune`: list the artifacts of a dataset that are no longer in its plan, and with `--yes` remove them."""

from typing import Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import Name


def command(dataset: Name, yes: Annotated[bool, typer.Option("--yes", help="Remove them.")] = False) -> int:
    """List the artifacts that are no longer in any plan; with --yes remove them."""
    from dataprep_assets.graph.prune import listed, prune
    from dataprep_assets.planning.cost import shown_bytes

    component = project.component(dataset)
    specs, store = component.specs, component.store(project.storage())
    found = listed(specs, store)
    if not found:
        print(f"{dataset}: every artifact is in the plan, nothing to remove")
        return 0
    for one in found:
        size = "not whole" if one.bytes is None else f"{one.bytes:,} bytes"
        print(f"in no plan any more: {one.artifact}: {size}, {store.location(one.artifact)}")
    total = f"{len(found)} artifacts, {shown_bytes(sum(one.bytes or 0 for one in found))}"
    if not yes:
        print(f"{total}; nothing was removed: `dataprep prune {dataset} --yes` removes them")
        return 0
    kept = 0
    for artifact, gone in prune(specs, store):
        kept += not gone
        print(f"removed {artifact}" if gone else f"left alone, a run is building it: {artifact}", flush=True)
    return 1 if kept else 0
