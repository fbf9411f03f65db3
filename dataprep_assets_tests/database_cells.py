"""The contents of a Dagster database, some of which Dagster compresses."""

import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path


def read_cells(database: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every value of every table, decompressed if necessary."""
    with sqlite3.connect(database) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        for table in tables:
            for row in connection.execute(f'select * from "{table}"'):
                for value in row:
                    raw = value if isinstance(value, bytes) else str(value).encode()
                    yield table, raw
                    try:
                        yield table, zlib.decompress(raw)
                    except zlib.error:
                        continue
