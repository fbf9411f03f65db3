"""The project that the commands work on: its storage, its declared datasets, its Dagster instance.

Dagster is imported when it is first needed: most commands do without it.
"""

import fcntl
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.graph.declaration_mistakes import nearest
from dataprep_assets.graph.small_cells import SHOW_ALL, cells_of
from dataprep_assets.project import VARIABLE, Project, find
from dataprep_assets.project_template import TEMPLATE
from dataprep_assets.sources.upstream import answered_by
from dataprep_assets.stores.locks import own_file
from dataprep_assets.stores.private import private_files

if TYPE_CHECKING:
    import dagster as dg

    from dataprep_assets.declarations import Declarations
    from dataprep_assets.graph.dataset import Dataset
    from dataprep_assets.graph.declaration import DatasetDeclaration
    from dataprep_assets.integrity.storage import Storage
    from dataprep_assets.sources.upstream import Materialization
    from dataprep_assets.stores.connect import Place


@cache
def current() -> Project:
    """The project that this command works on."""
    return find(_chosen[-1] if _chosen else None)


def choose(folder: Path) -> None:
    """Work on the project in this folder, instead of the one that the environment or the working folder names."""
    _chosen.append(str(folder))
    current.cache_clear()


_chosen: list[str] = []
_GONE = re.compile(r"dataprep_assets\.orchestration\.(sqlite_storage|compute_logs)\b")
_PLACE = re.compile(r"(^ *\S*defs\.yaml:\d+:)", re.MULTILINE)
_TYPE = re.compile(r"""^type:\s*["']?([\w.]+)""", re.MULTILINE)


def declarations() -> "Declarations":
    """The declared datasets of the current project."""
    from dataprep_assets.declarations import declarations_of

    answered_by(_upstream)
    return declarations_of(current())


def names() -> list[str]:
    """Names of the declared datasets."""
    return list(_files())


def components() -> dict[str, str]:
    """Name of each declared dataset → the component that its file names; `?` if it names none."""
    found = {}
    for name, path in _files().items():
        said = _TYPE.search(path.read_text(encoding="utf-8", errors="replace"))
        found[name] = said.group(1).rpartition(".")[2] if said else "?"
    return found


def kinds() -> dict[str, str | None]:
    """Name of each declared dataset → `sample` or `example` if it is shipped, None if it is the user's own."""
    from dataprep_assets.orchestration.shipped import shown_as

    return {name: shown_as(path.parent) for name, path in _files().items()}


def _files() -> dict[str, Path]:
    """Name of each declared dataset → its `defs.yaml`; nothing of the project is imported for it."""
    from dataprep_assets.declarations import files_below

    return files_below(current().defs)


def storage() -> "Storage":
    """The storage that the environment configures."""
    from dataprep_assets.integrity.storage import local_storage

    if (local := local_storage(current().root)) is not None:
        return local
    from dataprep_assets.resources import open_storage

    return open_storage(current().root)


def work_folder() -> Path:
    """The folder of what commands keep meanwhile: DATAPREP_CACHE, else in the project, else in this user's cache."""
    from dataprep_assets.integrity.storage import cache_of

    try:
        return cache_of(current().root)[0]
    except ConfigError:
        if os.environ.get(VARIABLE) or _chosen:
            raise
        user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dataprep-assets"
        return Path(os.environ.get("DATAPREP_CACHE") or user).expanduser().absolute()


def place(url: str | None, profile: str | None = None) -> "Place":
    """The store at a URL or in a folder, or the storage of the environment."""
    from dataprep_assets.stores.connect import place_of

    return storage().place() if url is None else place_of(url, os.environ, profile=profile)


def place_of_dataset(place: "Place", dataset: str) -> "Place":
    """The folder of a dataset below a place if there is one, so that nothing else is read; else the place itself."""
    from dataprep_assets.stores.connect import GcsPlace, LocalPlace, S3Place

    if isinstance(place, LocalPlace):
        below = place.root / dataset
        return replace(place, root=below) if below.is_dir() else place
    if not isinstance(place, S3Place | GcsPlace):
        return place
    narrow = replace(place, prefix=f"{place.prefix}/{dataset}".lstrip("/"))
    return place if next(narrow().list(), None) is None else narrow


