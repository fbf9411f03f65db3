"""Tests of row ranges in text records, and of JSON files that may be arrays."""

import gzip
import hashlib
import json
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from dataprep_assets.sources.readers import blocks
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.sources.readers.records import Block, RecordFields, read_records
from dataprep_assets.sources.readers.rows import split_rows

LINES = [b'{"text": "a%d"}' % i if i % 5 else (b"" if i % 2 else b'{"text": 7}') for i in range(53)]


def _file(folder: Path, name: str) -> Path:
    path, data = folder / name, b"\n".join(LINES)  # the last line has no line end
    if name.endswith(".parquet"):
        texts = [json.loads(line)["text"] if line and i % 5 else None for i, line in enumerate(LINES)]
        pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path, row_group_size=10)
        return path
    if name.endswith(".json"):
        data = json.dumps([json.loads(line) if line else {} for line in LINES]).encode()
    compress = {".zst": zstandard.compress, ".gz": gzip.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(data))
    return path


def _read(path: Path, rows: RowRange | None) -> tuple[list[tuple[int, str]], list[int], int, str]:
    """Return `(row, text)` of every record, rows of bad ones, blank lines, and the digest of the read bytes."""
    kind = {".parquet": "parquet", ".json": "json"}.get(path.suffix, "jsonl")
    compression = {".zst": "zstd", ".gz": "gzip"}.get(path.suffix)
    reader = read_records(
        path, fields=RecordFields("text"), format=kind, compression=compression, label=path.name, rows=rows
    )
    blocks_: list[Block] = list(reader)
    texts = [(block.row(i), text) for block in blocks_ for i, text in enumerate(block.texts)]
    bad = [bad.row for block in blocks_ for bad in block.bad]
    return texts, bad, sum(block.blank_lines for block in blocks_), reader.sha256


@pytest.mark.parametrize("block", [16, 100, 1 << 20])
@pytest.mark.parametrize("parts", [1, 2, 7, 53, 60])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.jsonl.gz", "a.parquet", "a.json"])
def test_ranges_cover_each_row_of_the_file_once_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, parts: int, block: int
) -> None:
    monkeypatch.setattr(blocks, "_BLOCK", block)
    path = _file(tmp_path, name)
    whole = _read(path, None)
    assert len(whole[0]) == 42
    found = [_read(path, rows) for rows in split_rows(len(LINES), parts)]
    assert [pair for part in found for pair in part[0]] == whole[0]
    assert [row for part in found for row in part[1]] == whole[1]
    assert sum(part[2] for part in found) == whole[2]
    assert {part[3] for part in found} == {hashlib.sha256(path.read_bytes()).hexdigest()}
    assert all(a < b for a, b in pairwise([row for row, _ in whole[0]]))


def test_json_may_be_an_array_or_lines(tmp_path: Path) -> None:
    (tmp_path / "array.json").write_text('[{"text": "a"},\n {"text": "b"}]')
    (tmp_path / "lines.json").write_text('{"text": "a"}\n{"text": "b"}\n')
    assert [_read(tmp_path / f"{n}.json", None)[0] for n in ("array", "lines")] == [[(1, "a"), (2, "b")]] * 2
