"""The SHA-256 of an object whose store does not report it is computed once per version."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets.integrity.bucket import ObjectDigests
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.store import ObjectInfo


class CountingStore(LocalStore):
    """A folder store that counts the reads of its objects."""

    reads = 0

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        self.reads += 1
        return super().read(key, start, stop, version=version)


def head(store: LocalStore, key: str) -> ObjectInfo:
    info = store.head(key)
    assert info is not None
    return info


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    store = CountingStore(tmp_path / "store")
    store.put("a/key", b"bytes")
    return store


def test_a_version_is_read_once_across_processes(store: CountingStore, tmp_path: Path) -> None:
    info = head(store, "a/key")
    assert info.sha256 is None
    for _ in range(2):
        found = ObjectDigests(tmp_path / "cache").with_digest(store, info)
        assert found.sha256 == hashlib.sha256(b"bytes").hexdigest()
    assert store.reads == 1


def test_another_version_is_read_again(store: CountingStore, tmp_path: Path) -> None:
    digests = ObjectDigests(tmp_path / "cache")
    digests.with_digest(store, head(store, "a/key"))
    store.put("a/key", b"other")
    assert digests.with_digest(store, head(store, "a/key")).sha256 == hashlib.sha256(b"other").hexdigest()
    assert store.reads == 2


def test_a_truncated_cache_is_replaced(store: CountingStore, tmp_path: Path) -> None:
    digests = ObjectDigests(tmp_path / "cache")
    digests.with_digest(store, head(store, "a/key"))
    (memory,) = (tmp_path / "cache" / ".digests").iterdir()
    memory.write_bytes(memory.read_bytes()[:20])
    for _ in range(2):
        assert digests.with_digest(store, head(store, "a/key")).sha256 == hashlib.sha256(b"bytes").hexdigest()
    assert store.reads == 2
