"""Opens the Dagster instance of a project, which is created on first use, with limits on the pools of the assets."""

import fcntl
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import yaml  # type: ignore[import-untyped]

from dataprep_assets.engine.yaml.mistakes import not_yaml
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.project_template import TEMPLATE
from dataprep_assets.stores.locks import own_file

_GONE = re.compile(r"dataprep_assets\.orchestration\.(sqlite_storage|compute_logs)\b")


def open_instance(home: Path) -> dg.DagsterInstance:
    """Open the instance in the folder `home`, which is DAGSTER_HOME.

    Raises ConfigError if the folder cannot be created, or if its settings are invalid or name a database that cannot be
    opened.
    """
    # the planned materializations of a run with many partitions are then written in one batch
    os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", "1000")
    logging.getLogger("dagster").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", dg.BetaWarning)
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)  # runs, logs and events of every dataset are in it
    except OSError as error:
        raise ConfigError(f"DAGSTER_HOME: {home}: cannot create this folder: {error.strerror}") from error
    with _locked(home):
        if not (home / "dagster.yaml").exists():
            shutil.copyfile(TEMPLATE / "dagster.yaml", home / "dagster.yaml")
        return _open_configured(home / "dagster.yaml")


def _open_configured(settings: Path) -> dg.DagsterInstance:
    try:
        _require_own_storage_of_dagster(settings)
        instance = dg.DagsterInstance.get()
        instance.all_asset_keys()  # the event log creates its tables at the first query
        from dataprep_assets.orchestration.runs.runs import limit_pools

        limit_pools(instance)
        return instance
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        line, what = not_yaml(error, settings.read_text(encoding="utf-8", errors="replace"))
        raise ConfigError(f"{settings}:{line}: invalid YAML: {what}") from error
    except Exception as error:  # the driver of a damaged or unreachable database may raise any error
        # omits Dagster's list of accepted values, and the statement that SQLAlchemy sent
        why = re.split(r" Expected: | \[SQL: ", " ".join(str(error).split()))[0] or type(error).__name__
        raise ConfigError(f"{settings}: Dagster cannot open its instance: {why:.300}") from error


@contextmanager
def database_errors(home: Path) -> Iterator[None]:
    """Turn errors of Dagster's database driver, such as a full disk, into a DataprepError."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        raise DataprepError(
            f"DAGSTER_HOME: {home}: cannot use Dagster's database: {error.orig}. Finished work is kept. Free space "
            "there, or choose another folder, then run again"
        ) from error


def _require_own_storage_of_dagster(settings: Path) -> None:
    """Raise ConfigError if the settings name classes that this package had in earlier releases."""
    found = yaml.safe_load(settings.read_bytes()) if settings.exists() else None
    gone = [key for key, value in found.items() if _GONE.search(str(value))] if isinstance(found, dict) else []
    if gone:
        raise ConfigError(
            f"{settings}: {' and '.join(f'`{key}:`' for key in gone)}: names a removed class. Delete the "
            "whole block: Dagster's default reads the same files and keeps all runs, records and logs"
        )


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """Lock the folder, because two commands could otherwise create its databases at the same time."""
    with open(home / ".dataprep.lock", "a", opener=own_file) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
