"""Parquet files with every type, with very many nulls, lists and columns, and truncated ones."""

import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dataprep_assets_tests.tools.zoo.lines import damaged

_DAY = datetime.date(2020, 2, 29)
_TIME = datetime.datetime(2020, 2, 29, 12, 30)
TYPES: dict[str, tuple[Callable[[], pa.DataType], Any]] = {
    **{name: (getattr(pa, name), 7) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")},
    "uint64": (pa.uint64, (1 << 64) - 1),
    "float16": (pa.float16, 1.5),
    "float32": (pa.float32, float("nan")),
    "float64": (pa.float64, float("inf")),
    "bool": (pa.bool_, True),
    "null": (pa.null, None),
    "string": (pa.string, "a text"),
    "large_string": (pa.large_string, "a text"),
    "binary": (pa.binary, b"\xff\x00"),
    "large_binary": (pa.large_binary, b"a text"),
    "fixed binary": (lambda: pa.binary(4), b"abcd"),
    "date32": (pa.date32, _DAY),
    "date64": (pa.date64, _DAY),
    "time32": (lambda: pa.time32("s"), datetime.time(1, 2)),
    "time64": (lambda: pa.time64("ns"), datetime.time(1, 2)),
    "timestamp": (lambda: pa.timestamp("us"), _TIME),
    "timestamp with a zone": (lambda: pa.timestamp("ns", "Asia/Kathmandu"), _TIME),
    "duration": (lambda: pa.duration("s"), datetime.timedelta(days=1)),
    "decimal128": (lambda: pa.decimal128(38, 10), decimal.Decimal("1.5")),
    "decimal256": (lambda: pa.decimal256(76, 0), decimal.Decimal(10) ** 75),
    "list": (lambda: pa.list_(pa.string()), ["a", None]),
    "large_list": (lambda: pa.large_list(pa.int8()), [1, 2]),
    "fixed list": (lambda: pa.list_(pa.int32(), 2), [1, 2]),
    "struct": (lambda: pa.struct([("role", pa.string()), ("content", pa.string())]), {"role": "user"}),
    "map": (lambda: pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    "dictionary": (lambda: pa.dictionary(pa.int32(), pa.string()), "a"),
    "messages": (
        lambda: pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())])),
        [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}],
    ),
    "messages of numbers": (lambda: pa.list_(pa.struct([("role", pa.int8())])), [{"role": 1}]),
    "lists of lists": (lambda: pa.list_(pa.list_(pa.list_(pa.int8()))), [[[1], []], []]),
}
_BODIES = ["text", "messages"]


def _of_type(random: Random, key: str) -> tuple[str, pa.Table]:
    """Return the column that is read, or another, of any type, with some nulls."""
    name = random.choice(list(TYPES))
    make, value = TYPES[name]
    rows = random.choice((1, 3, 1_000, 100_000))
    nulls = random.choice((0.0, 0.3, 1.0))
    column = pa.array([None if random.random() < nulls else value for _ in range(rows)], make())
    if random.random() < 0.5:
        return f"{name} as {key}", pa.table({key: column})
    return f"{name} beside {key}", pa.table({key: pa.array([f"text {n}" for n in range(rows)]), "x": column})


def _many(random: Random, key: str) -> tuple[str, pa.Table]:
    """Return one row of millions of values, in the column that is read or in another."""
    count = random.choice((100_000, 3_000_000, 20_000_000))
    kinds = {
        "nulls": pa.nulls(count, pa.int8()),
        "structs": pa.StructArray.from_arrays([pa.nulls(count, pa.int8())], names=["role"]),
        "texts": pa.array([""], pa.string()).take(pa.array([0] * min(count, 3_000_000), pa.int32())),
    }
    name = random.choice(list(kinds))
    values = kinds[name]
    column = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    if random.random() < 0.5:
        return f"{count} {name} as {key}", pa.table({key: column})
    return f"{count} {name} beside {key}", pa.table({key: pa.array(["a"]), "x": column})


def _columns(random: Random, key: str) -> tuple[str, pa.Table]:
    """Return very many columns, or one that is nested very deeply."""
    if random.random() < 0.5:
        count = random.choice((100, 5_000))
        return f"{count} columns", pa.table({key: ["a"] * 10, **{f"c{n}": [n] * 10 for n in range(count)}})
    depth = random.choice((20, 90))
    kind, value = pa.int8(), 1
    for _ in range(depth):
        kind, value = pa.list_(kind), [value]  # type: ignore[assignment]
    return f"{depth} deep", pa.table({key: ["a"] * 10, "x": pa.array([value] * 10, kind)})


def _large(random: Random, key: str) -> tuple[str, pa.Table]:
    """Return very large values in few bytes: dictionaries, or pages that compress well."""
    mib, rows = random.choice((1, 60, 100)), random.choice((2, 20, 2_000))
    text = "v" * (mib << 20)
    column: Any = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([text]))
    if random.random() < 0.4:
        column = pa.array([text] * min(rows, 400 // mib + 1))
    return f"{rows} texts of {mib} MiB", pa.table({key: column})


def parquet(path: Path, random: Random, key: str) -> str:
    """Write a table, and perhaps damage the file."""
    name, table = random.choice((_of_type, _of_type, _many, _columns, _large))(random, key)
    options: dict[str, Any] = {
        "compression": random.choice(("zstd", "snappy", "gzip", "none")),
        "use_dictionary": random.random() < 0.5,
        "row_group_size": random.choice((None, 1, 1_000)),
        "data_page_size": random.choice((None, 1 << 30)),
        "store_schema": random.random() < 0.7,
    }
    if table.num_rows > 1_000 and options["row_group_size"] == 1:
        options["row_group_size"] = 1_000
    try:
        pq.write_table(table, path, **options)
    except (pa.ArrowException, NotImplementedError):  # Parquet has no such type
        pq.write_table(pa.table({key: ["a"]}), path)
        name += " (not written)"
    if random.random() < 0.25:
        name += f", cut: {damaged(path, random)}"
    return name
