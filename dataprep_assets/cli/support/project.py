"""The project that a command works on, what the command says of its datasets, and how it ends.

Dagster is imported when it is first needed: most commands do without it.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep_assets.engine.privacy import OPEN, Privacy, privacy_of
from dataprep_assets.errors import ConfigError
from dataprep_assets.library.project import OpenProject, open_project
from dataprep_assets.project import VARIABLE
from dataprep_assets.stores.files import expanded, private_files

if TYPE_CHECKING:
    from dataprep_assets.declarations import Declarations
    from dataprep_assets.engine.artifact.dataset import Dataset
    from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
    from dataprep_assets.integrity.storage import Storage
    from dataprep_assets.library.dataset import OpenDataset
    from dataprep_assets.stores.connect import StoreAddress


@cache
def current() -> OpenProject:
    """The project that this command works on."""
    return open_project(_chosen[-1] if _chosen else None)


def choose(folder: Path) -> None:
    """Work on the project in this folder, instead of the one that the environment or the working folder names."""
    _chosen.append(str(folder))
    current.cache_clear()


# folders that `--project` named; the last one counts
_chosen: list[str] = []


def declarations() -> "Declarations":
    """The declared datasets of the current project."""
    return current().declarations


def names() -> list[str]:
    """Names of the declared datasets."""
    return list(_files())


def components() -> dict[str, str]:
    """Name of each declared dataset → the component that its file names; `?` if it names none."""
    from dataprep_assets.declarations import component_of

    return {name: component_of(path) or "?" for name, path in _files().items()}


def kinds() -> dict[str, str | None]:
    """Name of each declared dataset → `sample` or `example` if it is shipped, None if it is the user's own."""
    from dataprep_assets.project import shown_as

    return {name: shown_as(path.parent) for name, path in _files().items()}


def _files() -> dict[str, Path]:
    """Name of each declared dataset → its `defs.yaml`; nothing of the project is imported for it."""
    from dataprep_assets.declarations import files_below

    return files_below(current().project.defs)


def storage() -> "Storage":
    """The storage that the environment configures."""
    return current().storage


def work_folder() -> Path:
    """The folder of what commands keep meanwhile: DATAPREP_CACHE, else in the project, else in this user's cache."""
    from dataprep_assets.integrity.storage import cache_of

    try:
        return cache_of(current().root)[0]
    except ConfigError:
        # whoever names a project means it; without one, commands such as `sync` need none
        if os.environ.get(VARIABLE) or _chosen:
            raise
        user = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dataprep-assets"
        return expanded(os.environ.get("DATAPREP_CACHE") or user, "DATAPREP_CACHE").absolute()


def place(url: str | None, profile: str | None = None) -> "StoreAddress":
    """The store at a URL or in a folder, or the storage of the environment."""
    from dataprep_assets.stores.connect import place_of

    return storage().place() if url is None else place_of(url, os.environ, profile=profile)  # of a URL: no project


def folder(name: str) -> Path:
    """The folder of a dataset's defs.yaml, or the folder where it would be if it is not declared."""
    found = declarations().files.get(name)
    return declarations().folder / name if found is None else found.parent


def declaration_of(name: str) -> Path:
    """The `defs.yaml` of a dataset; raises ConfigError when there is none of this name."""
    return current().declaration_of(name)


def component(name: str) -> "Dataset":
    """The declared dataset of this name, which the command works on from now on (`take`).

    Raises ConfigError when there is none, or its component is not one of ours.
    """
    return take(load_dataset(name))


def load_dataset(name: str) -> "Dataset":
    """As `component`, of a dataset that is only looked at."""
    return current().load(name)


def open_dataset(name: str) -> "OpenDataset":
    """As `component`, opened."""
    dataset = current().dataset(name)
    take(dataset.component)
    return dataset


def take(component: "Dataset") -> "Dataset":
    """Work on a dataset: from now on this command keeps what a sensitive one asks for."""
    if _running:
        _running[-1].take(component.declaration)
    return component


class _Command:
    """What a command does differently once it has loaded a sensitive dataset, until it ends."""

    def __init__(self) -> None:
        self.closed, self.privacy = ExitStack(), OPEN

    def take(self, declaration: "DatasetDeclaration") -> None:
        self.closed.enter_context(private_files(declaration.sensitive))
        # of all datasets that were loaded, because a line may be about any of them
        if declaration.sensitive:
            self.privacy = self.privacy.stricter(privacy_of(declaration, declaration.store(storage())))


# the command at work is the last one; empty where its functions are called outside of a command
_running: list[_Command] = []


@contextmanager
def one_command() -> Iterator[None]:
    """Once a sensitive dataset is loaded inside, written files are private, and texts do not leave (`privacy`).

    The project that it chooses is forgotten at its end.
    """
    _running.append(_Command())
    chosen = len(_chosen)
    try:
        yield
    finally:
        _running.pop().closed.close()
        if len(_chosen) > chosen:
            del _chosen[chosen:]
            current.cache_clear()


def privacy() -> Privacy:
    """What leaves of the datasets that the command has loaded."""
    return _running[-1].privacy if _running else OPEN


def tell(lines: Iterable[str], what: str) -> None:
    """Print lines; of a sensitive dataset keep them, and print that there are some about `what`."""
    lines = list(lines)
    if lines:
        print(privacy().text("\n".join(lines), what))


def naming(dataset: str) -> "list[Dataset]":
    """The datasets whose declarations contain this one's name, directly or through other datasets.

    Only these can be made of it. Datasets that cannot be loaded are left out: their own commands say why.
    """
    files = declarations().files
    texts = {name: path.read_text(encoding="utf-8", errors="replace") for name, path in files.items()}
    datasets: dict[str, Dataset] = {}
    asked = [dataset]
    while asked:
        wanted = re.compile(rf"\b{re.escape(asked.pop())}\b")
        for name in sorted(texts):
            if name == dataset or name in datasets or not wanted.search(texts[name]):
                continue
            for other in _load_all([name]):
                datasets[name] = other
                asked.append(other.declaration.dataset)
    return list(datasets.values())


def load_others(dataset: str) -> "list[Dataset]":
    """All other declared datasets that can be loaded, sorted by name."""
    return _load_all(name for name in sorted(declarations().files) if name != dataset)


def retracting(dataset: str) -> "list[Dataset]":
    """The other datasets that may have retracted documents."""
    return _load_all(name for name in sorted(declarations().files) if name != dataset and may_retract(name))


def may_retract(dataset: str) -> bool:
    """Whether a dataset has a retraction list: beside its declaration, or at a place that the declaration names."""
    path = declarations().files[dataset]
    return path.with_name("retracted.jsonl").exists() or "retractions:" in path.read_text(errors="replace")


def _load_all(names: Iterable[str]) -> "list[Dataset]":
    return [take(found) for found in current().load_all(names)]


def browser() -> str:
    """The command that shows the project in the browser, as it can be typed in the working folder."""
    root = current().root
    makefile = root / "Makefile"
    if makefile.is_file() and re.search(r"^ui:", makefile.read_text(encoding="utf-8"), re.MULTILINE):
        return "make ui" if root == Path.cwd() else f"make -C {root} ui"
    home = "" if current().home == current().project.dagster_home else f"DAGSTER_HOME={current().home} "
    return f"{home}dataprep ui" if root == Path.cwd() else f"{home}dataprep --project {root} ui"


def in_the_browser() -> str:
    """The line that says how to see the result in the browser."""
    return f"see it: {browser()}, then open http://127.0.0.1:3000"
