"""`dataprep prune`: list the artifacts of a dataset that are no longer in its plan; remove them with `--yes`."""

import json
from typing import Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.stores.connect import LocalAddress


def command(
    dataset: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Delete the listed artifacts.")] = False,
    json_: AsJson = False,
) -> int:
    """List obsolete artifacts, which are no longer part of the dataset. --yes deletes them."""
    from dataprep_assets.engine.staleness.status import list_unplanned, prune
    from dataprep_assets.planning.cost import format_bytes

    _require_declared(dataset)
    open_dataset = project.open_dataset(dataset)
    specs, store = open_dataset.specs, open_dataset.store
    obsolete = list_unplanned(specs, store)
    for unplanned_artifact in obsolete:
        location, size = (
            store.location(unplanned_artifact.artifact),
            "incomplete" if unplanned_artifact.bytes is None else count_of(unplanned_artifact.bytes, "byte"),
        )
        if json_:
            print(
                json.dumps(
                    {
                        "artifact": str(unplanned_artifact.artifact),
                        "location": location,
                        "bytes": unplanned_artifact.bytes,
                    }
                )
            )
        else:
            print(f"obsolete: {unplanned_artifact.artifact}: {size}, {location}")
    if not obsolete and not json_:
        print(f"{dataset}: nothing to remove")
    if obsolete and not yes and not json_:
        size = format_bytes(sum(obsolete_artifact.bytes or 0 for obsolete_artifact in obsolete))
        total = f"{count_of(len(obsolete), 'obsolete artifact')} ({size})"
        them = "it" if len(obsolete) == 1 else "them"
        print(f"Dry run: {total} would be deleted. Run `dataprep prune {dataset} --yes` to delete {them}")
    kept_count = 0
    for artifact, is_removed in prune(specs, store) if obsolete and yes else ():
        kept_count += not is_removed
        if json_:
            print(json.dumps({"artifact": str(artifact), "removed": is_removed}))
        else:
            print(f"removed {artifact}" if is_removed else f"kept {artifact}, because a run is building it", flush=True)
    return 1 if kept_count else 0


def _require_declared(dataset: str) -> None:
    """Raise ConfigError with the remaining folder of a dataset whose declaration was removed."""
    address = project.open_store(None)
    if dataset in project.list_dataset_names() or "/" in dataset or not isinstance(address, LocalAddress):
        return
    folder = address.root / dataset
    if dataset.strip(".") and folder.is_dir():
        raise ConfigError(
            f"{dataset!r} is not declared, but its artifacts remain in {folder}. Delete this folder if no other "
            "project uses it"
        )
