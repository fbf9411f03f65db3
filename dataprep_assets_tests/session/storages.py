"""Cache, in a test process, objects that Dagster's storages otherwise read or create for each instance and connection.

Alembic imports the 89 files of the storages' history twice for each instance. SQLite storages create an engine for each
connection, six for an event, and an engine compiles every statement that it has not seen, which takes a sixth of a
short run. When the last connection to a database closes, SQLite copies the write-ahead log into the database and
deletes it, which takes another quarter, so each engine keeps a connection open. A new database is a copy of the first
of its kind, whose tables and migrations take an eighth of a second.
"""

import os
import sqlite3
import sys
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ENGINES = 32
"""Maximum number of engines to keep; a new engine compiles its statements again."""
_OF_SQLITE = (
    "dagster._core.storage.event_log.sqlite.sqlite_event_log",
    "dagster._core.storage.runs.sqlite.sqlite_run_storage",
    "dagster._core.storage.schedules.sqlite.sqlite_schedule_storage",
)

_STORAGES = ("SqliteRunStorage", "SqliteScheduleStorage")
_OF_A_RUN = "run"


def keep_what_storages_make() -> None:
    """Make imported modules of alembic and of the storages cache the objects that they create."""
    _keep_migrations()
    for name in _OF_SQLITE:
        module: Any = sys.modules.get(name)
        if module is not None and not hasattr(module.create_engine, "kept"):
            module.create_engine = _keep_engines(module)


def _keep_migrations() -> None:
    module = sys.modules.get("alembic.script.base")
    if module is None or hasattr(module.ScriptDirectory, "_of_location"):
        return
    made: dict[str, Any] = {}
    original = module.ScriptDirectory.from_config

    def from_config(config: Any) -> Any:
        location = config.get_main_option("script_location")
        if location not in made:
            made[location] = original(config)
        return made[location]

    module.ScriptDirectory._of_location = made
    module.ScriptDirectory.from_config = from_config


def make_databases() -> None:
    """Create the databases that are copied for new ones, in a process from which programs are forked."""
    for name in _OF_SQLITE:
        if (module := sys.modules.get(name)) is not None:
            _databases(module)


def _keep_engines(module: Any) -> Any:
    """Return a `create_engine` for engines without a pool, whose connections are not shared."""
    create = module.create_engine

    @lru_cache(ENGINES)
    def made(url: str, *settings: Any) -> Any:
        named = {name: dict(value) if isinstance(value, tuple) else value for name, value in settings}
        engine = create(url, **named)
        # Do not dispose of the engine, because it has nothing to close, and disposal would create its empty pool again.
        engine.dispose = lambda **_: None
        _keep_open(engine)
        return engine

    def create_engine(url: str, **settings: Any) -> Any:
        fixed = ((name, tuple(v.items()) if isinstance(v, dict) else v) for name, v in sorted(settings.items()))
        engine = made(url, *fixed)
        path = Path(engine.url.database)
        if path.suffix == ".db" and path.parent.is_dir() and not path.exists():
            databases = _databases(module)
            _write_once(path, databases.get(path.stem) or databases[_OF_A_RUN])
        return engine

    create_engine.kept = made  # type: ignore[attr-defined]
    create_engine.original = create  # type: ignore[attr-defined]
    return create_engine


@cache
def _databases(module: Any) -> dict[str, bytes]:
    """Return the empty databases of a storage, by name; all runs share one."""
    keeping, module.create_engine = module.create_engine, module.create_engine.original
    try:
        with TemporaryDirectory() as folder:
            if hasattr(module, "SqliteEventLogStorage"):
                with module.SqliteEventLogStorage(folder).run_connection(_OF_A_RUN):
                    pass
            else:
                (storage,) = (value for name, value in vars(module).items() if name in _STORAGES)
                storage.from_local(folder)
            found = {}
            for path in Path(folder).glob("*.db"):
                connection = sqlite3.connect(path)
                found[path.stem] = connection.serialize()
                connection.close()
            return found
    finally:
        module.create_engine = keeping


def _write_once(path: Path, content: bytes) -> None:
    """Write a file unless another process has written it first."""
    own = path.with_name(f"{path.name}.{os.getpid()}")
    own.write_bytes(content)
    try:
        os.link(own, path)
    except FileExistsError:
        pass
    finally:
        own.unlink()


def _keep_open(engine: Any) -> None:
    """Make an engine of a file keep an idle connection of its own once the file has a write-ahead log."""
    from sqlalchemy import event

    spare: list[sqlite3.Connection] = []

    def keep(connection: sqlite3.Connection, _: Any) -> None:
        if not spare and connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
            spare.append(sqlite3.connect(engine.url.database, check_same_thread=False))
            # Read once, because an idle connection keeps the write-ahead log only after its first read.
            spare[0].execute("SELECT count(*) FROM sqlite_master").fetchone()

    event.listen(engine, "connect", keep)
