"""Measure the detection rate for each artifact: change values in its files, with the old receipt and with a matching
one.

A fault changes values and leaves every file readable, as a bug or a person could: one value, two swapped rows, or 1 %
of the values. The files of an artifact are used in turn, so that each kind of file is included.
"""

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from dataprep_assets.engine.checks.check import Level
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets_tests.tools.drill.box import Box, Target, reseal, write
from dataprep_assets_tests.tools.drill.bytes_of_files import files_of
from dataprep_assets_tests.tools.drill.claims import leaves_of, otherwise
from dataprep_assets_tests.tools.drill.datasets import PIPELINES, bench_of
from dataprep_assets_tests.tools.drill.real_size import LEVELS, said_at

Rows = list[Any]
FAULTS = ("one value", "two rows", "1 % of the values")
_NUMBERS = {"key_rows": "<u4", "tokens": "<u2", "kept": "u1"}
_WIDE = ("document_ends", "document_ids", "digests", "shingle_ends", "shingles", "key_hashes", "pairs")


@dataclass(frozen=True, kw_only=True)
class Named:
    """A fault of an artifact: its place, and whether it was reported as damage and, with a matching receipt, at each
    level.
    """

    artifact: str
    fault: str
    where: str
    damage: bool
    sample: str
    every_document: str


def named(pipeline: str, home: Path, *, documents: int, faults: int, seed: int) -> Iterator[Named]:
    """Build the datasets of a pipeline, and apply this many faults to each artifact, one at a time.

    Args:
        pipeline: One of `PIPELINES`.
        home: An empty folder.
        documents: The size of the curated corpus; ignored by other pipelines.
        faults: The number per artifact.
        seed: The seed of their positions.
    """
    declare = PIPELINES[pipeline]
    sized = partial(declare, documents=documents) if pipeline == "curated" else declare
    box = Box(bench_of(pipeline, home / pipeline, lambda folder: sized(folder, "")))
    yield from of_box(box, faults, seed)


