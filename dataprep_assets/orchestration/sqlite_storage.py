"""Dagster's SQLite storage, without what it does again for every event.

Dagster 1.13 makes a new engine of SQLAlchemy for each question and each event, so that each statement is compiled
again, and reads the history of its tables (eighty Python files) again for each run's database and whenever an instance
is opened, as each look of a sensor does: about a third of the CPU of a small run, and half of a look. Here an engine is
kept, the database of a run begins as a copy of an empty one, and one that has its tables is believed. Files and tables
are Dagster's own, and connections are still closed at once: the UI follows a run by the changes of its file, which come
with the closing.

Entry point: `SqliteStorage`, named in `dagster.yaml`.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from dagster._core.storage.event_log import SqliteEventLogStorage
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

_BUSY_SECONDS = 60.0
_ENGINES = 16
"""Engines that are kept: a process writes to few databases at a time."""


class SqliteStorage(DagsterSqliteStorage):
    """Runs, events and schedules in SQLite below the folder `history` and `schedules` of `base_dir`, as Dagster's."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        runs, schedules = _runs_directory(base_dir), _schedule_directory(base_dir)
        if _made(Path(runs, "runs.db"), "instance_info") and _made(Path(schedules, "schedules.db"), "job_ticks"):
            super(DagsterSqliteStorage, self).__init__()  # type: ignore[no-untyped-call] # nothing has to be made
        else:
            super().__init__(base_dir, inst_data)
        self.base_dir, self._inst_data = base_dir, inst_data
        self._run_storage = _Runs(create_db_conn_string(runs, "runs"))
        self._schedule_storage = _Schedules(create_db_conn_string(schedules, "schedules"))
        self._event_log_storage = _Events(_event_logs_directory(base_dir))

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> Self:
        return cls.from_local(inst_data=inst_data, **config_value)


class _Runs(SqliteRunStorage):
    @contextmanager
    def connect(self) -> Iterator[Connection]:
        with _engine(self._conn_string).connect() as connection, connection.begin():
            yield connection


class _Schedules(SqliteScheduleStorage):
    @contextmanager
    def connect(self) -> Iterator[Connection]:
        with _engine(self._conn_string).connect() as connection, connection.begin():
            yield connection


class _Events(SqliteEventLogStorage):
    _empty: bytes | None = None
    """The database of a run before its first event."""

    @contextmanager
    def _connect(self, shard: str) -> Iterator[Connection]:
        with self._db_lock:
            engine = _engine(self.conn_string_for_shard(shard))
            if shard not in self._initialized_dbs:
                self._begin(Path(self.path_for_shard(shard)), engine)
                self._initialized_dbs.add(shard)
            with engine.connect() as connection, connection.begin():
                yield connection

    def _begin(self, path: Path, engine: Engine) -> None:
        """Make the tables of a database unless they are there."""
        if _made(path, "event_logs"):
            return
        if path.exists():
            self._initdb(engine)
        elif self._empty is None:
            self._initdb(engine)
            with sqlite3.connect(path) as connection:
                type(self)._empty = connection.serialize()
            connection.close()
        else:
            new = path.with_name(f".{path.name}.new")
            new.write_bytes(self._empty)
            with suppress(FileExistsError):  # another process has made it in the meantime
                path.hardlink_to(new)
            new.unlink()


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


@lru_cache(maxsize=_ENGINES)
def _engine(url: str) -> Engine:
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": _BUSY_SECONDS})
    event.listen(engine, "connect", _set_up)
    return engine


def _set_up(connection: Any, _: Any) -> None:
    """A commit is in the file when it returns, and on the disk when the connection closes."""
    connection.execute("PRAGMA synchronous=NORMAL")
