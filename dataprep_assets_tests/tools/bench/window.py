"""`python -m dataprep_assets_tests.tools.bench.window`: the three figures of the shard window, on this machine.

* download: the window's first shard (fetch, digest, header, ids, state) against the plain store download of the same
  two files with the same digests, from a folder and from an S3 server (moto) on loopback;
* swap: from a prefetched, verified shard to the next, at several sizes; the largest is a sparse file of the published
  dimensions (430 GB), entered into the cache's state without having been verified;
* sample ids: ours against a Python loop with hashlib over samples, as the original script has it.

Both sides of a comparison run in pairs, and its figure is the median of the pairs' ratios. Nothing is kept but what
`--json` asks for.
"""

import argparse
import hashlib
import json
import os
import shutil
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.formats import npy_shards
from dataprep_assets.formats.sample_ids import ID_BYTES, compute_sample_ids
from dataprep_assets.serving import ShardWindow
from dataprep_assets.serving.window.cache import Cache
from dataprep_assets.serving.window.release import MANIFEST, Release, ReleaseFile, ReleaseLocation, ReleaseShard
from dataprep_assets.stores.amazon.s3 import S3Store
from dataprep_assets.stores.local import LocalStore
from dataprep_assets_tests.fakes.buckets import new_bucket, new_client
from dataprep_assets_tests.fakes.moto_server import run_moto_server
from dataprep_assets_tests.serving.releases import make_release, publish

LENGTH = 2048
PUBLISHED_TOKENS = 100 * 2**30
DOWNLOAD_TARGET, SWAP_TARGET = 1.05, 0.050


def _timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    work()
    return clock() - started


def _pairs(
    runs: int,
    works: tuple[Callable[[], object], Callable[[], object]],
    clean: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float, float]:
    """Return the median seconds of both, and the median of the first's seconds over the second's, pair by pair.

    The runs of a pair follow one another, with `clean` before each, and every other pair starts with the second, so
    that changing load on the machine slows both. The first pair does not count.
    """
    pairs = []
    for turn in range(runs + 1):
        seconds = [0.0, 0.0]
        for which in (0, 1) if turn % 2 else (1, 0):
            clean()
            seconds[which] = _timed(works[which], clock)
        pairs.append(seconds)
    counted = pairs[1:]
    first, second = (statistics.median(column) for column in zip(*counted, strict=True))
    return first, second, statistics.median(one / other for one, other in counted)


def download(place: ReleaseLocation, release: Release, scratch: Path, runs: int) -> dict[str, float]:
    """Return the seconds of both ways to get the first shard, and their ratio."""
    shard = release.shards_of("train")[0]

    def plain() -> None:
        for file in shard.files:
            place.store.download(place.key(file.key), scratch / "plain" / file.key, sha256=file.sha256)

    def window() -> None:
        with ShardWindow(place, scratch / "cache", 1) as made:
            made.swap(0)

    def clean() -> None:
        for name in ("plain", "cache"):
            shutil.rmtree(scratch / name, ignore_errors=True)
        os.sync()

    seconds, plainly, ratio = _pairs(runs, (window, plain), clean)
    clean()
    return {"plain": plainly, "window": seconds, "bytes": shard.bytes, "ratio": ratio}


def swaps(place: ReleaseLocation, cache: Path) -> dict[str, float]:
    """Return the seconds of swaps to shards that are ready."""
    seconds = []
    with ShardWindow(place, cache, 1) as window:
        window.swap(0)
        for step in range(1, 13):
            window.prepare(step)
            window.wait()
            seconds.append(_timed(partial(window.swap, step)))
    return {"median": statistics.median(seconds), "most": max(seconds)}


