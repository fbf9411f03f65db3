"""A source of ranges in this process, with faults by request number, for tests of downloads."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from dataprep_assets.stores import ranged
from dataprep_assets.stores.retry import RetryableError, RetryPolicy

PART = 1000
CONTENT = bytes(hashlib.shake_256(b"ranged").digest(10_500))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FAST = RetryPolicy(attempts=4, base_seconds=0.001, max_seconds=0.002)


class Source:
    """A source that serves CONTENT in chunks of 300 bytes; `faults` maps a request number to its fault."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.asked: list[tuple[int, int]] = []
        self.faults: dict[int, Callable[[bytes], Iterator[bytes]]] = {}
        self.lock = threading.Lock()

    def read_range(self, start: int, end: int) -> Iterator[bytes]:
        with self.lock:
            self.asked.append((start, end))
            number = len(self.asked)
        body = self.content[start:end]
        if number in self.faults:
            yield from self.faults[number](body)
            return
        for at in range(0, len(body), 300):
            yield body[at : at + 300]


def fetch(source: Source, target: Path, **options: object) -> str:
    arguments: dict[str, object] = {
        "size": len(source.content),
        "target": target,
        "sha256": SHA256,
        "label": "shard-7",
        "part_bytes": PART,
        "retry": FAST,
        **options,
    }
    return ranged.download(source.read_range, **arguments)  # type: ignore[arg-type]


def short(body: bytes) -> Iterator[bytes]:
    yield body[: len(body) // 2]


def long(body: bytes) -> Iterator[bytes]:
    yield body + b"more"


def reset(body: bytes) -> Iterator[bytes]:
    yield body[:100]
    raise RetryableError("connection reset by peer")


def flip(body: bytes) -> Iterator[bytes]:
    yield body[:-1] + bytes([body[-1] ^ 1])


def nothing(body: bytes) -> Iterator[bytes]:
    yield from ()