def folder(name: str) -> Path:
    """The folder of a dataset's defs.yaml, or the folder where it would be if it is not declared."""
    found = declarations().files.get(name)
    return declarations().folder / name if found is None else found.parent


def declaration_of(name: str) -> Path:
    """The `defs.yaml` of a dataset; raises ConfigError when there is none of this name."""
    known = declarations().files
    if name in known:
        return known[name]
    below = name.removeprefix("defs/").rstrip("/")
    for dataset, path in known.items():
        folder = path.parent.relative_to(declarations().folder).as_posix()
        if folder == below or folder.endswith(f"/{below}"):
            raise ConfigError(f"{name!r} is not a dataset here, but the folder of one: its name is {dataset!r}")
    near = nearest(name, list(known))
    raise ConfigError(
        f"{name!r} is not a dataset here; "
        + (f"did you mean {near!r}?" if near else f"defs/ has {', '.join(known) or 'none'}")
    )


def component(name: str) -> "Dataset":
    """The declared dataset of this name, which the command works on from now on (`take`).

    Raises ConfigError when there is none, or its component is not one of ours.
    """
    return take(loaded(name))


def loaded(name: str) -> "Dataset":
    """As `component`, of a dataset that is only looked at."""
    from dataprep_assets.graph.dataset import Dataset

    found = declarations().load(declaration_of(name))
    if not isinstance(found, Dataset):
        raise ConfigError(f"{name!r} is a {type(found).__name__}, which `dataprep` cannot run; use `dg launch`")
    return found


def _upstream(key: Sequence[str]) -> "Sequence[Materialization]":
    """The latest materializations of an asset in the project's instance."""
    from dataprep_assets.orchestration.upstream import latest

    with instance() as found:
        return latest(found, key)


def take(component: "Dataset") -> "Dataset":
    """Work on a dataset: from now on this command keeps what a sensitive one asks for."""
    if _running:
        _running[-1].take(component.declaration)
    return component


class _Command:
    """What a command does differently once it has loaded a sensitive dataset, until it ends."""

    def __init__(self) -> None:
        self.closed, self.cells = ExitStack(), SHOW_ALL

    def take(self, declaration: "DatasetDeclaration") -> None:
        self.closed.enter_context(private_files(declaration.sensitive))
        self.cells = max(self.cells, cells_of(declaration), key=lambda cells: cells.below)


_running: list[_Command] = []


@contextmanager
def one_command() -> Iterator[None]:
    """Once a sensitive dataset is loaded inside, written files are private to their owner and `shown` hides counts."""
    _running.append(_Command())
    try:
        yield
    finally:
        _running.pop().closed.close()


def shown(text: str) -> str:
    """The text as the command prints it: without small counts once a sensitive dataset was loaded.

    The line of a declaration, at the beginning of a line of the text, is no count.
    """
    if not _running:
        return text
    parts = _PLACE.split(text)  # every second one is a place
    return "".join(part if i % 2 else _running[-1].cells.text(part) for i, part in enumerate(parts))


def naming(dataset: str) -> "list[Dataset]":
    """The datasets whose declarations contain this one's name, directly or through other datasets.

    Only these can be made of it. Datasets that cannot be loaded are left out: their own commands say why.
    """
    files = declarations().files
    texts = {name: path.read_text(encoding="utf-8", errors="replace") for name, path in files.items()}
    found: dict[str, Dataset] = {}
    asked = [dataset]
    while asked:
        wanted = re.compile(rf"\b{re.escape(asked.pop())}\b")
        for name in sorted(texts):
            if name == dataset or name in found or not wanted.search(texts[name]):
                continue
            with suppress(DataprepError, ValueError):
                found[name] = component(name)
                asked.append(found[name].declaration.dataset)
    return list(found.values())


def others(dataset: str) -> "list[Dataset]":
    """All other declared datasets that can be loaded, sorted by name."""
    return _loaded(name for name in sorted(declarations().files) if name != dataset)


