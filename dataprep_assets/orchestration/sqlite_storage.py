"""Dagster's SQLite storage, without the work that it repeats for every event.

For each query and each event Dagster 1.13 creates a new SQLAlchemy engine, so that each statement is compiled again. It
opens and closes the database for it, which copies the write-ahead log into the file and syncs both. For each event of a
check or an asset it inspects which tables and columns exist. And for each run's database, and whenever an instance is
opened (as each tick of a sensor does), it reads its schema migrations again, eighty Python files. Together that is half
of the time of a small run, and of a tick.

Here connections stay open until their instance is disposed of, the database of a run begins as a copy of an empty one,
and a database that has its tables is not inspected again. What a run is about to do, one event for each partition and
each check, is written in one batch (if DAGSTER_EVENT_BATCH_SIZE is set, as every command does). Files and tables are
Dagster's own. The UI follows a run by changes of its file, which a commit to the write-ahead log does not make: so each
write also touches the file.

Entry point: `SqliteStorage`, named in `dagster.yaml`.
"""

import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from dagster._core.events import DagsterEventType
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, AssetKeyTable, SqlEventLogStorageTable
from dagster._core.storage.runs import SqliteRunStorage
from dagster._core.storage.schedules import SqliteScheduleStorage
from dagster._core.storage.sqlite import create_db_conn_string
from dagster._core.storage.sqlite_storage import (
    DagsterSqliteStorage,
    _event_logs_directory,
    _runs_directory,
    _schedule_directory,
)
from dagster._serdes import ConfigurableClassData
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

__all__ = ["SqliteStorage"]

_CHECK_PLANNED = DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED
_PLANNED = (DagsterEventType.ASSET_MATERIALIZATION_PLANNED, _CHECK_PLANNED)
_BUSY_SECONDS = 60.0
_MOST_OPEN = 16
"""Most databases that stay open: a process writes to few at a time."""


class SqliteStorage(DagsterSqliteStorage):
    """Runs, events and schedules in SQLite, in Dagster's folders `history` and `schedules` below `base_dir`."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        runs, schedules = _runs_directory(base_dir), _schedule_directory(base_dir)
        if _made(Path(runs, "runs.db"), "instance_info") and _made(Path(schedules, "schedules.db"), "job_ticks"):
            super(DagsterSqliteStorage, self).__init__()  # type: ignore[no-untyped-call]  # its own reads the history
        else:
            super().__init__(base_dir, inst_data)
        self.base_dir, self._inst_data = base_dir, inst_data
        self._run_storage = _Runs(str(Path(runs, "runs.db").absolute()))
        self._schedule_storage = _Schedules(str(Path(schedules, "schedules.db").absolute()))
        self._event_log_storage = _Events(_event_logs_directory(base_dir))

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> Self:
        return cls.from_local(inst_data=inst_data, **config_value)


class _KeptOpen:
    """Mixin of the storages: their connections come from `_databases`, which all of them share."""

    def __init__(self, path: str) -> None:
        super().__init__(_url(path))  # type: ignore[call-arg]
        self._path = path

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        with _databases.connect(self._path) as connection, connection.begin():
            yield connection

    def dispose(self) -> None:
        super().dispose()  # type: ignore[misc]
        _databases.close(self._path)


class _Runs(_KeptOpen, SqliteRunStorage):
    pass


class _Schedules(_KeptOpen, SqliteScheduleStorage):
    pass


class _Events(SqliteEventLogStorage):
    _empty: bytes | None = None
    """The bytes of a run's database before its first event."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(base_dir, inst_data)
        self._there: set[str] = set()
        """Tables and columns known to exist in the index; only `wipe` removes them."""

    def has_table(self, table_name: str) -> bool:
        if table_name not in self._there and super().has_table(table_name):
            self._there.add(table_name)
        return table_name in self._there

    def _has_asset_key_col_on_connection(self, conn: Connection, column_name: str) -> bool:
        name = f"{AssetKeyTable.name}.{column_name}"
        if name not in self._there and super()._has_asset_key_col_on_connection(conn, column_name):
            self._there.add(name)
        return name in self._there

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """Write the planned materializations and checks of a run in two transactions, and other events one by one."""
        planned = [one for one in events if one.dagster_event_type in _PLANNED]
        for run in dict.fromkeys(one.run_id for one in planned):
            of_run = [one for one in planned if one.run_id == run]
            rows = [self._event_to_row(one) for one in of_run]
            with self.run_connection(run) as connection:
                connection.execute(SqlEventLogStorageTable.insert(), rows)
            with self.index_transaction() as connection:
                columns = SqlEventLogStorageTable.columns
                insert = SqlEventLogStorageTable.insert().returning(columns.id, sort_by_parameter_order=True)
                stored = list(zip(rows, of_run, connection.execute(insert, rows).scalars(), strict=True))
                assets = {row["asset_key"]: one for row, one, _ in stored if one.dagster_event_type != _CHECK_PLANNED}
                for one in assets.values():
                    # no asset row to update: it holds the ids of materializations only, and these are plans
                    self._store_asset_event(connection, one, event_id=0)
                checks = [_execution(*each) for each in stored if each[1].dagster_event_type == _CHECK_PLANNED]
                if checks:
                    connection.execute(AssetCheckExecutionsTable.insert(), [row for rows in checks for row in rows])
        for one in events:
            if one.dagster_event_type not in _PLANNED:
                self.store_event(one)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        path = self.path_for_shard(shard)
        with self._db_lock:
            if shard not in self._initialized_dbs:
                self._begin(Path(path), shard)
                self._initialized_dbs.add(shard)
            with _databases.connect(path) as connection:
                before = _changes(connection)
                with connection.begin():
                    yield connection
                if _changes(connection) != before:
                    os.utime(path)  # the UI watches it

    def _begin(self, path: Path, shard: str) -> None:
        """Create the tables of a database unless they exist."""
        if _made(path, "event_logs"):
            return
        if path.exists():
            self._make_tables(shard)
        elif self._empty is None:
            self._make_tables(shard)
            with sqlite3.connect(path) as connection:
                type(self)._empty = connection.serialize()
            connection.close()
        else:
            new = path.with_name(f".{path.name}.new")
            new.write_bytes(self._empty)
            with suppress(FileExistsError):  # another process has created it in the meantime
                path.hardlink_to(new)
            new.unlink()

    def _make_tables(self, shard: str) -> None:
        # closed at once, because the code below reads the file
        self._initdb(_new_engine(self.path_for_shard(shard), poolclass=NullPool))

    def wipe(self) -> None:
        self._close()  # it removes the files
        self._there.clear()
        super().wipe()

    def dispose(self) -> None:
        super().dispose()
        self._close()

    def _close(self) -> None:
        for shard in self._initialized_dbs:
            _databases.close(self.path_for_shard(shard))


