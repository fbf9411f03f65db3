"""Folder stores that record and interrupt downloads, and helpers for tests of the window."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.serving import Shard
from dataprep_assets.serving.window.release import ReleaseLocation
from dataprep_assets.stores import ranged
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stores.store import ObjectInfo, Progress
from dataprep_assets_tests.serving.releases import (
    published,
    tokens_of,
)

QUICK = RetryPolicy(attempts=2, base_seconds=0.01, max_seconds=0.02)


class Watched(LocalStore):
    """A folder store that records downloads, and lets a test act before or during them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fetched: list[str] = []
        self.before: Callable[[str], None] = lambda key: None

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        self.before(key)
        self.fetched.append(key)
        return super().download(key, target, sha256=sha256, progress=progress)


class Chunked(LocalStore):
    """A folder store of small ranges, each in several chunks, whose files are downloaded by `workers` threads."""

    RANGE, CHUNK = 1 << 16, 1 << 14

    def __init__(self, root: Path, workers: int) -> None:
        super().__init__(root)
        self.workers = workers
        self.ranges: list[tuple[str, int]] = []
        # `before` is called before each chunk with the file's name and the number of its earlier chunks.
        self.before: Callable[[str, int], None] = lambda key, given: None
        self._given: Counter[str] = Counter()

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        info = self.head(key)
        assert info is not None

        def read(start: int, stop: int) -> Iterator[bytes]:
            self.ranges.append((key, start))
            for at in range(start, stop, self.CHUNK):
                self.before(key, self._given[key])
                yield b"".join(self.read(key, at, min(stop, at + self.CHUNK), version=info.version))
                self._given[key] += 1

        ranged.download(
            read,
            size=info.bytes,
            target=target,
            sha256=sha256,
            label=key,
            part_bytes=self.RANGE,
            workers=self.workers,
            progress=progress,
        )
        return info


def watched(root: Path, samples: tuple[int, ...] = (8, 8, 8), **options: Any) -> tuple[ReleaseLocation, Watched]:
    published(root, samples, **options)
    store = Watched(root / "store")
    return ReleaseLocation(store), store


def assert_is(shard: Shard, index: int, samples: int = 8) -> None:
    assert shard.index == index
    assert np.array_equal(shard.tokens, tokens_of(index, samples))


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def flip(path: Path, byte: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
