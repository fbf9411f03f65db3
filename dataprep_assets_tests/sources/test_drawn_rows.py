"""Reading only some drawn rows of files: the same records as in a reading of all rows."""

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets import bounds
from dataprep_assets.sources.readers.read_options import DrawnRows
from dataprep_assets.sources.readers.records import Block, RecordFields, read_records

ROWS = 200
FIELDS = RecordFields("text", "id", max_record_bytes=4_000, carried=("n", "meta.lang"))


def make_row(number: int) -> dict[str, Any]:
    text = "x" * (5_000 if number == 60 else number)
    return {"text": text, "id": f"id-{number}", "n": 1 << (number % 70), "meta": {"lang": "de"}, "more": [number]}


def write_lines(path: Path) -> None:
    lines = [orjson.dumps(make_row(number) | {"n": number}) for number in range(1, ROWS + 1)]
    lines[9:9] = [b"", b" \t ", b"{broken", b'{"id": "no text"}', b'{"text": "a", "id": null}', b'"\xff"', b"[]"]
    lines[70] = lines[70].replace(b'"n":', b'"n":18446744073709551617, "was":')
    path.write_bytes(gzip.compress(b"\n".join([*lines, b"", b"\r"]), mtime=0))


def write_array(path: Path) -> None:
    rows = [make_row(number) | {"n": number} for number in range(1, ROWS + 1)]
    path.write_bytes(gzip.compress(orjson.dumps([*rows, 7, {"id": "no text"}]), mtime=0))


def write_parquet(path: Path) -> None:
    rows = [make_row(number) | {"n": number} for number in range(1, ROWS + 1)]
    pq.write_table(pa.Table.from_pylist([*rows, {"text": None, "id": "no text"}]), path, row_group_size=64)


def write_csv(path: Path) -> None:
    lines = [f"{number},{'x' * number},id-{number}" for number in range(1, ROWS + 1)]
    path.write_bytes(gzip.compress("\n".join(["n,text,id", *lines, "", "too,many,cells,here"]).encode(), mtime=0))


def list_records(blocks: Iterable[Block]) -> Iterator[tuple[int, Any]]:
    """Yield the row number and the values of each record, good or bad."""
    for block in blocks:
        records = [
            (block.row(i), (text, block.ids and block.ids[i], {name: one[i] for name, one in block.carried.items()}))
            for i, text in enumerate(block.texts)
        ]
        yield from sorted([*records, *((bad.row, (bad.reason, bad.byte)) for bad in block.bad)], key=lambda it: it[0])


@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize(
    ("format", "write"),
    [
        ("jsonl", write_lines),
        ("jsonl", write_array),
        ("json", write_array),
        ("parquet", write_parquet),
        ("csv", write_csv),
    ],
)
def test_drawn_rows_are_those_of_a_full_reading(
    tmp_path: Path, format: str, write: Any, is_single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write(path)
    if is_single:
        monkeypatch.setattr(bounds, "must_read_single_rows", lambda: True)
    compression = None if format == "parquet" else "gzip"

    def read(drawn: DrawnRows | None = None) -> tuple[list[tuple[int, Any]], str, int]:
        reader = read_records(
            path, format=format, compression=compression, label="file", fields=FIELDS, drawn_rows=drawn
        )
        blocks = list(reader)
        return list(list_records(blocks)), reader.sha256, sum(block.blank_lines for block in blocks)

    expected, digest, blank_lines = read()
    assert len(expected) >= ROWS
    assert any(len(value) == 2 for _, value in expected), "no refused row"
    chance = np.random.default_rng(0)
    for share in (0, 0.02, 0.5, 1):
        positions = np.flatnonzero(chance.random(2 * len(expected)) < share)
        # Pass the same file twice, because a shard has several files.
        drawn = DrawnRows(positions, 2 * len(expected))
        first, second = read(drawn), read(drawn)
        assert first[0] + second[0] == [(expected + expected)[position] for position in positions]
        assert first[1:] == second[1:] == (digest, blank_lines)
        assert drawn.row_count == drawn.total
