"""`dataprep retract`: put documents on a dataset's retraction list, and say what the next run will rebuild."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep_assets.cli import project, status

if TYPE_CHECKING:
    from dataprep_assets.graph.retraction import Retracted

__all__ = ["declare"]

MOST_SHOWN = 20
_WIDTHS = (10, 14)
"""Of the columns of counts."""


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser(
        "retract",
        help="put documents, or patients of notes, on a dataset's retraction list, and say what will be rebuilt "
        "without them",
    )
    parser.add_argument("dataset")
    parser.add_argument(
        "--ids",
        type=Path,
        required=True,
        metavar="FILE",
        help="one a line, plain or as JSON: an id, a hash of the index (16 hex digits) or file:row; of notes the id of "
        "a patient",
    )
    parser.set_defaults(execute=_retract)


def _retract(options: argparse.Namespace) -> int:
    component = project.component(options.dataset)
    found = component.retract(component.store(project.storage()), options.ids)
    _tell(component.declaration.dataset, found)
    print(f"{found.added} added to {found.list}; nothing is rebuilt yet: `dataprep run {options.dataset}` does that")
    if found.found:
        print()
        status.tell_of(component, as_json=False)
        print(
            "not reached from here: copies made with `dataprep sync`, downloads, trainers' caches, and windows of a "
            "trainer that runs"
        )
    return 0


def _tell(dataset: str, found: "Retracted") -> None:
    totals = [sum(held.counts[at] for held in found.held) for at in range(len(found.counted))]
    told = ", ".join(f"{count:,} {noun}" for count, noun in zip(totals, found.counted, strict=True))
    print(f"{dataset}: {found.given} given, {found.already} retracted already")
    print(f"found {found.found}: {told} in {len(found.held)} {found.partitions}")
    for held in found.held[:MOST_SHOWN]:
        columns = zip(held.counts, _WIDTHS, found.counted, strict=False)
        print(f"  {held.partition:<20}" + "".join(f"{count:>{width},} {noun}" for count, width, noun in columns))
    _more(len(found.held))
    if found.not_found:
        print(f"not found {len(found.not_found)}; {found.kept}")
    for one in found.not_found[:MOST_SHOWN]:
        print(f"  line {one.line}" + ("" if one.text is None else f": {one.text}"))
    _more(len(found.not_found))


def _more(count: int) -> None:
    if count > MOST_SHOWN:
        print(f"  and {count - MOST_SHOWN} more")
