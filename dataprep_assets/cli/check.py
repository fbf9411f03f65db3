"""`dataprep check`: what is wrong with declarations, before anything is built."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import dataset_names
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.graph.shown import number_of
from dataprep_assets.graph.small_cells import cells_of

if TYPE_CHECKING:
    from dataprep_assets.graph.dataset import Dataset
    from dataprep_assets.graph.remark import Remark
    from dataprep_assets.graph.spec import OtherDataset

_WRONG = 2


def command(
    datasets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME...]",
            help="Datasets; default: all that the code location shows.",
            autocompletion=dataset_names,
        ),
    ] = None,
) -> int:
    """Say what is wrong in declarations, and with their tokenizers and local sources. Builds nothing."""
    _require_sound_environment()
    found = 0
    files = _files(datasets or [])
    for path in files:
        try:
            told = list(_remarks(path))
        except DataprepError as error:
            found += 1
            print(error)
            continue
        found += sum(not remark.hint for remark, _ in told)
        for _, line in told:
            print(line)
    print(f"{number_of(len(files), 'declaration')}: " + (f"{found} to correct" if found else "nothing to correct"))
    return _WRONG if found else 0


def require_sound(name: str, component: "Dataset") -> None:
    """Raise ConfigError naming all that is wrong with a dataset, so that nothing is built; hints go to standard error.

    What only the source can tell is left to the run: a dataset may be up to date while its source is out of reach.
    """
    _require_sound_environment()
    told = list(_located(project.declarations().files[name], component))
    for remark, line in told:
        if remark.hint:
            print(f"note: {line}", file=sys.stderr)
    wrong = [line for remark, line in told if not remark.hint and not remark.of_source]
    if wrong:
        raise ConfigError("\n".join(wrong))


def _require_sound_environment() -> None:
    """Raise ConfigError if an environment variable that controls execution has an invalid value."""
    from dataprep_assets.execution.pool import chosen_engine, worker_count
    from dataprep_assets.execution.slurm import SlurmSettings

    worker_count(None)
    chosen_engine(os.environ)
    SlurmSettings.of(os.environ)


def _files(names: list[str]) -> list[Path]:
    """The `defs.yaml` files of these datasets; without names, of all that are shown.

    Duplicate names give both files.
    """
    from dataprep_assets.orchestration.shipped import is_shown, shown_as

    declared = project.declarations()
    if not names:
        return [path for path in declared.paths if is_shown(shown_as(path.parent))]
    return [project.declaration_of(name) for name in names]


def _remarks(path: Path) -> "Iterator[tuple[Remark, str]]":
    from dataprep_assets.graph.dataset import Dataset

    component = project.declarations().load(path)
    if isinstance(component, Dataset):
        yield from _located(path, component)


def _located(path: Path, component: "Dataset") -> "Iterator[tuple[Remark, str]]":
    """Each remark, with its sentence prefixed by the file and line that it is about."""
    from dataprep_assets.graph.declaration_mistakes import read

    (document, *_) = read(path)
    remarks = (*component.remarks(), *_of_other_datasets(component), *_of_engine(component), *_of_storage(component))
    for remark in remarks:
        sentence = cells_of(component.declaration).text(remark.sentence)
        yield remark, f"{path}:{document.line_of(remark.keys)}: {sentence}"


def _of_engine(component: "Dataset") -> "Iterator[Remark]":
    """A remark if what is to do the work is not installed."""
    from dataprep_assets.execution.pool import require_engine
    from dataprep_assets.graph.engine_declaration import MadeByEngine
    from dataprep_assets.graph.remark import Remark

    if isinstance(component.declaration, MadeByEngine):
        try:
            require_engine(os.environ, component.declaration.run_on)
        except ConfigError as error:
            yield Remark(keys=("run_on",), sentence=str(error))


def _of_storage(component: "Dataset") -> "Iterator[Remark]":
    """A remark if the artifacts cannot be written into the folder that is to hold them."""
    from dataprep_assets.graph.remark import Remark
    from dataprep_assets.stores.connect import LocalPlace

    told = component.declaration.storage
    place = project.place(told)
    if not isinstance(place, LocalPlace):
        return
    there = next(path for path in (place.root, *place.root.parents) if os.path.lexists(path))
    begins = f"storage: {place.root}: " if told is not None else f"DATAPREP_ROOT: {place.root}: "
    if not there.is_dir():
        yield Remark(keys=("storage",), sentence=f"{begins}cannot be a folder: {there} is a file")
    elif not os.access(there, os.W_OK | os.X_OK):
        yield Remark(keys=("storage",), sentence=f"{begins}cannot be written to: {there} is not writable for this user")


def _of_other_datasets(component: "Dataset") -> "Iterator[Remark]":
    """A remark for each input dataset that is of another kind, or not declared here: another project's, or misspelt."""
    from dataprep_assets.graph.declaration_mistakes import nearest
    from dataprep_assets.graph.remark import Remark
    from dataprep_assets.graph.spec import OtherDataset

    declared = list(project.declarations().files)
    inputs = [source for spec in component.specs for source in spec.inputs if isinstance(source, OtherDataset)]
    for source in {source.dataset: source for source in inputs}.values():
        name = source.dataset
        if name in declared:
            yield from _of_another_kind(source)
            continue
        near = nearest(name, declared)
        sentence = f"`sources`: {name}: no dataset of this project; " + (
            f"did you mean {near!r}?" if near else "its artifacts have to be in the same storage"
        )
        yield Remark(keys=("sources",), sentence=sentence, hint=True)


def _of_another_kind(source: "OtherDataset") -> "Iterator[Remark]":
    """A remark if a declared dataset never has the artifact that another one is made of; one that is broken says so."""
    from dataprep_assets.graph.remark import Remark

    try:
        found = project.component(source.dataset)
    except DataprepError:
        return
    if not any(spec.name == source.name for spec in found.specs):
        sentence = f"`sources`: {source.dataset}: is a {found.component}, which has no `{source.name}` to be made of"
        yield Remark(keys=("sources",), sentence=sentence)
