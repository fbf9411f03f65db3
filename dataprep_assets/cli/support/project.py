"""The project, datasets and privacy of the current command.

Dagster is imported only when it is needed, because most commands do not use it.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep_assets.engine.privacy import OPEN, Privacy, load_privacy
from dataprep_assets.errors import ConfigError
from dataprep_assets.library.project import OpenProject, open_project
from dataprep_assets.project import VARIABLE
from dataprep_assets.screen import print_lines
from dataprep_assets.stores.files import expand_path, private_files

if TYPE_CHECKING:
    from dataprep_assets.declarations import Declarations
    from dataprep_assets.engine.artifact.dataset import Dataset
    from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
    from dataprep_assets.integrity.storage import Storage
    from dataprep_assets.library.dataset import OpenDataset
    from dataprep_assets.stores.connect import StoreAddress


@cache
def current_project() -> OpenProject:
    """Return the project of the current command."""
    return open_project(_chosen[-1] if _chosen else None)


def use_project(folder: Path) -> None:
    """Use the project in this folder, instead of the environment's or the working directory's project."""
    _chosen.append(str(folder))
    current_project.cache_clear()


# Folders that were passed as `--project`; the last one is used.
_chosen: list[str] = []


def load_declarations() -> "Declarations":
    """Return the declared datasets of the current project."""
    return current_project().declarations


def list_dataset_names() -> list[str]:
    """Return the names of the declared datasets."""
    return list(_find_files())


def list_components() -> dict[str, str]:
    """Return each declared dataset's name with the component that its file names; `?` if it names none."""
    from dataprep_assets.declarations import read_component

    return {name: read_component(path) or "?" for name, path in _find_files().items()}


def list_kinds() -> dict[str, str | None]:
    """Return each declared dataset's name with `sample` or `example` if it is shipped, None if it is the user's own."""
    from dataprep_assets.project import find_shipped_kind

    return {name: find_shipped_kind(path.parent) for name, path in _find_files().items()}


def _find_files() -> dict[str, Path]:
    """Return each declared dataset's name with its `defs.yaml`, without importing any code of the project."""
    from dataprep_assets.declarations import find_files_below

    return find_files_below(current_project().project.defs)


def open_storage() -> "Storage":
    """Return the storage that the environment configures."""
    return current_project().storage


def find_work_folder() -> Path:
    """Return the folder for commands' temporary state: DATAPREP_CACHE, else a project folder, else the user's cache."""
    from dataprep_assets.integrity.storage import choose_cache

    try:
        return choose_cache(current_project().root)[0]
    except ConfigError:
        # Raise the error only if the user named a project explicitly, because some commands, such as `sync`, also work
        # without a project.
        if os.environ.get(VARIABLE) or _chosen:
            raise
        user = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "dataprep-assets"
        return expand_path(os.environ.get("DATAPREP_CACHE") or user, "DATAPREP_CACHE").absolute()


def open_store(url: str | None, profile: str | None = None) -> "StoreAddress":
    """Return the store at a URL or in a folder; None returns the storage that the environment configures."""
    from dataprep_assets.stores.connect import parse_place

    return (
        # Open the project's storage only if there is no URL, because a URL needs no project.
        open_storage().address() if url is None else parse_place(url, os.environ, profile=profile)
    )


def find_dataset_folder(name: str) -> Path:
    """Return the folder of a dataset's defs.yaml, or its default folder if the dataset is not declared."""
    path = load_declarations().files.get(name)
    return load_declarations().folder / name if path is None else path.parent


def find_declaration(name: str) -> Path:
    """Return the `defs.yaml` of a dataset; raise ConfigError if no dataset has this name."""
    return current_project().declaration_of(name)


def use_dataset(name: str) -> "Dataset":
    """Return the declared dataset of this name, and apply its privacy to the rest of the command (`apply_privacy`).

    Raises ConfigError if the dataset does not exist or its component is not part of this package.
    """
    return apply_privacy(load_dataset(name))


def load_dataset(name: str) -> "Dataset":
    """Return the declared dataset of this name, without applying its privacy to the command."""
    return current_project().load(name)


def open_dataset(name: str) -> "OpenDataset":
    """Return the opened dataset of this name, and apply its privacy to the rest of the command."""
    dataset = current_project().dataset(name)
    apply_privacy(dataset.component)
    return dataset


