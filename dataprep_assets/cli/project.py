"""The project that the commands work on: its storage, its declared datasets, its Dagster instance.

Dagster is imported when it is first needed: most commands do without.
"""

import argparse
import fcntl
import logging
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dataprep_assets.errors import ConfigError

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
    import dagster as dg

    from dataprep_assets.orchestration.component import DatasetComponent

    folder = PROJECT_ROOT / "dataprep_assets" / "defs"
    known = sorted(path.parent.relative_to(folder).as_posix() for path in folder.rglob("defs.yaml"))
    if name not in known:
        raise ConfigError(f"{name!r} is not a dataset here; defs/ has {known}")
    found = dg.ComponentTree.for_project(PROJECT_ROOT).load_component(Path(name))
    if not isinstance(found, DatasetComponent):
        raise ConfigError(f"{name!r} is a {type(found).__name__}, which `dataprep` cannot run; use `dg launch`")
    return found


def instance_home() -> Path:
    """The folder of the Dagster instance: DAGSTER_HOME, by default one inside the project."""
    return Path(os.environ.setdefault("DAGSTER_HOME", str(PROJECT_ROOT / ".dagster")))


def instance() -> "dg.DagsterInstance":
    """The instance, made on first use."""
    import dagster as dg

    logging.getLogger("dagster").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", dg.BetaWarning)
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
