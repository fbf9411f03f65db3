"""`dataprep prune`: list the artifacts of a dataset that are no longer in its plan, and with `--yes` remove them."""

import json
from typing import Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import AsJson, Name
from dataprep_assets.plural import count_of


def command(
    dataset: Name, yes: Annotated[bool, typer.Option("--yes", help="Remove them.")] = False, json_: AsJson = False
) -> int:
    """List the artifacts that are no longer in any plan; with --yes remove them."""
    from dataprep_assets.graph.prune import listed, prune
    from dataprep_assets.planning.cost import shown_bytes

    opened = project.opened(dataset)
    specs, store = opened.specs, opened.store
    found = listed(specs, store)
    for one in found:
        where, size = store.location(one.artifact), "not whole" if one.bytes is None else f"{one.bytes:,} bytes"
        if json_:
            print(json.dumps({"artifact": str(one.artifact), "location": where, "bytes": one.bytes}))
        else:
            print(f"in no plan any more: {one.artifact}: {size}, {where}")
    if not found and not json_:
        print(f"{dataset}: every artifact is in the plan, nothing to remove")
    if found and not yes and not json_:
        size = shown_bytes(sum(one.bytes or 0 for one in found))
        total = f"{count_of(len(found), 'artifact')}, {size}"
        print(f"{total}; nothing was removed: `dataprep prune {dataset} --yes` removes them")
    kept = 0
    for artifact, gone in prune(specs, store) if found and yes else ():
        kept += not gone
        if json_:
            print(json.dumps({"artifact": str(artifact), "removed": gone}))
        else:
            print(f"removed {artifact}" if gone else f"left alone, a run is building it: {artifact}", flush=True)
    return 1 if kept else 0
