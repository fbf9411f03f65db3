"""Tests of `dataprep_assets.formats.olmo`."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import flat_bins, olmo
from dataprep_assets_tests.formats.streams import make_tokens
from dataprep_assets_tests.messages import raises

FILES = [("a.npy", "web", 1000), ("empty.npy", "web", 0), ("b.npy", "code", 99), ("c.npy", "code", 501)]


def _release(root: Path, dtype: str = "uint32", sequence_length: int = 100) -> tuple[Path, dict[str, Any]]:
    for path, _, tokens in FILES:
        make_tokens([tokens], dtype).tofile(root / path)
    index = olmo.build_index(FILES, sequence_length, dtype, "Qwen/Qwen3")
    olmo.write_index(root / "index.json", index)
    return root / "index.json", index


def test_instances_are_full_windows_within_one_file() -> None:
    index = olmo.build_index(FILES, 100, "uint32", "t")
    assert [entry["n_instances"] for entry in index["files"]] == [10, 0, 0, 5]
    assert [entry["instance_offset"] for entry in index["files"]] == [0, 10, 10, 10]
    assert (index["total_instances"], index["total_tokens"], index["format_version"]) == (15, 1600, "1")


def test_the_fingerprint_equals_maxtexts() -> None:
    stream = b"1\x00100\x00uint32\x00t\x00a.npy\x001000\x00b.npy\x007\x00"
    index = olmo.build_index([("a.npy", "x", 1000), ("b.npy", "y", 7)], 100, "uint32", "t")
    assert index["fingerprint"] == "sha256:" + hashlib.sha256(stream).hexdigest()


def test_the_fingerprint_depends_exactly_on_the_values_that_order_instances() -> None:
    one = olmo.build_index(FILES, 100, "uint32", "t")["fingerprint"]
    others = [
        olmo.build_index(FILES[::-1], 100, "uint32", "t"),
        olmo.build_index(FILES, 101, "uint32", "t"),
        olmo.build_index(FILES, 100, "uint16", "t"),
        olmo.build_index(FILES, 100, "uint32", "u"),
        olmo.build_index(FILES[:3], 100, "uint32", "t"),
    ]
    assert len({one, *(other["fingerprint"] for other in others)}) == 6
    relabeled = [(path, "other", tokens) for path, _, tokens in FILES]
    assert olmo.build_index(relabeled, 100, "uint32", "t")["fingerprint"] == one


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_written_index_is_valid_and_reaches_every_instance(tmp_path: Path, dtype: str) -> None:
    path, index = _release(tmp_path, dtype)
    olmo.validate(path, tmp_path, sequence_length=100)
    assert json.loads(path.read_text()) == index
    for entry in index["files"]:
        if entry["n_instances"]:
            # MaxText memory-maps the file, which has no header, and slices it by instance.
            stream = np.memmap(tmp_path / entry["path"], dtype=index["dtype"], mode="r")
            assert stream[(entry["n_instances"] - 1) * 100 :][:100].size == 100
            assert np.array_equal(stream, flat_bins.open_tokens(tmp_path / entry["path"], dtype))


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": "2"},
        {"sequence_length": 50},
        {"dtype": "uint16"},
        {"dtype": "<u4"},
        {"tokenizer": "other"},
        {"total_instances": 16},
        {"total_tokens": 1601},
        {"fingerprint": "sha256:0"},
        {"files": []},
        {"files": [{"path": "a.npy"}]},
        {"files": 3},
        {"extra": 1},
    ],
)
def test_a_changed_index_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path, index = _release(tmp_path)
    path.write_text(json.dumps(index | change))
    with raises(FormatError, path):
        olmo.validate(path, tmp_path)


@pytest.mark.parametrize("size", [0, 3996, 3999, 4004])
def test_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    path, _ = _release(tmp_path)
    (tmp_path / "a.npy").write_bytes(bytes(size))
    with raises(FormatError, tmp_path / "a.npy"):
        olmo.validate(path, tmp_path)


def test_a_missing_file_a_truncated_index_and_another_sequence_length_are_refused(tmp_path: Path) -> None:
    path, _ = _release(tmp_path)
    with raises(FormatError, path, 128):
        olmo.validate(path, tmp_path, sequence_length=128)
    (tmp_path / "b.npy").unlink()
    with raises(FormatError, path, "'b.npy'"):
        olmo.validate(path, tmp_path)
    path.write_text(path.read_text()[:-9])
    with raises(FormatError, path, "JSON"):
        olmo.validate(path, tmp_path)


@pytest.mark.parametrize(
    ("files", "length"),
    [([], 8), ([("a", "l", 1)], 0), ([("", "l", 1)], 8), ([("a\x00b", "l", 1)], 8), ([("a", "l", -1)], 8)],
)
def test_files_that_cannot_be_indexed_are_refused(files: list[tuple[str, str, int]], length: int) -> None:
    with pytest.raises(FormatError):
        olmo.build_index(files, length, "uint32", "t")
