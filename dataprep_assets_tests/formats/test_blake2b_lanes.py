"""Messages hashed side by side have hashlib's digests, whatever their length and number."""

import mmap
import subprocess
import sys
import warnings
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep_assets.formats import blake2b_lanes, sample_ids

llvm = pytest.importorskip("llvmlite.binding", reason="the extra `fast` is not installed")
if not llvm.get_host_cpu_features().get("avx2"):
    pytest.skip("the processor has no AVX2: nothing is compiled", allow_module_level=True)


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    blake2b_lanes.lane_hasher.cache_clear()
    yield
    blake2b_lanes.lane_hasher.cache_clear()


@pytest.fixture(scope="module")
def hasher() -> blake2b_lanes.Hasher:
    found = blake2b_lanes.lane_hasher()
    assert found is not None
    return found


def digests(rows: np.ndarray[Any, Any]) -> list[int]:
    return [int.from_bytes(blake2b(row.tobytes(), digest_size=8).digest(), "little") for row in rows]


@settings(deadline=None)
@given(width=st.integers(1, 1100), messages=st.integers(0, 40), seed=st.integers(0, 9))
def test_digests_are_those_of_hashlib(hasher: blake2b_lanes.Hasher, width: int, messages: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (messages, width), dtype=np.uint8)
    found = hasher(rows)
    assert found.dtype == np.uint64
    assert found.tolist() == digests(rows)


@pytest.mark.parametrize("width", [127, 128, 129, 255, 256, 257, 8192, 32768 + 4])
@pytest.mark.parametrize("messages", [7, 8, 9, 17])
def test_blocks_that_are_whole_or_not(hasher: blake2b_lanes.Hasher, width: int, messages: int) -> None:
    for fill in (0, 255):
        rows = np.full((messages, width), fill, dtype=np.uint8)
        rows[:, -1] = range(messages)
        assert hasher(rows).tolist() == digests(rows)


def test_nothing_is_read_beside_the_messages(hasher: blake2b_lanes.Hasher, tmp_path: Path) -> None:
    """The messages end where the file was cut after it was mapped: one byte more would kill the process."""
    page = mmap.PAGESIZE
    with open(tmp_path / "cut", "w+b") as file:
        file.truncate(5 * page)
        room = mmap.mmap(file.fileno(), 5 * page)
        file.truncate(4 * page)
    for width in (page // 8, page // 8 - 4):
        rows = np.frombuffer(room, dtype=np.uint8)[4 * page - 8 * width : 4 * page].reshape(8, width)
        assert hasher(rows).tolist() == digests(rows)


@settings(deadline=None)
@given(
    length=st.integers(1, 600),
    samples=st.integers(0, 40),
    dtype=st.sampled_from(["<u2", "<u4"]),
    threads=st.integers(1, 3),
)
def test_sample_ids_of_lanes_are_those_of_hashlib(length: int, samples: int, dtype: str, threads: int) -> None:
    tokens = np.random.default_rng(length).integers(0, 1 << 16, length * samples).astype(dtype)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sample_ids, "_WORTH_COMPILING_BYTES", 0)
        patched.setattr(sample_ids, "_BLOCK_BYTES", 1 << 14)
        found = sample_ids.sample_ids(tokens, length, threads=threads)
    assert found.tolist() == digests(tokens.astype("<u4").view(np.uint8).reshape(samples, 4 * length))


@pytest.mark.parametrize(("dtype", "length"), [("<u2", 2048), ("<u4", 2048), ("<u4", 77)])
def test_a_mapped_shard_of_many_blocks(tmp_path: Path, dtype: str, length: int) -> None:
    tokens = np.random.default_rng(0).integers(0, 1 << 16, (20 << 20) // 4 // length * length).astype(dtype)
    np.save(tmp_path / "t.npy", tokens)
    mapped = np.load(tmp_path / "t.npy", mmap_mode="r")
    found = sample_ids.sample_ids(mapped, length, threads=2)
    assert blake2b_lanes.lane_hasher.cache_info().misses == 1, "so many samples are hashed in lanes"
    assert found.tolist() == digests(tokens.astype("<u4").view(np.uint8).reshape(-1, 4 * length))


def test_few_samples_do_not_wait_for_a_compiler() -> None:
    sample_ids.sample_ids(np.zeros(2048 * 64, "<u4"), 2048)
    assert blake2b_lanes.lane_hasher.cache_info().misses == 0


def test_a_kernel_that_is_not_blake2b_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blake2b_lanes, "_ROUNDS", 11)
    with pytest.warns(RuntimeWarning, match="is not hashlib's; hashlib is used"):
        assert blake2b_lanes.lane_hasher() is None
    tokens = np.arange(2048 * 2048, dtype="<u4")
    assert sample_ids.sample_ids(tokens, 2048).tolist() == digests(tokens.view(np.uint8).reshape(-1, 8192))


def test_a_kernel_that_does_not_compile_is_said_and_hashlib_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blake2b_lanes, "_FRAME", "define void @blake2b_lanes( {{")
    with pytest.warns(RuntimeWarning, match="cannot compile BLAKE2b here; hashlib is used"):
        assert blake2b_lanes.lane_hasher() is None


@pytest.mark.parametrize("cpu", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_code_for_other_processors_gives_the_same_digests(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of 128, 256 and 512 bits."""
    if cpu == "x86-64-v4" and not llvm.get_host_cpu_features().get("avx512vl"):
        pytest.skip("this processor cannot run it")

    class Features(dict[str, bool]):
        def flatten(self) -> str:
            return ""

    monkeypatch.setattr(llvm, "get_host_cpu_name", lambda: cpu)
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: Features(avx2=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert blake2b_lanes.lane_hasher() is not None


def test_a_processor_without_wide_vectors_is_left_to_hashlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "get_host_cpu_features", dict)
    assert blake2b_lanes.lane_hasher() is None


def test_without_llvmlite_hashlib_is_used() -> None:
    code = (
        "import sys; sys.modules['llvmlite'] = None\n"
        "import numpy as np\n"
        "from dataprep_assets.formats import blake2b_lanes, sample_ids\n"
        "tokens = np.arange(1 << 22, dtype='<u4')\n"
        "ids = sample_ids.sample_ids(tokens, 2048)\n"
        "assert blake2b_lanes.lane_hasher() is None\n"
        "assert ids.tolist() == blake2b_lanes.hash_one_by_one(tokens.view(np.uint8).reshape(-1, 8192)).tolist()\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
