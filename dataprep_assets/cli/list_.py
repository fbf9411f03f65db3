"""`dataprep list`: the datasets of the project, with the state of each."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, dataset_names
from dataprep_assets.engine.privacy import privacy_of
from dataprep_assets.errors import ConfigError, DataprepError

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.dataset import Dataset

_COLUMNS = ("dataset", "component", "state", "why")


@dataclass(frozen=True, kw_only=True)
class ListedDataset:
    """A dataset and its state.

    Attributes:
        dataset: Its name, as commands take it.
        component: The component that declares it, for example `TokenizedCorpus`.
        state: `never run`, `up to date`, `N to build`, `cannot be loaded`; `unknown` where its store cannot be read or
            its component is not one of this project's.
        to_make: How many artifacts a run would make; None if that is not known.
        why: The reason of the first of them, or what is wrong.
    """

    dataset: str
    component: str
    state: str
    to_make: int | None = None
    why: str = ""


def command(
    datasets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME...]", help="Dataset names. [default: all declared datasets]", autocompletion=dataset_names
        ),
    ] = None,
    json_: AsJson = False,
) -> int:
    """List datasets with their state: never run, up to date, number of artifacts to build, or cannot be loaded.

    Datasets that have been run are examined as by `dataprep status`, but only the sizes of artifacts are compared.
    Local sources are read, so name the datasets to list if the sources are large.
    """
    components = project.components()
    # a wrong name is refused before a line is printed
    for name in datasets or ():
        project.declaration_of(name)
    rows = (_list_dataset(name, components[name]) for name in datasets or components)
    if json_:
        for row in rows:
            print(json.dumps(asdict(row)), flush=True)
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        for line in _aligned([_COLUMNS, *(_cells(row) for row in rows)]):
            print(line)
    return 0


def _list_dataset(name: str, component: str) -> ListedDataset:
    """The state of one dataset; an error becomes a state, so that the other datasets are still listed."""
    from dataprep_assets.engine.artifact.dataset import Dataset

    try:
        loaded = project.declarations().load(project.declaration_of(name))
    except ConfigError as error:
        return ListedDataset(dataset=name, component=component, state="cannot be loaded", why=_first_line(error))
    if not isinstance(loaded, Dataset):
        return ListedDataset(
            dataset=name, component=component, state="unknown", why="not a component of dataprep_assets"
        )
    try:
        to_make, why = _to_make(loaded)
    except DataprepError as error:
        why = privacy_of(loaded.declaration).error(error) if loaded.declaration.sensitive else _first_line(error)
        return ListedDataset(dataset=name, component=component, state="unknown", why=why)
    state = "never run" if to_make is None else f"{to_make:,} to build" if to_make else "up to date"
    return ListedDataset(dataset=name, component=component, state=state, to_make=to_make, why=why)


def _to_make(component: "Dataset") -> tuple[int | None, str]:
    """How many artifacts a run would make, and why the first of them; None for a dataset that was never run."""
    from dataprep_assets.engine.staleness.status import never_built, stale

    store = component.store(project.storage())
    if never_built(component.specs, store):
        return None, ""
    stale_artifacts = list(stale(component.specs, store, verification="size"))
    if not stale_artifacts:
        return 0, ""
    return len(stale_artifacts), privacy_of(component.declaration).text(
        str(stale_artifacts[0]), f"{stale_artifacts[0].name}: {stale_artifacts[0].kind}"
    )


def _first_line(error: DataprepError) -> str:
    first, *more = str(error).splitlines()
    return f"{first} (and {len(more)} more: `dataprep check`)" if more else first


def _cells(row: ListedDataset) -> tuple[str, ...]:
    return (row.dataset, row.component, row.state, row.why)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(_COLUMNS) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        yield "  ".join([*cells, row[-1]]).rstrip()


def _print_table(rows: "Iterable[ListedDataset]") -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console, table = Console(), Table(box=box.SIMPLE_HEAD)
    colours = {"up to date": "green", "cannot be loaded": "red", "unknown": "red", "never run": "dim"}
    with console.status("checking the datasets …"):
        listed = list(rows)
    # names have their room first and are never cut: somebody types or copies them
    room = max(len(_COLUMNS[0]), console.width // 2)
    names = max([len(_COLUMNS[0]), *(len(row.dataset) for row in listed)])
    for column in _COLUMNS:
        table.add_column(column, width=min(names, room) if column == _COLUMNS[0] else None, overflow="fold")
    for row in listed:
        colour = colours.get(row.state, "yellow")
        table.add_row(escape(row.dataset), row.component, f"[{colour}]{row.state}[/]", escape(row.why))
    console.print(table)
