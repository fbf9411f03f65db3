"""Dagster's SQLite storage, without what it does again for every event.

Dagster 1.13 makes a new engine of SQLAlchemy for each question and each event, so that each statement is compiled
again, opens and closes the database for it, which copies the write-ahead log into the file and syncs both, asks for
each event of a check or an asset which tables and columns there are, and reads the history of its tables (eighty Python
files) again for each run's database and whenever an instance is opened, as each look of a sensor does: half of the time
of a small run, and of a look. Here connections stay open until their instance is disposed of, the database of a run
begins as a copy of an empty one, and one that has its tables is believed. What a run says that it will make, an event
for each partition, is written at once (where DAGSTER_EVENT_BATCH_SIZE is set, as every command sets it). Files and
tables are Dagster's own. The UI follows a run by the changes of its file, which a commit to the log does not change: so
whatever is written touches the file.

Entry point: `SqliteStorage`, named in `dagster.yaml`.
"""

import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from dagster._core.events import DagsterEventType
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.event_log.schema import AssetKeyTable, SqlEventLogStorageTable
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

_PLANNED = DagsterEventType.ASSET_MATERIALIZATION_PLANNED
_BUSY_SECONDS = 60.0
_MOST_OPEN = 16
"""Databases that stay open: a process writes to few at a time."""


class SqliteStorage(DagsterSqliteStorage):
    """Runs, events and schedules in SQLite below the folder `history` and `schedules` of `base_dir`, as Dagster's."""

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
    """What storages in one database share: the connections of `_databases`."""

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
    """The database of a run before its first event."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(base_dir, inst_data)
        self._there: set[str] = set()
        """Tables and columns that were found in the index; nothing takes them away but `wipe`."""

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
        """Write what a run of many partitions will make in two transactions, and other events one by one."""
        planned = [one for one in events if one.dagster_event_type == _PLANNED]
        for run in dict.fromkeys(one.run_id for one in planned):
            of_run = [one for one in planned if one.run_id == run]
            rows = [self._event_to_row(one) for one in of_run]
            with self.run_connection(run) as connection:
                connection.execute(SqlEventLogStorageTable.insert(), rows)
            with self.index_transaction() as connection:
                connection.execute(SqlEventLogStorageTable.insert(), rows)
                for one in {row["asset_key"]: one for row, one in zip(rows, of_run, strict=True)}.values():
                    # an asset's row has the id of a materialization alone, which these are not
                    self._store_asset_event(connection, one, event_id=0)
        for one in events:
            if one.dagster_event_type != _PLANNED:
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
        """Make the tables of a database unless they are there."""
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
            with suppress(FileExistsError):  # another process has made it in the meantime
                path.hardlink_to(new)
            new.unlink()

    def _make_tables(self, shard: str) -> None:
        # closed at once: what follows reads the file
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


def _made(path: Path, table: str) -> bool:
    """Whether Dagster has made a database, to its end: it then has this table, and the version of all."""
    if not path.exists():
        return False
    tables = "select count(*) from sqlite_master where name = ?"
    with closing(sqlite3.connect(path, timeout=_BUSY_SECONDS)) as connection:
        if connection.execute(tables, ["alembic_version"]).fetchone() == (0,):
            return False
        versions = connection.execute("select count(*) from alembic_version").fetchone()
        return versions != (0,) and connection.execute(tables, [table]).fetchone() == (1,)


class _Databases:
    """The databases that this process has open, by their paths; those that were not used for longest are closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: OrderedDict[str, tuple[Engine, int]] = OrderedDict()

    def connect(self, path: str) -> Connection:
        """A connection, which returns to its engine when it is closed."""
        with self._lock:
            return self._engine(path).connect()

    def _engine(self, path: str) -> Engine:
        engine, known = self._engines.pop(path, (None, 0))
        if engine is not None and _inode(path) != known:  # the file was removed, and perhaps made again
            engine.dispose()
            engine = None
        if engine is None:
            engine = _new_engine(path)
            engine.connect().close()  # makes the file where there is none
            known = _inode(path)
        self._engines[path] = (engine, known)
        if len(self._engines) > _MOST_OPEN:
            self._engines.popitem(last=False)[1][0].dispose()
        return engine

    def close(self, path: str) -> None:
        """Close a database; it is opened again when it is asked for."""
        with self._lock:
            engine, _ = self._engines.pop(path, (None, 0))
        if engine is not None:
            engine.dispose()

    def forget(self) -> None:
        """Leave the connections to the process that forked this one."""
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
    """A commit is in the log when it returns, and on the disk when SQLite next copies the log into the file."""
    connection.execute("PRAGMA synchronous=NORMAL")


def _changes(connection: Connection) -> int:
    """How many rows the connection has written so far."""
    driver: Any = connection.connection.driver_connection
    return int(driver.total_changes)
