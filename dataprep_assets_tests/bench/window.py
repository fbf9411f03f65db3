"""`python -m dataprep_assets_tests.bench.window`: the three figures of the shard window, on this machine.

* download: the window's first shard (fetch, digest, header, ids, state) against the plain store download of the same
  two files with the same digests, from a folder and from an S3 server (moto) on loopback;
* swap: from a prefetched, verified shard to the next, at several sizes; the largest is a sparse file of the published
  dimensions (430 GB), entered into the cache's state without having been verified;
* sample ids: ours against a Python loop with hashlib over samples, as the original script has it.

Runs of both sides alternate; medians are compared. Nothing is kept but what `--json` asks for.
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
from dataprep_assets.formats.sample_ids import ID_BYTES, sample_ids
from dataprep_assets.serving import ShardWindow
from dataprep_assets.serving.cache import Cache
from dataprep_assets.serving.release import MANIFEST, Place, Release, ReleaseFile, ReleaseShard
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.s3 import S3Store
from dataprep_assets_tests.fakes.buckets import new_bucket, new_client
from dataprep_assets_tests.fakes.moto_server import moto_server
from dataprep_assets_tests.serving.releases import make_release, publish

LENGTH = 2048
PUBLISHED_TOKENS = 100 * 2**30
DOWNLOAD_TARGET, SWAP_TARGET, HASH_TARGET = 1.05, 0.050, 20.0


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _alternate(runs: int, works: dict[str, Callable[[], object]], clean: Callable[[], object]) -> dict[str, float]:
    """The median seconds of each, in turns, with `clean` before each; the first turn does not count."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(runs + 1):
        for name in sorted(works, reverse=bool(turn % 2)):
            clean()
            seconds = _timed(works[name])
            if turn:
                found[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def download(place: Place, release: Release, scratch: Path, runs: int) -> dict[str, float]:
    """Seconds of both ways to have the first shard, and their ratio."""
    shard = release.of("train")[0]

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

    found = _alternate(runs, {"plain": plain, "window": window}, clean)
    clean()
    return {**found, "bytes": shard.bytes, "ratio": found["window"] / found["plain"]}


def swaps(place: Place, cache: Path) -> dict[str, float]:
    """Seconds of swaps to shards that are ready."""
    seconds = []
    with ShardWindow(place, cache, 1) as window:
        window.swap(0)
        for step in range(1, 13):
            window.prepare(step)
            window.wait()
            seconds.append(_timed(partial(window.swap, step)))
    return {"median": statistics.median(seconds), "most": max(seconds)}


def swap_published_size(scratch: Path) -> dict[str, float]:
    """The same with two sparse shards of 100 Gi tokens, 430 GB each, which no disk here could hold."""
    root = scratch / "sparse"
    root.mkdir()
    shards = []
    for index in range(2):
        sizes = (npy_shards.token_bytes(PUBLISHED_TOKENS, "uint32"), PUBLISHED_TOKENS // LENGTH * ID_BYTES)
        keys = (npy_shards.token_key("train", index), npy_shards.ids_key("train", index))
        for key, size in zip(keys, sizes, strict=True):
            with open(root / key, "wb") as file:
                if key.endswith(".npy"):
                    file.write(npy_shards.header(PUBLISHED_TOKENS, "uint32"))
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
    place = Place(LocalStore(root))
    cache = Cache(root, place, release, "train", "all", 1.0)
    cache.attach()
    cache._write_state({str(index): cache._looks(index) for index in range(2)})
    cache.detach()
    found = swaps(place, root)
    shutil.rmtree(root)
    return {"bytes": shards[0].bytes, **found}


def hashing(samples: int, length: int, runs: int) -> dict[str, float]:
    """Seconds a sample of the loop and of ours, and how many times faster ours is."""
    tokens = np.random.default_rng(0).integers(0, 1 << 18, samples * length, dtype=np.uint32)

    def loop() -> np.ndarray[Any, Any]:
        found = []
        for start in range(0, len(tokens), length):
            digest = hashlib.blake2b(tokens[start : start + length].tobytes(), digest_size=8).digest()
            found.append(struct.unpack("<Q", digest)[0])
        return np.array(found, dtype=np.uint64)

    assert np.array_equal(loop(), sample_ids(tokens, length))
    found = _alternate(runs, {"loop": loop, "ours": lambda: sample_ids(tokens, length)}, lambda: None)
    return {
        "length": length,
        "loop": found["loop"] / samples,
        "ours": found["ours"] / samples,
        "ratio": found["loop"] / found["ours"],
        "cores": len(os.sched_getaffinity(0)),
    }


def measure(megabytes: int, runs: int, scratch: Path) -> dict[str, Any]:
    """All figures."""
    samples = max(1, megabytes * 1_000_000 // (4 * LENGTH))
    release = make_release(scratch / "built", (samples,), length=LENGTH)
    result: dict[str, Any] = {"download": {}, "swap": [], "hashing": []}
    with ExitStack() as stack:
        folder = publish(release, scratch / "built", Place(LocalStore(scratch / "store")))
        result["download"]["folder"] = download(folder, release, scratch, runs)
        shutil.rmtree(scratch / "store")
        url = stack.enter_context(moto_server())
        bucket = publish(release, scratch / "built", Place(S3Store(new_client(url), new_bucket(url))))
        result["download"]["s3 (moto)"] = download(bucket, release, scratch, runs)
    shutil.rmtree(scratch / "built")
    for size in (1, 32, 256):
        each = max(1, min(size, megabytes) * 1_000_000 // (4 * LENGTH))
        small = make_release(scratch / "built", (each, each), length=LENGTH)
        place = publish(small, scratch / "built", Place(LocalStore(scratch / "store")))
        result["swap"].append({"bytes": small.of("train")[0].bytes, **swaps(place, scratch / "swaps")})
        shutil.rmtree(scratch / "swaps")
        shutil.rmtree(scratch / "built")
        shutil.rmtree(scratch / "store")
    result["swap"].append(swap_published_size(scratch))
    for length in (128, 512, LENGTH, 8192):
        result["hashing"].append(hashing(max(1, megabytes * 1_000_000 // (4 * length)), length, runs))
    return result


def render(result: dict[str, Any]) -> str:
    """The figures and whether each target is met, for a person."""
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
    lines.append("sample ids against a Python loop with hashlib (target ≥ 20)")
    for row in result["hashing"]:
        lines.append(
            f"  {row['length']:6} tokens  loop {row['loop'] * 1e6:.2f} µs  ours {row['ours'] * 1e6:.2f} µs a sample  "
            f"{row['ratio']:.2f}x on {row['cores']} cores {_met(row['ratio'] >= HASH_TARGET)}"
        )
    return "\n".join(lines)


def _met(met: bool) -> str:
    return "met" if met else "NOT met"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the bench and print it."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.bench.window", description=__doc__)
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
