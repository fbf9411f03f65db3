"""`dataprep diff`: how two locks, storage roots, dataset folders or buckets differ, without reading their data."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from dataprep_assets.cli import project
from dataprep_assets.errors import DataprepError, MissingArtifactError

if TYPE_CHECKING:
    from dataprep_assets.graph.lock import Lock

__all__ = ["declare"]

_TROUBLE = 2
"""As of diff(1): neither the same nor different."""


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser(
        "diff",
        help="say how two locks, roots or buckets differ: documents, tokens, settings (0 same, 1 differ, 2 error)",
    )
    for side in ("a", "b"):
        parser.add_argument(side, help="a lock, a storage root or dataset folder, s3://… or gs://…")
    parser.add_argument("--dataset", help="which dataset, where a root holds several")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")
    parser.set_defaults(execute=_diff)


def _diff(options: argparse.Namespace) -> int:
    from dataprep_assets.graph.lock_difference import difference

    try:
        a, b = (_side(side, options.dataset) for side in (options.a, options.b))
    except DataprepError as error:
        print(f"dataprep: {error}", file=sys.stderr)
        return _TROUBLE
    found = difference(a, b, (options.a, options.b))
    if options.json:
        print(json.dumps(found.to_json(), indent=1, ensure_ascii=False))
    else:
        print("\n".join(found.lines()))
    return 0 if found.is_none else 1


def _side(where: str, dataset: str | None) -> "Lock":
    from dataprep_assets.graph.lock_file import read_lock
    from dataprep_assets.graph.lock_of_copy import lock_of_receipts
    from dataprep_assets.integrity.verify import receipts_below, receipts_in
    from dataprep_assets.stores.connect import LocalPlace

    place = project.place(where)
    if isinstance(place, LocalPlace) and place.root.is_file():
        return read_lock(place.root)
    if isinstance(place, LocalPlace) and not place.root.is_dir():
        raise MissingArtifactError(f"{where}: neither a lock nor a folder is there")
    if dataset is not None:
        place = project.place_of_dataset(place, dataset)
    receipts = receipts_below(place.root) if isinstance(place, LocalPlace) else receipts_in(place())
    found = lock_of_receipts(receipts, where, dataset)
    for name in found.left_over:
        print(f"note: {where}: {name} is in no plan any more, and is left out", file=sys.stderr)
    return found.lock
