"""Sample ids are the upstream hash of the array, never of the file, in files that the upstream reader can read."""

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import sample_ids
from dataprep_assets_tests.messages import raises


def hash_in_loop(tokens: np.ndarray[Any, Any], length: int) -> list[int]:
    """Return ids from a Python loop over samples of the array, as in tplr-ai/templar's script."""
    wide = tokens.astype("<u4")
    return [
        struct.unpack("<Q", hashlib.blake2b(wide[k : k + length].tobytes(), digest_size=8).digest())[0]
        for k in range(0, len(wide), length)
    ]


@given(st.integers(1, 700), st.integers(0, 9), st.sampled_from(["<u2", "<u4"]), st.integers(1, 3))
def test_ids_equal_those_of_the_loop(length: int, samples: int, dtype: str, threads: int) -> None:
    tokens = np.random.default_rng(length).integers(0, 1 << 16, length * samples).astype(dtype)
    found = sample_ids.compute_sample_ids(tokens, length, threads=threads)
    assert found.dtype == np.uint64
    assert found.tolist() == hash_in_loop(tokens, length)
    assert [
        sample_ids.compute_sample_id(tokens[k * length : (k + 1) * length]) for k in range(samples)
    ] == found.tolist()


def test_many_blocks_on_many_threads_keep_their_order() -> None:
    tokens = np.random.default_rng(0).integers(0, 1 << 18, 2048 * 3000).astype("<u4")
    assert sample_ids.compute_sample_ids(tokens, 2048, threads=4).tolist() == hash_in_loop(tokens, 2048)


@given(
    length=st.integers(1, 600),
    samples=st.integers(0, 40),
    dtype=st.sampled_from(["<u2", "<u4"]),
    threads=st.integers(1, 3),
)
def test_blocks_of_a_few_samples_give_the_ids_of_the_loop(length: int, samples: int, dtype: str, threads: int) -> None:
    tokens = np.random.default_rng(length).integers(0, 1 << 16, length * samples).astype(dtype)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sample_ids, "_BLOCK_BYTES", 1 << 14)
        assert sample_ids.compute_sample_ids(tokens, length, threads=threads).tolist() == hash_in_loop(tokens, length)


@pytest.mark.parametrize(("dtype", "length"), [("<u2", 2048), ("<u4", 2048), ("<u4", 77)])
def test_a_memory_mapped_shard_of_many_blocks_is_hashed(tmp_path: Path, dtype: str, length: int) -> None:
    tokens = np.random.default_rng(0).integers(0, 1 << 16, (20 << 20) // 4 // length * length).astype(dtype)
    np.save(tmp_path / "t.npy", tokens)
    mapped = np.load(tmp_path / "t.npy", mmap_mode="r")
    assert sample_ids.compute_sample_ids(mapped, length, threads=2).tolist() == hash_in_loop(tokens, length)


def test_a_partial_sample_is_refused() -> None:
    with raises(FormatError, "(7,)", 4):
        sample_ids.compute_sample_ids(np.zeros(7, "<u4"), 4)


def test_ids_are_hashed_from_the_array_not_from_the_file(tmp_path: Path) -> None:
    """The upstream code hashes the 128-byte header as 32 tokens, so every window is shifted.

    See docs/formats/sample-ids.md.
    """
    tokens = np.arange(256, dtype="<u4")
    np.save(tmp_path / "t.npy", tokens)
    raw = np.memmap(tmp_path / "t.npy", dtype="<u4", mode="r")
    shifted = hash_in_loop(np.asarray(raw[: 256 // 64 * 64]), 64)
    assert sample_ids.compute_sample_ids(np.load(tmp_path / "t.npy", mmap_mode="r"), 64).tolist() == hash_in_loop(
        tokens, 64
    )
    assert not set(shifted) & set(hash_in_loop(tokens, 64))


def test_written_ids_have_no_header_and_are_read_back(tmp_path: Path) -> None:
    ids = np.arange(10, dtype=np.uint64) << np.uint64(40)
    sample_ids.write(tmp_path / "sample_ids_000000.bin", [ids[:4], ids[4:]])
    assert (tmp_path / "sample_ids_000000.bin").read_bytes() == ids.astype("<u8").tobytes()
    assert np.array_equal(sample_ids.open_sample_ids(tmp_path / "sample_ids_000000.bin", 10), ids)
    with pytest.raises(FileExistsError):
        sample_ids.write(tmp_path / "sample_ids_000000.bin", [ids])
    (tmp_path / "none.bin").write_bytes(b"")
    assert len(sample_ids.open_sample_ids(tmp_path / "none.bin", 0)) == 0


def test_ids_that_np_save_wrote_are_refused(tmp_path: Path) -> None:
    """The upstream code saves with a header that its reader interprets as 16 ids.

    See docs/formats/sample-ids.md.
    """
    with open(tmp_path / "sample_ids_000000.bin", "wb") as file:
        np.save(file, np.arange(10, dtype="<u8"))
    with raises(FormatError, tmp_path / "sample_ids_000000.bin", ".npy"):
        sample_ids.open_sample_ids(tmp_path / "sample_ids_000000.bin", 10)
    # A file with a `.npy` header, which has the size of 16 ids, is refused even if the file has the expected size.
    with raises(FormatError, tmp_path / "sample_ids_000000.bin", ".npy"):
        sample_ids.open_sample_ids(tmp_path / "sample_ids_000000.bin", 26)


@pytest.mark.parametrize("size", [64, 79, 88])
def test_a_short_or_long_ids_file_is_refused(tmp_path: Path, size: int) -> None:
    """See docs/formats/sample-ids.md: upstream, a short ids file silently drops samples (10 become 8)."""
    (tmp_path / "sample_ids_000000.bin").write_bytes(b"\1" * size)
    with raises(FormatError, tmp_path / "sample_ids_000000.bin", size, 10):
        sample_ids.open_sample_ids(tmp_path / "sample_ids_000000.bin", 10)


def test_different_ids_are_found(tmp_path: Path) -> None:
    tokens = np.random.default_rng(1).integers(0, 99, 64 * 50).astype("<u4")
    ids = sample_ids.compute_sample_ids(tokens, 64)
    assert sample_ids.find_differing(tokens, ids, 64) == []
    assert sample_ids.find_differing(tokens, ids, 64, sample=5) == []
    ids[[0, 31, 49]] += np.uint64(1)
    assert sample_ids.find_differing(tokens, ids, 64) == [0, 31, 49]
    assert sample_ids.find_differing(tokens, ids, 64, sample=2) == [0, 49]
    assert sample_ids.find_differing(tokens, np.roll(ids, 1), 64, sample=5)
    with raises(FormatError, 50, 25, 128):
        sample_ids.find_differing(tokens, ids, 128)
