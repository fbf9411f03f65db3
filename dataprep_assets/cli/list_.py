"""`dataprep list`: list the datasets of the project with their states."""

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
        dataset: The dataset's name.
        component: The component that declares it, for example `TokenizedCorpus`.
        state: `never run`, `up to date`, `N to build`, `cannot be loaded`; `unknown` if its store cannot be read or its
            component is not part of this package.
        to_make: Number of artifacts that a run would build; None if unknown.
        why: The reason to build the first of them, or the error.
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
    # reject an unknown name before printing any line
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
    """Return the state of one dataset; an error becomes a state, so that the other datasets are still listed."""
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
    """Return how many artifacts a run would build, and the first's reason; None if the dataset was never run."""
    from dataprep_assets.engine.staleness.status import never_built, stale_decisions

    store = component.store(project.storage())
    if never_built(component.specs, store):
        return None, ""
    stale_artifacts = list(stale_decisions(component.specs, store, verification="size"))
    if not stale_artifacts:
        return 0, ""
    return len(stale_artifacts), privacy_of(component.declaration).text(
        str(stale_artifacts[0]), f"{stale_artifacts[0].name}: {stale_artifacts[0].kind}"
    )


def _first_line(error: DataprepError) -> str:
    first_line, *other_lines = str(error).splitlines()
    return f"{first_line} (and {len(other_lines)} more: `dataprep check`)" if other_lines else first_line


def _cells(row: ListedDataset) -> tuple[str, ...]:
    return (row.dataset, row.component, row.state, row.why)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(_COLUMNS) - 1)]
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
        datasets = list(rows)
    # names get their space first and are never truncated, because users type or copy them
    room = max(len(_COLUMNS[0]), console.width // 2)
    names = max([len(_COLUMNS[0]), *(len(row.dataset) for row in datasets)])
    for column in _COLUMNS:
        table.add_column(column, width=min(names, room) if column == _COLUMNS[0] else None, overflow="fold")
    for row in datasets:
        colour = colours.get(row.state, "yellow")
        table.add_row(escape(row.dataset), row.component, f"[{colour}]{row.state}[/]", escape(row.why))
    console.print(table)