def _execution(row: Mapping[str, Any], event: EventLogEntry, event_id: int) -> list[dict[str, Any]]:
    """The rows of a planned check among the executions of checks: one, or one for each partition of the run."""
    planned: Any = event.get_dagster_event().event_specific_data
    partitions = planned.partitions_subset.get_partition_keys() if planned.partitions_subset else [None]
    shared = {
        "asset_key": planned.asset_key.to_string(),
        "check_name": planned.check_name,
        "run_id": event.run_id,
        "execution_status": AssetCheckExecutionRecordStatus.PLANNED.value,
        "evaluation_event": row["event"],
        "evaluation_event_timestamp": row["timestamp"],
        "evaluation_event_storage_id": event_id,
    }
    return [{**shared, "partition": partition} for partition in partitions]


def _made(path: Path, table: str) -> bool:
    """Whether Dagster has finished creating a database: it has this table and the version of the schema."""
    if not path.exists():
        return False
    tables = "select count(*) from sqlite_master where name = ?"
    with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as connection:
        if connection.execute(tables, ["alembic_version"]).fetchone() == (0,):
            return False
        versions = connection.execute("select count(*) from alembic_version").fetchone()
        return versions != (0,) and connection.execute(tables, [table]).fetchone() == (1,)


class _Databases:
    """The databases that this process has open, by path; the least recently used are closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: OrderedDict[str, tuple[Engine, int]] = OrderedDict()

    def connect(self, path: str) -> Connection:
        """A connection to a database; closing it returns it to its engine."""
        with self._lock:
            return self._engine(path).connect()

    def _engine(self, path: str) -> Engine:
        engine, known = self._engines.pop(path, (None, 0))
        if engine is not None and _inode(path) != known:  # the file was removed, and perhaps created again
            engine.dispose()
            engine = None
        if engine is None:
            engine = _new_engine(path)
            engine.connect().close()  # creates the file if there is none
            known = _inode(path)
        self._engines[path] = (engine, known)
        if len(self._engines) > _MOST_OPEN:
            self._engines.popitem(last=False)[1][0].dispose()
        return engine

    def close(self, path: str) -> None:
        """Close a database; it is opened again when it is next needed."""
        with self._lock:
            engine, _ = self._engines.pop(path, (None, 0))
        if engine is not None:
            engine.dispose()

    def forget(self) -> None:
        """Drop the connections after a fork, without closing them: they belong to the parent process."""
        self._lock = threading.Lock()
        for engine, _ in self._engines.values():
            engine.dispose(close=False)
        self._engines.clear()


_databases = _Databases()
os.register_at_fork(after_in_child=_databases.forget)


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return 0


def _url(path: str) -> str:
    folder, name = os.path.split(path)
    return create_db_conn_string(folder, name.removesuffix(".db"))


def _new_engine(path: str, **options: Any) -> Engine:
    engine = create_engine(_url(path), connect_args={"timeout": _BUSY_SECONDS}, **options)
    event.listen(engine, "connect", _set_up)
    return engine


def _set_up(connection: Any, _: Any) -> None:
    """Do not sync each commit: it is in the log at once, and on the disk when SQLite copies the log into the file."""
    connection.execute("PRAGMA synchronous=NORMAL")


def _changes(connection: Connection) -> int:
    """Number of rows that the connection has written so far."""
    driver: Any = connection.connection.driver_connection
    return int(driver.total_changes)
