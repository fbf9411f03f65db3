"""The document index maps rows in both directions, with any rows left out, and refuses truncated files."""

import random
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats.document_index import (
    FileRows,
    RunWriter,
    SourceRowIndex,
    build_empty_runs,
    concatenate_ids,
    concatenate_runs,
    open_ids,
    open_runs,
)
from dataprep_assets_tests.messages import raises


def write_runs(path: Path, rows: list[int], first: int, rng: random.Random) -> Path:
    """Return the runs of a file with these rows as documents, added in blocks of any size."""
    with open(path, "wb") as file:
        runs = RunWriter(file, first)
        left = rows
        while left:
            size = rng.randint(0, len(left))
            runs.add(np.array(left[:size], np.uint64))
            left = left[size:]
    return path


@pytest.mark.parametrize("seed", range(30))
def test_documents_and_rows_are_mapped_in_both_directions(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    files: list[tuple[int, list[int]]] = []
    for _ in range(rng.randint(1, 5)):
        first, kept = rng.choice([1, 1, 100]), rng.choice([0, 0.1, 0.9, 1])
        files.append((first, [row for row in range(first, first + rng.randint(0, 40)) if rng.random() < kept]))
    parts = [(write_runs(tmp_path / f"{i}.rows", rows, first, rng), len(rows)) for i, (first, rows) in enumerate(files)]
    count = concatenate_runs(parts, tmp_path / "rows.bin")
    runs = open_runs(tmp_path / "rows.bin") if count else build_empty_runs()
    assert len(runs) == count
    assert (tmp_path / "rows.bin").exists() == (count > 0)
    index = SourceRowIndex([FileRows(len(rows), first) for first, rows in files], runs)
    every = [(file, row) for file, (_, rows) in enumerate(files) for row in rows]
    assert index.documents == len(every)
    assert [index.locate(document) for document in range(len(every))] == every
    for file, (_, rows) in enumerate(files):
        start = every.index((file, rows[0])) if rows else 0
        assert index.find_rows(file, start, start + len(rows)).tolist() == rows
        for row in (*range(-1, 150), 1 << 63, 1 << 64, 10**30):
            assert index.find_document(file, row) == ((every.index((file, row))) if row in rows else None)
    for outside in (-1, len(every)):
        with raises(IndexError, outside):
            index.locate(outside)


def test_no_run_is_written_if_no_row_was_left_out(tmp_path: Path) -> None:
    path = write_runs(tmp_path / "rows", list(range(7, 5000)), 7, random.Random(0))
    assert path.stat().st_size == 0
    assert concatenate_runs([(path, 4993), (path, 4993)], tmp_path / "none") == 0
    assert not (tmp_path / "none").exists()


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index.bin"
    path.write_bytes(bytes(24))
    assert open_ids(path, 3).tolist() == [0, 0, 0]
    with raises(FormatError, "index.bin", 3, 4):
        open_ids(path, 4)
    concatenate_ids([path, path], tmp_path / "both", 6)
    assert open_ids(tmp_path / "both", 6).tolist() == [0] * 6
    with raises(FormatError, 3, 4):
        concatenate_ids([path], tmp_path / "cut", 4)
    with raises(FormatError, 24, 16):
        open_runs(path)
    path.write_bytes(b"")
    assert open_ids(path, 0).shape == (0,)
