"""Digests of files of every size, and of their parts."""

import hashlib
import random
from pathlib import Path

import pytest

from dataprep_assets.stores import files

_BLOCK = files._BLOCK


@pytest.mark.parametrize("size", [0, 1, 4096, _BLOCK - 1, _BLOCK, _BLOCK + 1, 3 * _BLOCK + 7])
def test_a_file_and_each_of_its_parts_have_the_digest_of_their_bytes(tmp_path: Path, size: int) -> None:
    data, path = random.Random(size).randbytes(size), tmp_path / "file"
    path.write_bytes(data)
    assert files.sha256_file(path) == hashlib.sha256(data).hexdigest()
    for start, stop in ((0, size // 2), (size // 2, None), (1, size - 1), (size, None), (size + 5, size + 9), (3, 3)):
        assert files.sha256_file(path, start, stop) == hashlib.sha256(data[start:stop]).hexdigest(), (start, stop)