def apply_privacy(component: "Dataset") -> "Dataset":
    """Apply the privacy of a dataset to the rest of this command."""
    if _running:
        _running[-1].take(component.declaration)
    return component


class _Command:
    """Privacy of a command: once it loads a sensitive dataset, its files are private and its texts are withheld."""

    def __init__(self) -> None:
        self.closed, self.privacy = ExitStack(), OPEN

    def take(self, declaration: "DatasetDeclaration") -> None:
        self.closed.enter_context(private_files(declaration.sensitive))
        # Keep the strictest privacy of all loaded datasets, because an error or log line may be about any of them.
        if declaration.sensitive:
            self.privacy = self.privacy.choose_stricter(load_privacy(declaration, declaration.store(open_storage())))


# Stack of running commands, the current one last. It is empty if this module's functions are called outside a command.
_running: list[_Command] = []


@contextmanager
def scope_privacy() -> Iterator[None]:
    """Apply the privacy of the loaded datasets until this context ends (`apply_privacy`, `get_privacy`).

    Once a sensitive dataset is loaded, written files are private and its texts are withheld. The project chosen inside
    is reset at the end.
    """
    _running.append(_Command())
    count = len(_chosen)
    try:
        yield
    finally:
        _running.pop().closed.close()
        if len(_chosen) > count:
            del _chosen[count:]
            current_project.cache_clear()


def get_privacy() -> Privacy:
    """Return which details of the datasets loaded by this command may be shown."""
    return _running[-1].privacy if _running else OPEN


def print_unless_private(lines: Iterable[str], topic: str) -> None:
    """Print lines; for a sensitive dataset withhold them, and print that there are lines about `topic`."""
    lines = list(lines)
    if lines:
        print_lines(get_privacy().public_text("\n".join(lines), topic).splitlines())


def find_datasets_naming(dataset: str) -> "list[Dataset]":
    """Return the datasets whose declarations contain this dataset's name, directly or through other datasets.

    Only these datasets can depend on it. Datasets that cannot be loaded are omitted, because commands on them report
    the error.
    """
    from dataprep_assets.declarations import read_searchable_text

    files = load_declarations().files
    texts = {name: read_searchable_text(path) for name, path in files.items()}
    datasets: dict[str, Dataset] = {}
    pending_names = [dataset]
    while pending_names:
        pattern = re.compile(rf"\b{re.escape(pending_names.pop())}\b")
        for name in sorted(texts):
            if name == dataset or name in datasets or not pattern.search(texts[name]):
                continue
            for component in _load_all([name]):
                datasets[name] = component
                pending_names.append(component.declaration.dataset)
    return list(datasets.values())


def load_others(dataset: str) -> "list[Dataset]":
    """Return all other declared datasets that can be loaded, sorted by name."""
    return _load_all(name for name in sorted(load_declarations().files) if name != dataset)


def find_datasets_retracting(dataset: str) -> "list[Dataset]":
    """Return the other datasets that may have retracted documents."""
    return _load_all(name for name in sorted(load_declarations().files) if name != dataset and may_retract(name))


def may_retract(dataset: str) -> bool:
    """Return whether a dataset has a retraction list, next to its declaration or in a declared location."""
    from dataprep_assets.declarations import read_searchable_text

    path = load_declarations().files[dataset]
    return path.with_name("retracted.jsonl").exists() or "retractions:" in read_searchable_text(path)


def _load_all(names: Iterable[str]) -> "list[Dataset]":
    return [apply_privacy(component) for component in current_project().load_all(names)]


def format_browser_command() -> str:
    """Return the shell command that opens the project in the browser, to be run from the working directory."""
    root = current_project().root
    makefile = root / "Makefile"
    if makefile.is_file() and re.search(r"^ui:", makefile.read_text(encoding="utf-8"), re.MULTILINE):
        return "make ui" if root == Path.cwd() else f"make -C {root} ui"
    home = (
        ""
        if current_project().home == current_project().project.dagster_home
        else f"DAGSTER_HOME={current_project().home} "
    )
    return f"{home}dataprep ui" if root == Path.cwd() else f"{home}dataprep --project {root} ui"


def describe_browser_command() -> str:
    """Return a line with the command that shows the result in the browser."""
    return f"in the browser: `{format_browser_command()}`, then http://127.0.0.1:3000"