def retracting(dataset: str) -> "list[Dataset]":
    """The other datasets that may have retracted documents."""
    return _loaded(name for name in sorted(declarations().files) if name != dataset and may_retract(name))


def may_retract(dataset: str) -> bool:
    """Whether a dataset has a retraction list: beside its declaration, or at a place that the declaration names."""
    path = declarations().files[dataset]
    return path.with_name("retracted.jsonl").exists() or "retractions:" in path.read_text(errors="replace")


def _loaded(names: Iterable[str]) -> "list[Dataset]":
    found = []
    for name in names:
        with suppress(DataprepError, ValueError):
            found.append(component(name))
    return found


def instance_home() -> Path:
    """The folder of the Dagster instance: DAGSTER_HOME, by default one inside the project.

    Raises ConfigError if DAGSTER_HOME is not an absolute path.
    """
    if not os.environ.get("DAGSTER_HOME"):
        os.environ["DAGSTER_HOME"] = str(current().dagster_home)
    home = Path(os.environ["DAGSTER_HOME"])
    if not home.is_absolute():
        raise ConfigError(f"DAGSTER_HOME: {str(home)!r}: Dagster wants an absolute path")
    return home


def browser() -> str:
    """The command that shows the project in the browser, as it can be typed in the working folder."""
    root = current().root
    makefile = root / "Makefile"
    if makefile.is_file() and re.search(r"^ui:", makefile.read_text(encoding="utf-8"), re.MULTILINE):
        return "make ui" if root == Path.cwd() else f"make -C {root} ui"
    home = "" if instance_home() == current().dagster_home else f"DAGSTER_HOME={instance_home()} "
    return f"{home}dataprep ui" if root == Path.cwd() else f"{home}dataprep --project {root} ui"


def in_the_browser() -> str:
    """The line that says how to see the result in the browser."""
    return f"see it: {browser()}, then open http://127.0.0.1:3000"


def _opened() -> "dg.DagsterInstance":
    """The instance of DAGSTER_HOME; raises ConfigError if its settings are invalid."""
    import dagster as dg
    import yaml  # type: ignore[import-untyped]

    settings = instance_home() / "dagster.yaml"
    try:
        _require_own_storage_of_dagster(settings)
        return dg.DagsterInstance.get()
    except (dg.DagsterError, yaml.YAMLError) as error:
        said = " ".join(str(error).split()).partition(" Expected: ")[0]
        raise ConfigError(f"{settings}: Dagster cannot open its instance: {said:.300}") from error


def _require_own_storage_of_dagster(settings: Path) -> None:
    """Raise ConfigError if the settings of an instance name classes that an earlier release wrote into them."""
    import yaml

    found = yaml.safe_load(settings.read_bytes()) if settings.exists() else None
    gone = [key for key, value in found.items() if _GONE.search(str(value))] if isinstance(found, dict) else []
    if gone:
        raise ConfigError(
            f"{settings}: delete {' and '.join(f'`{key}:`' for key in gone)} with what is below: the classes named "
            "there are gone. Dagster's own, the default, keep the same files: all runs, records and logs stay"
        )


def _quiet() -> None:
    import dagster as dg

    logging.getLogger("dagster").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", dg.BetaWarning)


def instance() -> "dg.DagsterInstance":
    """The Dagster instance, created on first use, with limits on the pools of the assets.

    Raises ConfigError if its folder cannot be created, or if its settings are invalid.
    """

    # the planned materializations of a run with many partitions are then written in one batch
    os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", "1000")
    from dataprep_assets.orchestration.pools import limit_pools

    _quiet()
    home = instance_home()
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)  # runs, logs and events of every dataset are in it
    except OSError as error:
        raise ConfigError(f"DAGSTER_HOME: {home}: cannot be made a folder: {error.strerror}") from error
    with _locked(home):
        if not (home / "dagster.yaml").exists():
            shutil.copyfile(TEMPLATE / "dagster.yaml", home / "dagster.yaml")
        found = _opened()
        found.all_asset_keys()  # the event log creates its tables at the first query
        limit_pools(found)
        return found


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Two commands that create the databases of a new home at the same time would collide."""
    with open(home / ".dataprep.lock", "a", opener=own_file) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
