"""Small published releases, and the upstream reader and manager (docs/formats/shard-window.md) to compare with ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.pipelines.release.published import send_release
from dataprep_assets.serving import ShardWindow
from dataprep_assets.serving.window.release import Release, ReleaseFile, ReleaseLocation, ReleaseShard
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stores.local import LocalStore

LENGTH = 16


def tokens_of(index: int, samples: int, dtype: str = "uint32", length: int = LENGTH) -> NDArray[Any]:
    """Return the tokens of a shard, with a different seed for each."""
    top = 1 << 16 if dtype == "uint16" else 1 << 18
    return np.random.default_rng(index).integers(0, top, samples * length).astype(token_dtype(dtype))


def write_shard(
    folder: Path, prefix: str, index: int, tokens: NDArray[Any], dtype: str, length: int = LENGTH
) -> ReleaseShard:
    """Write both files of a shard, and return its lines of the manifest."""
    token_path, ids_path = (
        folder / npy_shards.build_token_key(prefix, index),
        folder / npy_shards.build_ids_key(prefix, index),
    )
    token_path.parent.mkdir(parents=True, exist_ok=True)
    token_path.write_bytes(npy_shards.build_header(len(tokens), dtype) + tokens.tobytes())
    ids_path.write_bytes(sample_ids.compute_sample_ids(tokens, length).tobytes())
    files = [
        ReleaseFile(key=path.relative_to(folder).as_posix(), bytes=path.stat().st_size, sha256=sha256_file(path))
        for path in (token_path, ids_path)
    ]
    return ReleaseShard(index=index, tokens=len(tokens), token_file=files[0], ids_file=files[1])


def make_release(
    folder: Path,
    samples: Sequence[int] = (8, 8, 8),
    *,
    dtype: str = "uint32",
    length: int = LENGTH,
    val: int = 0,
    sensitive: bool = False,
) -> Release:
    """Write shards to a folder without a manifest: one per number of samples, and `val` of the prefix val."""
    shards = {
        "train": tuple(
            write_shard(folder, "train", i, tokens_of(i, n, dtype, length), dtype, length)
            for i, n in enumerate(samples)
        )
    }
    if val:
        found = [write_shard(folder, "val", i, tokens_of(100 + i, 4, dtype, length), dtype, length) for i in range(val)]
        shards["val"] = tuple(found)
    return Release(
        dataset="tiny",
        sequence_length=length,
        tokens_per_shard=max(samples) * length,
        dtype=dtype,
        tokenizer="none",
        tokenizer_sha256="0" * 64,
        vocab_size=1 << 18,
        separator_id=0,
        shuffle_seed=None,
        tail="drop",
        sensitive=sensitive,
        shards=shards,
    )


def publish(release: Release, folder: Path, place: ReleaseLocation) -> ReleaseLocation:
    """Publish the release from the folder to a store."""
    send_release(place, release, lambda file: folder / file.key)
    return place


def published(root: Path, samples: Sequence[int] = (8, 8, 8), **options: Any) -> ReleaseLocation:
    """Return a release in a folder store below `root`."""
    release = make_release(root / "built", samples, **options)
    return publish(release, root / "built", ReleaseLocation(LocalStore(root / "store")))


def data_files(cache: Path) -> list[str]:
    """Return all files of a cache except the window's own state."""
    return sorted(
        path.relative_to(cache).as_posix()
        for path in cache.rglob("*")
        if path.is_file() and ".window" not in path.relative_to(cache).parts
    )


def debris(cache: Path) -> list[str]:
    """Return files that a finished window must not leave: partial files, drafts, trash, leases."""
    own = cache / ".window"
    left = [p for p in cache.rglob("*") if p.is_file() and (".part" in p.name or p.suffix == ".new")]
    left += [p for name in ("trash", "ranks") for p in own.glob(f"*/{name}/*")]
    return sorted(path.relative_to(cache).as_posix() for path in left)


def leases(window: ShardWindow) -> dict[str, list[int]]:
    """Return process → the shards that it holds, as the processes of this window's cache see it now."""
    state = window._cache._state
    with state.hold_lock():
        return state.read_leases()
