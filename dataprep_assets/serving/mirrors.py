"""Several stores that have the same objects, read as one: each read goes to the next of them, then to the others.

So the readers of a swarm share the buckets' limits of requests, and one bucket that cannot be reached stops nobody.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Never, TypeVar

from dataprep_assets.errors import ConfigError, MissingArtifactError, SourceError
from dataprep_assets.stores.retry import StoppedError
from dataprep_assets.stores.store import ObjectInfo, Progress, Store

T = TypeVar("T")


class Mirrors(Store):
    """See the module. `stores` have the same objects under the same keys; nothing is written to them."""

    def __init__(self, stores: Sequence[Store]) -> None:
        if not stores:
            raise ConfigError("mirrors: at least one store is needed")
        self._stores, self._next, self._lock = tuple(stores), 0, threading.Lock()

    @property
    def url(self) -> str:
        return self._stores[0].url

    def _first_that_can(self, ask: Callable[[Store], T]) -> T:
        with self._lock:
            start = self._next
            self._next = (start + 1) % len(self._stores)
        # The last of them is asked outside of the loop: its answer, or its error, is that of all.
        for store in (*self._stores[start:], *self._stores[:start])[:-1]:
            try:
                return ask(store)
            # a TransferError by its class, but its caller's wish: no other store may begin the transfer again
            except StoppedError:
                raise
            except (ConfigError, SourceError, MissingArtifactError):
                continue
        return ask(self._stores[start - 1])

    def head(self, key: str) -> ObjectInfo | None:
        def ask(store: Store) -> ObjectInfo:
            if (info := store.head(key)) is None:
                # a mirror that lacks the object is passed over like one that cannot be reached
                raise MissingArtifactError(key)
            return info

        try:
            return self._first_that_can(ask)
        except MissingArtifactError:
            return None

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        # Listed to the end first: a store that fails halfway would else have given some keys before another begins.
        return iter(self._first_that_can(lambda store: [*store.list(prefix)]))

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        """As of any store; `version` is that of one of them. What is read is kept until all of it is there."""
        return iter(self._first_that_can(lambda store: [*store.read(key, start, stop, version=version)]))

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        return self._first_that_can(lambda store: store.download(key, target, sha256=sha256, progress=progress))

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> Never:
        self._refuse()

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> Never:
        self._refuse()

    def compose(self, keys: Sequence[str], key: str, *, sha256: str | None = None) -> Never:
        self._refuse()

    def copy(self, source: str, key: str) -> Never:
        self._refuse()

    def delete(self, key: str) -> None:
        self._refuse()

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 0.0) -> int:
        self._refuse()

    def _refuse(self) -> Never:
        raise ConfigError(f"{self.url} and its mirrors: they are read together; write to each of them")
