"""`dataprep prune`: list the artifacts of a dataset that are no longer in its plan, and with `--yes` remove them."""

import json
from typing import Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name
from dataprep_assets.errors import count_of


def command(
    dataset: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Delete the listed artifacts.")] = False,
    json_: AsJson = False,
) -> int:
    """List artifacts that are no longer needed; --yes deletes them."""
    from dataprep_assets.engine.staleness.status import list_unplanned, prune
    from dataprep_assets.planning.cost import shown_bytes

    opened = project.open_dataset(dataset)
    specs, store = opened.specs, opened.store
    obsolete = list_unplanned(specs, store)
    for unplanned_artifact in obsolete:
        where, size = (
            store.location(unplanned_artifact.artifact),
            "incomplete" if unplanned_artifact.bytes is None else count_of(unplanned_artifact.bytes, "byte"),
        )
        if json_:
            print(
                json.dumps(
                    {"artifact": str(unplanned_artifact.artifact), "location": where, "bytes": unplanned_artifact.bytes}
                )
            )
        else:
            print(f"no longer needed: {unplanned_artifact.artifact}: {size}, {where}")
    if not obsolete and not json_:
        print(f"{dataset}: nothing to remove")
    if obsolete and not yes and not json_:
        size = shown_bytes(sum(one.bytes or 0 for one in obsolete))
        total = f"{count_of(len(obsolete), 'artifact')}, {size}"
        print(f"{total}. Dry run. Run `dataprep prune {dataset} --yes` to delete them")
    kept = 0
    for artifact, gone in prune(specs, store) if obsolete and yes else ():
        kept += not gone
        if json_:
            print(json.dumps({"artifact": str(artifact), "removed": gone}))
        else:
            print(f"removed {artifact}" if gone else f"kept, because a run is building it: {artifact}", flush=True)
    return 1 if kept else 0
