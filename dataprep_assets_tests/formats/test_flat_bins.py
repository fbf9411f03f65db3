"""Tests of `dataprep_assets.formats.flat_bins`."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import flat_bins
from dataprep_assets_tests.formats.streams import SHAPES, make_tokens
from dataprep_assets_tests.messages import raises


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(1, "uint16"), (65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (2**32, "uint32")],
)
def test_the_dtype_of_a_vocabulary_holds_its_largest_id(vocab_size: int, dtype: str) -> None:
    assert flat_bins.choose_dtype(vocab_size) == dtype
    assert int(np.array(vocab_size - 1).astype(flat_bins.DTYPES[dtype])) == vocab_size - 1


@pytest.mark.parametrize("vocab_size", [-1, 0, 2**32 + 1])
def test_a_vocabulary_without_a_dtype_is_refused(vocab_size: int) -> None:
    with raises(FormatError, vocab_size):
        flat_bins.choose_dtype(vocab_size)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_stream_is_read_back_read_only(tmp_path: Path, shape: str, dtype: str) -> None:
    tokens = make_tokens(SHAPES[shape], dtype)
    tokens.tofile(tmp_path / "train.bin")
    found = flat_bins.open_tokens(tmp_path / "train.bin", dtype)
    assert np.array_equal(found, tokens)
    assert found.dtype == flat_bins.DTYPES[dtype]
    assert not found.flags.writeable
    flat_bins.validate(tmp_path / "train.bin", dtype, tokens.size)


@pytest.mark.parametrize("change", [-4, -1, 1, 4])
def test_a_file_of_any_other_size_is_refused(tmp_path: Path, change: int) -> None:
    path = tmp_path / "train.bin"
    make_tokens([9], "uint32").tofile(path)
    os.truncate(path, 36 + change)
    with raises(FormatError, "train.bin"):
        flat_bins.validate(path, "uint32", 9)


def test_a_wrong_dtype_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    make_tokens([9], "uint32").tofile(path)
    with raises(FormatError, path, 9, 18, "uint16"):
        flat_bins.validate(path, "uint16", 9)
    make_tokens([9], "uint16").tofile(path)
    with raises(FormatError, path, 18, 4, "uint32"):
        flat_bins.open_tokens(path, "uint32")
    with raises(FormatError, "'<u4'", "uint16", "uint32"):
        flat_bins.open_tokens(path, "<u4")


def _parts(directory: Path, sizes: list[int]) -> list[Path]:
    paths = [directory / f"part{number}" for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(np.random.default_rng(size).bytes(size))
    return paths


def _joined(parts: list[Path]) -> bytes:
    return b"".join(part.read_bytes() for part in parts)


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [12], [5, 0, 7], [0, 9], [9, 0], [3_000_001, 1, 2_000_000]])
def test_concatenation_gives_the_bytes_of_the_parts_in_order(tmp_path: Path, sizes: list[int]) -> None:
    parts = _parts(tmp_path, sizes)
    assert flat_bins.concatenate(parts, tmp_path / "all") == sum(sizes)
    assert (tmp_path / "all").read_bytes() == _joined(parts)


def test_a_single_part_is_hard_linked_even_through_a_symlink(tmp_path: Path) -> None:
    (part,) = _parts(tmp_path, [12])
    (tmp_path / "link").symlink_to(part)
    flat_bins.concatenate([tmp_path / "link"], tmp_path / "all")
    assert (tmp_path / "all").samefile(part)
    assert not (tmp_path / "all").is_symlink()


@pytest.mark.parametrize("refusal", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_a_single_part_is_copied_if_it_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    (part,) = _parts(tmp_path, [12])
    monkeypatch.setattr(os, "link", _raising(refusal))
    assert flat_bins.concatenate([part], tmp_path / "all") == 12
    assert not (tmp_path / "all").samefile(part)
    assert (tmp_path / "all").read_bytes() == part.read_bytes()


def _raising(code: int) -> Any:
    def call(*_: Any, **__: Any) -> int:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("refusal", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("missing", [["copy_file_range"], ["copy_file_range", "sendfile"], ["posix_fallocate"]])
def test_if_one_system_call_is_refused_the_next_one_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: list[str], refusal: int
) -> None:
    parts = _parts(tmp_path, [70_001, 3, 50_000])
    for name in missing:
        monkeypatch.setattr(os, name, _raising(refusal))
    flat_bins.concatenate(parts, tmp_path / "all")
    assert (tmp_path / "all").read_bytes() == _joined(parts)


def test_a_refusal_half_way_continues_at_the_same_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = _parts(tmp_path, [1_000, 1_000])
    copy, send, calls = os.copy_file_range, os.sendfile, [0]

    def fading_copy(source: int, target: int, count: int, **offsets: Any) -> int:
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise OSError(errno.EXDEV, "moved away")
        return copy(source, target, min(count, 7), **offsets)

    monkeypatch.setattr(os, "copy_file_range", fading_copy)
    monkeypatch.setattr(os, "sendfile", lambda out, source, offset, count: send(out, source, offset, min(count, 11)))
    flat_bins.concatenate(parts, tmp_path / "all")
    assert (tmp_path / "all").read_bytes() == _joined(parts)


def test_other_errors_are_raised_and_leave_no_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = _parts(tmp_path, [10, 10])
    monkeypatch.setattr(os, "copy_file_range", _raising(errno.ENOSPC))
    with raises(OSError, errno.ENOSPC):
        flat_bins.concatenate(parts, tmp_path / "all")
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("size", [0, 4, 99, 101])
def test_a_part_that_changes_its_size_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    parts = _parts(tmp_path, [100, 100])
    # Change the size when disk space is reserved, which is after the sizes are read and before the bytes are read.
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: os.truncate(parts[1], size))
    with raises(FormatError, parts[1], 100):
        flat_bins.concatenate(parts, tmp_path / "all")
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("sizes", [[4], [4, 4]])
def test_an_existing_file_name_is_refused_and_the_file_kept(tmp_path: Path, sizes: list[int]) -> None:
    (tmp_path / "all").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        flat_bins.concatenate(_parts(tmp_path, sizes), tmp_path / "all")
    assert (tmp_path / "all").read_bytes() == b"mine"
