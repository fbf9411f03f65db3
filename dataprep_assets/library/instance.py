"""Opens the Dagster instance of a project, creates it on first use, and limits the pools of its assets."""

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

from dataprep_assets.engine.yaml.mistakes import locate_yaml_error
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.project_template import TEMPLATE
from dataprep_assets.stores.locks import open_own_file

_REMOVED = re.compile(r"dataprep_assets\.orchestration\.(sqlite_storage|compute_logs)\b")


def open_instance(home: Path) -> dg.DagsterInstance:
    """Open the instance in the folder `home`, which is DAGSTER_HOME.

    Raises ConfigError if the folder cannot be created, or if its settings are invalid or name a database that cannot be
    opened.
    """
    # Write events in batches, because a run may plan the materializations of many partitions, and single writes would
    # be slow.
    os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", "1000")
    logging.getLogger("dagster").setLevel(logging.ERROR)
    warnings.simplefilter("ignore", dg.BetaWarning)
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        home.mkdir(mode=0o700, exist_ok=True)  # private, because it has runs, logs and events of every dataset
    except OSError as error:
        raise ConfigError(
            f"DAGSTER_HOME: {home}: cannot create this folder: {error.strerror}. Choose a different folder"
        ) from error
    with _lock_folder(home):
        if not (home / "dagster.yaml").exists():
            shutil.copyfile(TEMPLATE / "dagster.yaml", home / "dagster.yaml")
        return _open_configured(home / "dagster.yaml")


def _open_configured(settings: Path) -> dg.DagsterInstance:
    try:
        _refuse_removed_classes(settings)
        instance = dg.DagsterInstance.get()
        # Query the event log now, because it creates its tables at the first query, and this function reports the
        # errors of the database.
        instance.all_asset_keys()
        from dataprep_assets.orchestration.runs.runs import limit_pools

        limit_pools(instance)
        return instance
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        line, problem = locate_yaml_error(error, settings.read_text(encoding="utf-8", errors="replace"))
        raise ConfigError(f"{settings}:{line}: invalid YAML: {problem}") from error
    except Exception as error:  # the database driver may raise any error for a damaged or unreachable database
        # Keep only the reason, without Dagster's list of accepted values and the statement that SQLAlchemy sent.
        reason = re.split(r" Expected: | \[SQL: ", " ".join(str(error).split()))[0] or type(error).__name__
        raise ConfigError(
            f"{settings}: Dagster cannot open its instance: {reason:.300}. Correct the file, or check the database"
        ) from error


@contextmanager
def convert_database_errors(home: Path) -> Iterator[None]:
    """Convert errors of Dagster's database driver, such as a full disk, to a DataprepError."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        raise DataprepError(
            f"DAGSTER_HOME: {home}: cannot use Dagster's database: {error.orig}. Finished work is kept. Free space "
            "there, or choose a different folder, then run the command again"
        ) from error


def _refuse_removed_classes(settings: Path) -> None:
    """Raise ConfigError if the settings name classes that this package has removed."""
    settings_values = yaml.safe_load(settings.read_bytes()) if settings.exists() else None
    removed_keys = (
        [key for key, value in settings_values.items() if _REMOVED.search(str(value))]
        if isinstance(settings_values, dict)
        else []
    )
    if removed_keys:
        raise ConfigError(
            f"{settings}: {' and '.join(f'`{key}:`' for key in removed_keys)}: names a class that no longer exists. "
            "Delete the whole block. Dagster's default reads the same files and keeps all runs, records and logs"
        )


@contextmanager
def _lock_folder(home: Path) -> Iterator[None]:
    """Lock the folder, so that two commands cannot create its databases at the same time."""
    with open(home / ".dataprep.lock", "a", opener=open_own_file) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
