"""The project that the commands work on: its storage, its declared datasets, its Dagster instance.

Dagster is imported when it is first needed: most commands do without.
"""

import argparse
import fcntl
import logging
import os
import re
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dataprep_assets.errors import ConfigError, DataprepError

if TYPE_CHECKING:
    import dagster as dg

    from dataprep_assets.orchestration.component import DatasetComponent
    from dataprep_assets.stores.connect import Place
    from resources import StorageResource

__all__ = [
    "PROJECT_ROOT",
    "Commands",
    "component",
    "folder",
    "instance",
    "instance_home",
    "instance_there",
    "naming",
    "place",
    "place_of_dataset",
    "storage",
]

PROJECT_ROOT = Path(__file__).resolve().parents[2]


class Commands(Protocol):
    """What a command adds its parser to; argparse has no public name for it."""

    def add_parser(self, name: str, *, help: str) -> argparse.ArgumentParser:
        """The parser of a command."""


def storage() -> "StorageResource":
    """The storage that the environment names."""
    from resources import open_storage

    return open_storage(PROJECT_ROOT)


def place(url: str | None, profile: str | None = None) -> "Place":
    """The store at a URL or in a folder, or the storage of the environment."""
    from dataprep_assets.stores.connect import place_of

    return storage().place() if url is None else place_of(url, os.environ, profile=profile)


def place_of_dataset(place: "Place", dataset: str) -> "Place":
    """The folder of a dataset below a place, where there is one, so that nothing else of it is read; else the place."""
    from dataprep_assets.stores.connect import GcsPlace, LocalPlace, S3Place

    if isinstance(place, LocalPlace):
        below = place.root / dataset
        return replace(place, root=below) if below.is_dir() else place
    if not isinstance(place, S3Place | GcsPlace):
        return place
    narrow = replace(place, prefix=f"{place.prefix}/{dataset}".lstrip("/"))
    return place if next(narrow().list(), None) is None else narrow


def folder(name: str) -> Path:
    """The folder of a dataset's defs.yaml, whether or not it is there."""
    return PROJECT_ROOT / "dataprep_assets" / "defs" / name


def component(name: str) -> "DatasetComponent":
    """The declared dataset of this name; ConfigError when there is none, or its component is not one of ours."""
    from dataprep_assets.definitions import tree
    from dataprep_assets.orchestration.component import DatasetComponent

    known = _declarations()
    if name not in known:
        raise ConfigError(f"{name!r} is not a dataset here; defs/ has {sorted(known)}")
    found = tree().load_component(Path(name))
    if not isinstance(found, DatasetComponent):
        raise ConfigError(f"{name!r} is a {type(found).__name__}, which `dataprep` cannot run; use `dg launch`")
    return found


def _declarations() -> dict[str, Path]:
    """Name of each declared dataset → its `defs.yaml`."""
    folder = PROJECT_ROOT / "dataprep_assets" / "defs"
    return {path.parent.relative_to(folder).as_posix(): path for path in folder.rglob("defs.yaml")}


def naming(dataset: str) -> "list[DatasetComponent]":
    """The other datasets whose declarations have this one's name in them, and those that name these, and so on.

    Only these can be made of it. One that cannot be loaded is left out: its own commands tell why.
    """
    import dagster as dg

    texts = {name: path.read_text(encoding="utf-8", errors="replace") for name, path in _declarations().items()}
    found: dict[str, DatasetComponent] = {}
    asked = [dataset]
    while asked:
        wanted = re.compile(rf"\b{re.escape(asked.pop())}\b")
        for name in sorted(texts):
            if name == dataset or name in found or not wanted.search(texts[name]):
                continue
            with suppress(DataprepError, dg.DagsterError, ValueError):
                found[name] = component(name)
                asked.append(found[name].declaration.dataset)
    return list(found.values())


def instance_home() -> Path:
    """The folder of the Dagster instance: DAGSTER_HOME, by default one inside the project."""
    return Path(os.environ.setdefault("DAGSTER_HOME", str(PROJECT_ROOT / ".dagster")))


def instance_there() -> "dg.DagsterInstance | None":
    """The instance where there is one; none is made."""
    import dagster as dg

    if not (instance_home() / "dagster.yaml").exists():
        return None
    _quiet()
    return dg.DagsterInstance.get()


def _quiet() -> None:
    import dagster as dg

    logging.getLogger("dagster").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", dg.BetaWarning)


def instance() -> "dg.DagsterInstance":
    """The instance, made on first use."""
    import dagster as dg

    _quiet()
    home = instance_home()
    home.mkdir(parents=True, exist_ok=True)
    # two commands that make the databases of a new home at once would trip over each other's tables
    with open(home / ".dataprep.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "dagster.yaml").exists():
            (home / "dagster.yaml").write_text((PROJECT_ROOT / "deploy" / "local" / "dagster.yaml").read_text())
        found = dg.DagsterInstance.get()
        found.all_asset_keys()  # the event log makes its tables when it is first asked
        return found
