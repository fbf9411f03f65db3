"""What stands in a database of Dagster's, which compresses some of it."""

import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path


def cells(database: Path) -> Iterator[tuple[str, bytes]]:
    """Every value of every table, decompressed where it is compressed."""
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
