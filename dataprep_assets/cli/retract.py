"""`dataprep retract`: put documents on a dataset's retraction list, and say what the next run will rebuild."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import Name
from dataprep_assets.cli.status import tell_of
from dataprep_assets.graph.shown import number_of

if TYPE_CHECKING:
    from dataprep_assets.graph.dataset import Dataset
    from dataprep_assets.graph.retraction import Retracted

__all__ = ["command"]

MOST_SHOWN = 20
_WIDTHS = (20, 22)
"""Widths of the two columns of counts, in characters."""


def command(
    dataset: Name,
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
        for line in _beyond(component, found.files):
            print(line)
    return 0


def _beyond(component: "Dataset", files: frozenset[str]) -> Iterator[str]:
    """What a `dataprep run` of this dataset leaves unchanged: other datasets made of the same files, and copies."""
    from dataprep_assets.graph.sharing import published_places, sharing

    storage = project.storage()
    others = project.others(component.declaration.dataset)
    places = [*published_places(component.specs, component.store(storage))]
    for one in sharing(files, [(other.specs, other.store(storage)) for other in others]):
        held = number_of(one.partitions, one.noun)
        published = "".join(f", published to {place}" for place in one.published)
        yield f"made of the same source files, and not changed: {one.dataset}/{one.artifact}, {held}{published}"
        places += one.published
    for place in dict.fromkeys(places):
        yield (
            f"windows over {place} keep the shards that they have: after the run start these trainers again, with an "
            "empty cache folder"
        )
    yield "not reached from here: copies made with `dataprep sync`, downloads, and trainers' caches"


def _tell(dataset: str, found: "Retracted") -> None:
    totals = [sum(held.counts[at] for held in found.held) for at in range(len(found.counted))]
    told = ", ".join(project.shown(number_of(count, noun)) for count, noun in zip(totals, found.counted, strict=True))
    print(f"{dataset}: " + project.shown(f"{found.given} given, {found.already} retracted already"))
    print(project.shown(f"found {found.found}: ") + f"{told} in {number_of(len(found.held), found.partitions)}")
    for held in found.held[:MOST_SHOWN]:
        columns = zip(held.counts, _WIDTHS, found.counted, strict=False)
        print(
            f"  {held.partition:<20}"
            + "".join(f"{project.shown(number_of(count, noun)):>{width}}" for count, width, noun in columns)
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
