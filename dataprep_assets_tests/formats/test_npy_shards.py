"""npy shards have NumPy's own bytes, and every other file is refused with its defect."""

import io
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import npy_shards
from dataprep_assets_tests.messages import raises


def save(path: Path, array: np.ndarray) -> Path:  # type: ignore[type-arg]
    np.save(path, array)
    return path


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("tokens", [0, 1, 10, 99_999])
def test_the_header_equals_numpys_own(dtype: str, tokens: int) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(tokens, dtype=dtype))
    assert buffer.getvalue()[:128] == npy_shards.build_header(tokens, dtype)


@pytest.mark.parametrize("tokens", [100 * 2**30, 2**31, 2**33 + 1, 10**15])
def test_headers_of_very_long_shards_are_read_by_numpy(tokens: int) -> None:
    data = npy_shards.build_header(tokens, "uint32")
    assert len(data) == 128
    stream = io.BytesIO(data)
    assert np.lib.format.read_magic(stream) == (1, 0)
    assert np.lib.format.read_array_header_1_0(stream) == ((tokens,), False, np.dtype("<u4"))
    assert npy_shards.parse_header(data, "x") == npy_shards.NpyHeader(dtype="uint32", tokens=tokens)
    assert npy_shards.compute_shard_bytes(100 * 2**30, "uint32") == 429_496_729_728


def test_a_shard_opens_like_in_numpy(tmp_path: Path) -> None:
    array = np.arange(64, dtype="<u4")
    path = save(tmp_path / "train_000000.npy", array)
    assert np.array_equal(npy_shards.open_shard(path, sequence_length=16), array)
    empty = npy_shards.open_shard(save(tmp_path / "e.npy", array[:0]), sequence_length=16)
    assert len(empty) == 0
    assert not empty.flags.writeable


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (np.zeros(64, "<i8"), ("<i8",)),
        (np.zeros(64, ">u4"), (">u4",)),
        (np.zeros((4, 16), "<u4"), (4, 16)),
        (np.asfortranarray(np.zeros((4, 16), "<u4")), ("fortran_order",)),
        (np.zeros((), "<u4"), ("()",)),
        (np.zeros(64, [("ids", "<u4")]), ("[", "ids", "<u4")),
    ],
)
def test_arrays_of_another_kind_are_refused(tmp_path: Path, array: np.ndarray, values: tuple[object, ...]) -> None:  # type: ignore[type-arg]
    with raises(FormatError, tmp_path / "a.npy", *values):
        npy_shards.read_header(save(tmp_path / "a.npy", array))


def test_ids_without_a_header_are_not_accepted_as_a_shard(tmp_path: Path) -> None:
    path = tmp_path / "train_000000.npy"
    np.arange(64, dtype="<u4").tofile(path)
    with raises(FormatError, path, "b'\\x00\\x00\\x00\\x00\\x01\\x00'"):
        npy_shards.read_header(path)


def test_other_versions_and_damaged_headers_are_refused() -> None:
    good = npy_shards.build_header(64, "uint32")
    for spoilt, values in (
        (good[:6] + b"\x02\x00" + good[8:], ("02.00",)),
        (good[:100], (100,)),
        (good[:10] + b"}" + good[11:], (".npy",)),
        (good.replace(b"(64,)", b"(-4,)"), (-4,)),
        (good.replace(b"(64,)", b"(6.,)"), ("6.0",)),
    ):
        with raises(FormatError, "shard", *values):
            npy_shards.parse_header(spoilt, "shard")


def test_truncated_and_extended_files_are_refused(tmp_path: Path) -> None:
    """A move across file systems that a crash interrupted leaves a short file, which passes an existence test.

    See docs/formats/shard-window.md#other-faults.
    """
    path = save(tmp_path / "train_000000.npy", np.zeros(64, "<u4"))
    whole = path.read_bytes()
    for data, values in ((whole[:-1], (383, 384)), (whole + b"\0", (385, 384))):
        path.write_bytes(data)
        with raises(FormatError, path, *values):
            npy_shards.open_shard(path, sequence_length=16)


def test_a_uint16_shard_in_a_uint32_run_and_a_different_length_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "train_000000.npy", np.zeros(64, "<u2"))
    with raises(FormatError, path, "uint16", "uint32"):
        npy_shards.validate(path, dtype="uint32", tokens=64, sequence_length=16)
    with raises(FormatError, path, 64, 32):
        npy_shards.validate(path, dtype="uint16", tokens=32, sequence_length=16)
    with raises(FormatError, path, 64, 24, 16):
        npy_shards.validate(path, dtype="uint16", tokens=64, sequence_length=24)
    with raises(FormatError, 0, 1):
        npy_shards.open_shard(path, sequence_length=0)


def test_keys_of_prefixes_do_not_collide_and_are_parsed_back() -> None:
    """See docs/formats/npy-shards.md#layout: upstream, train and val share `sample_ids_000000.bin`."""
    keys = [
        f(prefix, 3)
        for prefix in ("train", "val", "eval")
        for f in (npy_shards.build_token_key, npy_shards.build_ids_key)
    ]
    assert keys[:2] == ["train_000003.npy", "sample_ids_000003.bin"]
    assert keys[2:4] == ["val/val_000003.npy", "val/sample_ids_000003.bin"]
    assert len(set(keys)) == len(keys)
    for key in keys:
        found = npy_shards.parse_key(key)
        assert found is not None
        make = npy_shards.build_token_key if found.kind == "tokens" else npy_shards.build_ids_key
        assert make(found.prefix, found.index) == key
    for other in ("release.json", "val_000003.npy", "train/train_000003.npy", "val/eval_000003.npy", "train_3.npy"):
        assert npy_shards.parse_key(other) is None
    with raises(FormatError, 10**6):
        npy_shards.build_token_key("train", 10**6)
