"""`dataprep list`: list the datasets of the project and their states."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, complete_dataset_names
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.errors import ConfigError, DataprepError, count_of
from dataprep_assets.screen import wrap_line
from dataprep_assets.table import align_rows, fit_columns

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.dataset import Dataset

_COLUMNS = ("dataset", "component", "state", "why")
_COLORS = {"up to date": "green", "cannot be loaded": "red", "unknown": "red", "never run": "dim"}


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
            metavar="[NAME...]",
            help="Names of the datasets to list. [default: all declared datasets]",
            autocompletion=complete_dataset_names,
        ),
    ] = None,
    json_: AsJson = False,
) -> int:
    """List the datasets and their states: never run, up to date, artifacts to build, or cannot be loaded.

    The states match `dataprep status`, except that only the sizes of artifacts are compared.
    Local sources are read. If they are large, name the datasets to list.
    """
    components = project.list_components()
    # Check all names before printing any line, so that a misspelled name gives only an error.
    for name in datasets or ():
        project.find_declaration(name)
    rows = (_list_dataset(name, components[name]) for name in datasets or components)
    if json_:
        for row in rows:
            print(json.dumps(asdict(row)), flush=True)
    elif sys.stdout.isatty():
        _print_table(rows)
    else:
        for line in align_rows([_COLUMNS, *(_format_cells(row) for row in rows)]):
            print(line)
    return 0


def _list_dataset(name: str, component: str) -> ListedDataset:
    """Return the state of one dataset; an error becomes a state, so that the other datasets are still listed."""
    from dataprep_assets.engine.artifact.dataset import Dataset

    try:
        loaded = project.load_declarations().load(project.find_declaration(name))
    except ConfigError as error:
        return ListedDataset(
            dataset=name, component=component, state="cannot be loaded", why=_extract_first_line(error)
        )
    if not isinstance(loaded, Dataset):
        return ListedDataset(
            dataset=name, component=component, state="unknown", why="not a component of dataprep_assets"
        )
    try:
        to_make, reason = _count_to_build(loaded)
    except DataprepError as error:
        reason = (
            load_privacy(loaded.declaration).public_error(error)
            if loaded.declaration.sensitive
            else _extract_first_line(error)
        )
        return ListedDataset(dataset=name, component=component, state="unknown", why=reason)
    state = "never run" if to_make is None else f"{to_make:,} to build" if to_make else "up to date"
    return ListedDataset(dataset=name, component=component, state=state, to_make=to_make, why=reason)


def _count_to_build(component: "Dataset") -> tuple[int | None, str]:
    """Return the number of artifacts that a run would build (None if never run), and the reason of the first one."""
    from dataprep_assets.engine.staleness.status import find_stale, is_never_built

    store = component.store(project.open_storage())
    if is_never_built(component.specs, store):
        return None, ""
    stale_artifacts = list(find_stale(component.specs, store, verification="size"))
    if not stale_artifacts:
        return 0, ""
    return len(stale_artifacts), load_privacy(component.declaration).public_text(
        str(stale_artifacts[0]), f"{stale_artifacts[0].name}: {stale_artifacts[0].kind}"
    )


def _extract_first_line(error: DataprepError) -> str:
    first_line, *other_lines = str(error).splitlines()
    more_errors = count_of(len(other_lines), "more error")
    return f"{first_line} (and {more_errors}; see `dataprep check`)" if other_lines else first_line


def _format_cells(row: ListedDataset) -> tuple[str, ...]:
    return (row.dataset, row.component, row.state, row.why)


def _print_table(rows: "Iterable[ListedDataset]") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console()
    with console.status("checking the datasets …"):
        datasets = list(rows)
    cells = [_COLUMNS, *map(_format_cells, datasets)]
    # If the table is too wide, omit the component column, not the names, because the user needs the names to run
    # commands.
    column_indices, _ = fit_columns([row[:-1] for row in cells], [_COLUMNS.index("component")], console.width * 2 // 3)
    head, *lines = align_rows([[row[column] for column in (*column_indices, -1)] for row in cells])
    print(head)
    print("─" * min(max(map(len, [head, *lines])), console.width))
    for line, row in zip(lines, datasets, strict=True):
        for part in wrap_line(line, console.width):
            text = Text(part)
            text.highlight_words([row.state], _COLORS.get(row.state, "yellow"))
            console.print(text, soft_wrap=True)