def swap_published_size(scratch: Path) -> dict[str, float]:
    """Measure swaps with two sparse shards of 100 Gi tokens, 430 GB each, which no disk here could hold."""
    root = scratch / "sparse"
    root.mkdir()
    shards = []
    for index in range(2):
        sizes = (npy_shards.compute_shard_bytes(PUBLISHED_TOKENS, "uint32"), PUBLISHED_TOKENS // LENGTH * ID_BYTES)
        keys = (npy_shards.build_token_key("train", index), npy_shards.build_ids_key("train", index))
        for key, size in zip(keys, sizes, strict=True):
            with open(root / key, "wb") as file:
                if key.endswith(".npy"):
                    file.write(npy_shards.build_header(PUBLISHED_TOKENS, "uint32"))
                file.truncate(size)
        files = [ReleaseFile(key=k, bytes=s, sha256="0" * 64) for k, s in zip(keys, sizes, strict=True)]
        shards.append(ReleaseShard(index=index, tokens=PUBLISHED_TOKENS, token_file=files[0], ids_file=files[1]))
    release = Release(
        dataset="published-size",
        sequence_length=LENGTH,
        tokens_per_shard=PUBLISHED_TOKENS,
        dtype="uint32",
        tokenizer="none",
        tokenizer_sha256="0" * 64,
        vocab_size=1 << 18,
        separator_id=0,
        shuffle_seed=None,
        tail="drop",
        shards={"train": tuple(shards)},
    )
    (root / MANIFEST).write_bytes(release.to_bytes())
    place = ReleaseLocation(LocalStore(root))
    cache = Cache(root, place, release, "train", "all", 1.0)
    cache.attach()
    cache._state.write_verified_shards({str(index): cache._read_file_states(index) for index in range(2)})
    cache.detach()
    found = swaps(place, root)
    shutil.rmtree(root)
    return {"bytes": shards[0].bytes, **found}


def hashing(samples: int, length: int, runs: int) -> dict[str, Any]:
    """Return the seconds per sample of the loop and of ours, and the speed-up."""
    tokens = np.random.default_rng(0).integers(0, 1 << 18, samples * length, dtype=np.uint32)

    def loop() -> np.ndarray[Any, Any]:
        found = []
        for start in range(0, len(tokens), length):
            digest = hashlib.blake2b(tokens[start : start + length].tobytes(), digest_size=8).digest()
            found.append(struct.unpack("<Q", digest)[0])
        return np.array(found, dtype=np.uint64)

    assert np.array_equal(loop(), compute_sample_ids(tokens, length))
    works = (loop, lambda: compute_sample_ids(tokens, length))
    looped, ours, ratio = _pairs(runs, works)
    # Also compare the CPU time, because the ratio per core stays valid when other work keeps the cores busy.
    _, _, of_a_core = _pairs(runs, works, clock=time.process_time)
    return {
        "length": length,
        "bytes": tokens.nbytes,
        "loop": looped / samples,
        "ours": ours / samples,
        "gigabytes_per_second": tokens.nbytes / ours / 1e9,
        "ratio": ratio,
        "ratio_of_a_core": of_a_core,
        "cores": len(os.sched_getaffinity(0)),
    }


def measure(megabytes: int, runs: int, scratch: Path) -> dict[str, Any]:
    """Return all figures."""
    samples = max(1, megabytes * 1_000_000 // (4 * LENGTH))
    release = make_release(scratch / "built", (samples,), length=LENGTH)
    result: dict[str, Any] = {"download": {}, "swap": [], "hashing": []}
    with ExitStack() as stack:
        folder = publish(release, scratch / "built", ReleaseLocation(LocalStore(scratch / "store")))
        result["download"]["folder"] = download(folder, release, scratch, runs)
        shutil.rmtree(scratch / "store")
        url = stack.enter_context(run_moto_server())
        bucket = publish(release, scratch / "built", ReleaseLocation(S3Store(new_client(url), new_bucket(url))))
        result["download"]["s3 (moto)"] = download(bucket, release, scratch, runs)
    shutil.rmtree(scratch / "built")
    for size in (1, 32, 256):
        each = max(1, min(size, megabytes) * 1_000_000 // (4 * LENGTH))
        small = make_release(scratch / "built", (each, each), length=LENGTH)
        place = publish(small, scratch / "built", ReleaseLocation(LocalStore(scratch / "store")))
        result["swap"].append({"bytes": small.shards_of("train")[0].bytes, **swaps(place, scratch / "swaps")})
        shutil.rmtree(scratch / "swaps")
        shutil.rmtree(scratch / "built")
        shutil.rmtree(scratch / "store")
    result["swap"].append(swap_published_size(scratch))
    for length in (128, 512, LENGTH, 8192):
        result["hashing"].append(hashing(max(1, megabytes * 1_000_000 // (4 * length)), length, runs))
    result["load"] = os.getloadavg()
    return result


def render(result: dict[str, Any]) -> str:
    """Return the figures as text, and whether each target is met."""
    lines = ["download, window against plain (target ≤ 1.05)"]
    for name, row in result["download"].items():
        rate = row["bytes"] / row["window"] / 1e6
        lines.append(
            f"  {name:10} plain {row['plain']:.3f} s  window {row['window']:.3f} s ({rate:.0f} MB/s)  "
            f"ratio {row['ratio']:.3f} {_met(row['ratio'] <= DOWNLOAD_TARGET)}"
        )
    lines.append("swap to a prefetched shard (target < 50 ms)")
    for row in result["swap"]:
        lines.append(
            f"  {row['bytes'] / 1e6:12,.0f} MB  median {row['median'] * 1e3:.2f} ms  most {row['most'] * 1e3:.2f} ms "
            f"{_met(row['most'] < SWAP_TARGET)}"
        )
    lines.append("sample ids against a Python loop with hashlib")
    for row in result["hashing"]:
        lines.append(
            f"  {row['length']:6} tokens  loop {row['loop'] * 1e6:.2f} µs  ours {row['ours'] * 1e6:.2f} µs a sample "
            f"({row['gigabytes_per_second']:.2f} GB/s)  {row['ratio']:.2f}x on {row['cores']} cores, "
            f"{row['ratio_of_a_core']:.2f}x in CPU time"
        )
    lines.append(f"load average (1, 5, 15 minutes): {', '.join(f'{load:.1f}' for load in result['load'])}")
    return "\n".join(lines)


def _met(met: bool) -> str:
    return "met" if met else "NOT met"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.window", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256, help="size of the downloaded shard")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="where shards are written and removed again")
    parser.add_argument("--json", type=Path, help="also write all figures here")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="dataprep-window-", dir=arguments.scratch) as scratch:
        result = measure(arguments.megabytes, arguments.runs, Path(scratch))
    print(render(result))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