def of_box(box: Box, faults: int, seed: int, only: Sequence[str] = ()) -> Iterator[Named]:
    """Apply the faults to built datasets, or with `only` to these artifacts, by name."""
    by_artifact: dict[str, list[Target]] = {}
    for target in box.targets():
        if not only or target.spec.name in only:
            by_artifact.setdefault(f"{target.spec.declaration.dataset}/{target.spec.name}", []).append(target)
    for name, targets in by_artifact.items():
        for number in range(faults):
            random = Random(f"{seed} {name} {number}")
            target = random.choice(targets)
            paths = files_of(box.folder(target))
            fault = FAULTS[(number + number // len(paths)) % len(FAULTS)]
            # If the file has no value that can be changed (e.g., a table without rows), take the next file.
            in_turn = (paths[(number + more) % len(paths)] for more in range(len(paths)))
            path = next((one for one in in_turn if changed(one, fault, random)), None)
            if path is not None:
                yield _asked(box, target, name, fault, path)
            box.restore()
    if not box.unharmed:
        raise AssertionError("a fault reached the originals")


def _asked(box: Box, target: Target, name: str, fault: str, path: Path) -> Named:
    folder = box.folder(target)
    damage = any(path.name in defect for one in verify_path(folder) for defect in one.defects)
    reseal(folder)
    told = [_said(box, target, level) for level in LEVELS]
    where = f"{target.slot or ''}/{path.relative_to(folder)}"
    return Named(artifact=name, fault=fault, where=where, damage=damage, sample=told[0], every_document=told[1])


def _said(box: Box, target: Target, level: Level) -> str:
    try:
        return next((": ".join(one) for one in said_at(box, target, level)), "")
    except Exception as error:  # an error in a check is a bug, and does not count as a report
        print(f"a check broke: {target}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return ""


def changed(path: Path, fault: str, random: Random) -> bool:
    """Change values of a file, which stays readable; return False if it has none that can change."""
    before = path.read_bytes()
    read, put, other = _format(path)
    for _ in range(20):
        rows = read(path)
        if len(rows) < (2 if fault == "two rows" else 1):
            return False
        if fault == "two rows":
            a, b = random.sample(range(len(rows)), 2)
            rows[a], rows[b] = rows[b], rows[a]
        else:
            for at in random.sample(range(len(rows)), len(rows) // 100 + 1 if fault.startswith("1 %") else 1):
                rows[at] = other(rows[at], random)
        after = put(rows)
        if after != before:
            write(path, after)
            return True
    return False


def _format(path: Path) -> tuple[Callable[[Path], Rows], Callable[[Rows], bytes], Callable[[Any, Random], Any]]:
    """Return how the rows of a file are read, written and changed."""
    stem = path.name.split(".")[-2] if "." in path.name else path.name
    if path.suffix == ".parquet":
        schema = pq.read_schema(path)
        return lambda path: pq.read_table(path).to_pylist(), partial(_parquet, schema), partial(_other_cell, schema)
    if path.suffix == ".json":
        return lambda path: [json.loads(path.read_bytes())], _json, _other_leaf
    if path.suffix == ".jsonl":
        return _lines, lambda rows: b"".join(rows), _other_line
    if path.suffix == ".zst":
        return _packed_lines, lambda rows: zstandard.compress(b"".join(rows)), _other_line
    if path.suffix == ".npy":
        return lambda path: list(np.load(path)), partial(_npy, np.load(path).dtype), _other_number
    dtype = "<u8" if stem in _WIDE else _NUMBERS.get(stem, "u1")
    return (
        lambda path: list(np.fromfile(path, dtype)),
        lambda rows: np.array(rows, dtype).tobytes(),
        _other_number,
    )


def _lines(path: Path) -> Rows:
    return path.read_bytes().splitlines(keepends=True)


def _packed_lines(path: Path) -> Rows:
    return zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes()).splitlines(keepends=True)


def _json(rows: Rows) -> bytes:
    return json.dumps(rows[0], indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _npy(dtype: np.dtype[Any], rows: Rows) -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.array(rows, dtype))
    return sink.getvalue()


def _parquet(schema: pa.Schema, rows: Rows) -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True, row_group_size=1 << 16)
    return sink.getvalue()


def _other_cell(schema: pa.Schema, row: dict[str, Any], random: Random) -> dict[str, Any]:
    name = random.choice(schema.names)
    kind, value = schema.field(name).type, row[name]
    if pa.types.is_boolean(kind):
        return {**row, name: not value}
    if pa.types.is_integer(kind):
        return {**row, name: (value or 0) + 1}
    if pa.types.is_floating(kind):
        return {**row, name: (value or 0.0) + 0.25}
    if pa.types.is_string(kind):
        return {**row, name: f"{value or ''}x"}
    return {**row, name: value[::-1]}


def _other_number(value: Any, random: Random) -> Any:
    return value ^ value.dtype.type(1) if np.ndim(value) == 0 else value[::-1] + value.dtype.type(1)


def _other_leaf(value: Any, random: Random) -> Any:
    leaves = list(leaves_of(value, ()))
    if not leaves:
        return value
    *way, last = random.choice(leaves)
    inner = value
    for step in way:
        inner = inner[step]
    inner[last] = otherwise(inner[last], random)
    return value


def _other_line(line: bytes, random: Random) -> bytes:
    return json.dumps(_other_leaf(json.loads(line), random), ensure_ascii=False).encode() + b"\n"


def table(found: Sequence[Named]) -> str:
    """Return the rates in Markdown, one row per artifact."""
    lines = ["| artifact | as damage | new receipt, `sample` | new receipt, `every_document` |", "|---|--:|--:|--:|"]
    for name in [*dict.fromkeys(one.artifact for one in found), "all"]:
        mine = [one for one in found if name in (one.artifact, "all")]
        counts = (sum(bool(getattr(one, of)) for one in mine) for of in ("damage", "sample", "every_document"))
        lines.append(f"| {name} | {' | '.join(f'{count} of {len(mine)}' for count in counts)} |")
    return "\n".join(lines) + "\n"
