"""`dataprep retract`: put documents on a dataset's retraction list, and say what the next run will rebuild."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import Dataset
from dataprep_assets.cli.status import tell_of

if TYPE_CHECKING:
    from dataprep_assets.graph.retraction import Retracted

__all__ = ["command"]

MOST_SHOWN = 20
_WIDTHS = (10, 14)
"""Of the columns of counts."""


def command(
    dataset: Dataset,
    ids: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="One a line, plain or as JSON: an id, a hash of the index (16 hex digits) or file:row; of notes the "
            "id of a patient.",
        ),
    ],
) -> int:
    """Put documents, or patients of notes, on a dataset's retraction list, and say what will be rebuilt."""
    component = project.component(dataset)
    found = component.retract(component.store(project.storage()), ids)
    _tell(component.declaration.dataset, found)
    added = project.shown(str(found.added))
    print(f"{added} added to {found.list}; nothing is rebuilt yet: `dataprep run {dataset}` does that")
    if found.found:
        print()
        tell_of(component, as_json=False)
        print(
            "not reached from here: copies made with `dataprep sync`, downloads, trainers' caches, and windows of a "
            "trainer that runs"
        )
    return 0


def _tell(dataset: str, found: "Retracted") -> None:
    totals = [sum(held.counts[at] for held in found.held) for at in range(len(found.counted))]
    told = ", ".join(project.shown(f"{count:,} {noun}") for count, noun in zip(totals, found.counted, strict=True))
    print(f"{dataset}: " + project.shown(f"{found.given} given, {found.already} retracted already"))
    print(project.shown(f"found {found.found}: ") + f"{told} in {len(found.held)} {found.partitions}")
    for held in found.held[:MOST_SHOWN]:
        columns = zip(held.counts, _WIDTHS, found.counted, strict=False)
        print(
            f"  {held.partition:<20}"
            + "".join(f"{project.shown(f'{count:,}'):>{width}} {noun}" for count, width, noun in columns)
        )
    _more(len(found.held))
    if found.not_found:
        print(project.shown(f"not found {len(found.not_found)}; ") + found.kept)
    for one in found.not_found[:MOST_SHOWN]:
        print(f"  line {one.line}" + ("" if one.text is None else f": {one.text}"))
    _more(len(found.not_found))


def _more(count: int) -> None:
    if count > MOST_SHOWN:
        print(f"  and {count - MOST_SHOWN} more")
