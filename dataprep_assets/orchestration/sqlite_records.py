"""What the instance of this machine has recorded, read from its SQLite file without importing Dagster or SQLAlchemy.

Only a home whose `dagster.yaml` names this project's storage is read, as `dataprep init` writes it, and only a file in
the version of the schema that is known here; any other is left to Dagster. The queries are those of
`dagster._core.storage.event_log.sql_event_log`: `get_latest_materialization_events`, `get_materialized_partitions` and
`get_latest_asset_check_execution_by_key`. Nothing is written.
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing, contextmanager
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from dataprep_assets.graph.asset_path import AssetPath
from dataprep_assets.graph.finding import ACCEPTED
from dataprep_assets.orchestration.recorded import Check, Evaluation
from dataprep_assets.project_template import TEMPLATE

__all__ = ["SCHEMA", "OnlyDagsterError", "SqliteRecords", "opened"]

SCHEMA = "29b539ebc72a"
"""The version of the schema (of Dagster 1.13) that the queries are for."""
_BUSY_SECONDS = 60.0
_MATERIALIZED = """
    from event_logs as event left join asset_keys as asset on asset.asset_key = event.asset_key
    where event.asset_key = ? and event.dagster_event_type = 'ASSET_MATERIALIZATION'
    and (asset.wipe_timestamp is null or event.timestamp > asset.wipe_timestamp)
"""
_LATEST = """
    select asset_key, check_name, evaluation_event from asset_check_executions where id in
    (select max(id) from asset_check_executions where asset_key = ? group by check_name)
"""


class SqliteRecords:
    """The records in an open file of Dagster's index of events."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def is_materialized(self, path: AssetPath) -> bool:
        found = self._connection.execute(f"select 1 {_MATERIALIZED} limit 1", [_key(path)])
        return found.fetchone() is not None

    def partitions(self, path: AssetPath) -> Set[str]:
        query = f"select distinct event.partition {_MATERIALIZED} and event.partition is not null"
        return {partition for (partition,) in self._connection.execute(query, [_key(path)])}

    def evaluations(self, checks: Sequence[Check]) -> Mapping[Check, Evaluation]:
        wanted, found = set(checks), dict[Check, Evaluation]()
        for path in dict.fromkeys(path for path, _ in checks):
            for _, name, event in self._connection.execute(_LATEST, [_key(path)]):
                if (path, name) in wanted and event and (evaluation := _evaluation(json.loads(event))) is not None:
                    found[path, name] = evaluation
        return found


class OnlyDagsterError(Exception):
    """The instance has another storage or another schema, or its file is damaged: Dagster reads it, or says so."""


@contextmanager
def opened(home: Path) -> Iterator[SqliteRecords | None]:
    """The records of the instance in this folder (DAGSTER_HOME); None if another process is just making its tables.

    Raises OnlyDagsterError.
    """
    if not _is_ours(home / "dagster.yaml"):
        raise OnlyDagsterError
    path = home / "history" / "runs" / "index.db"
    if not path.is_file():
        yield None
        return
    with closing(sqlite3.connect(path.absolute().as_uri() + "?mode=rw", uri=True, timeout=_BUSY_SECONDS)) as connection:
        schema = _schema(connection)
        if schema not in (None, SCHEMA):
            raise OnlyDagsterError
        yield None if schema is None else SqliteRecords(connection)


def _is_ours(settings: Path) -> bool:
    """Whether the instance has the storage that the template names."""
    try:
        found, ours = (yaml.load(path.read_bytes(), _LOADER) for path in (settings, TEMPLATE / "dagster.yaml"))
    except (OSError, ValueError, yaml.YAMLError):
        return False
    return isinstance(found, dict) and found.get("storage") == ours["storage"]


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _schema(connection: sqlite3.Connection) -> str | None:
    """The version of the schema; None until the tables are made, of which Dagster notes the version last."""
    try:
        tables = connection.execute("select count(*) from sqlite_master where name = 'alembic_version'").fetchone()
        found = connection.execute("select version_num from alembic_version").fetchone() if tables[0] else None
    except sqlite3.DatabaseError as error:
        raise OnlyDagsterError from error
    return None if found is None else str(found[0])


def _key(path: AssetPath) -> str:
    """An asset's key as it is in the columns of Dagster's tables."""
    return json.dumps(path)


def _evaluation(entry: Mapping[str, object]) -> Evaluation | None:
    """The evaluation in an event as Dagster serializes it; None of an execution that is only planned."""
    event = entry.get("dagster_event")
    if not isinstance(event, dict) or event.get("event_type_value") != "ASSET_CHECK_EVALUATION":
        return None
    said = event["event_specific_data"]
    accepted = said["metadata"].get(ACCEPTED)
    return Evaluation(
        passed=said["success"],
        blocks=said["severity"]["__enum__"] == "AssetCheckSeverity.ERROR",
        accepted=None if accepted is None else str(accepted["text"]),
    )
