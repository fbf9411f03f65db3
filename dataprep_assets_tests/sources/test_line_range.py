"""The positions of rows in a file, compared with splitting all of it."""

import random
from pathlib import Path

import pytest

from dataprep_assets.sources.readers import line_range as module
from dataprep_assets.sources.readers.line_range import find_line_range


@pytest.mark.parametrize("block", [1, 3, 7, 1 << 20])
def test_exactly_the_rows_of_any_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    rng, path = random.Random(block), tmp_path / "file"
    for _ in range(100):
        data = bytes(rng.choices(b"ab\r\n", [4, 4, 1, rng.randint(1, 6)], k=rng.randrange(40)))
        path.write_bytes(data)
        lines = data.removesuffix(b"\n").split(b"\n") if data else []
        at = 0
        for row, line in enumerate(lines, 1):
            assert find_line_range(path, row) == (at, at + len(line)), (data, row)
            at += len(line) + 1
        assert find_line_range(path, len(lines) + 1) is None
        assert find_line_range(path, len(lines) + 2) is None


def test_a_byte_order_mark_is_not_part_of_the_first_row_and_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbf{}\n[]\n{}")
    assert [find_line_range(path, row) for row in (1, 2, 3)] == [(3, 5), (6, 8), (9, 11)]
    assert find_line_range(path, 2, max_bytes=9) == (6, 8)
    assert find_line_range(path, 2, max_bytes=8) is None
    assert find_line_range(path, 3, max_bytes=10) is None
    assert find_line_range(path, 3, max_bytes=11) == (9, 11)
