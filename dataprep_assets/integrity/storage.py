"""Storage of the artifacts of a project's datasets: a folder, a bucket, or a location that a dataset declares.

The Dagster resources (`resources/`) configure a storage. Commands whose artifacts are in a folder do not need them.

Entry points: `Storage`, `find_local_storage`.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.stores.connect import KINDS, LocalAddress, StoreAddress, parse_place
from dataprep_assets.stores.files import expand_path

DEFAULT_ROOT = Path(".dataprep/artifacts")
DEFAULT_CACHE = Path(".dataprep/cache")


class Storage(Protocol):
    """A factory for the stores of datasets."""

    def address(self) -> StoreAddress:
        """Return the address of the store for datasets that declare none of their own."""

    def artifacts(self, setting: str | None = None, *, private: bool = False) -> ArtifactStore:
        """Return the store of a dataset's artifacts: at the URL or folder `setting`, otherwise at `address()`.

        With `private`, only their owner can read local copies of a bucket's files.
        """


@dataclass(frozen=True, kw_only=True)
class LocalStorage:
    """A storage in the folder `root`.

    Attributes:
        root: The folder of artifacts.
        cache: The folder of copies and builds for buckets that datasets declare.
        cache_bytes: Maximum size of a bucket's copies; None for no limit.
    """

    root: Path
    cache: Path
    cache_bytes: int | None = None

    def address(self) -> StoreAddress:
        return LocalAddress(root=self.root)

    def artifacts(self, setting: str | None = None, *, private: bool = False) -> ArtifactStore:
        address = self.address() if setting is None else parse_place(setting, os.environ)
        return open_artifacts(address, self.cache, self.cache_bytes, private=private)


def open_artifacts(place: StoreAddress, cache: Path, cache_bytes: int | None, *, private: bool) -> ArtifactStore:
    """Return the store of the artifacts at a location.

    Args:
        place: The folder, or the prefix of a bucket.
        cache: The folder for copies and builds of buckets.
        cache_bytes: Maximum size of one bucket's copies; None for no limit.
        private: Whether only their owner can read the copies.
    """
    if isinstance(place, LocalAddress):
        return LocalArtifacts(place.root)
    # Import this module only for a bucket, because most commands read a folder.
    from dataprep_assets.integrity.bucket import BucketArtifacts

    return BucketArtifacts(cache / _build_folder_name(place), place, place.url, cache_bytes, private)


def _build_folder_name(place: StoreAddress) -> str:
    """Return a folder name that is unique to the location. The same bucket name at two endpoints is two locations."""
    identity = f"{place.url} {getattr(place, 'endpoint_url', None) or ''}"
    # The readable part may be shortened or altered, because the digest makes the name unique.
    readable = "".join(c if c.isalnum() or c in "._-" else "-" for c in place.url.partition("://")[2])[:60]
    return f"{readable}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def find_local_storage(project_root: Path, environment: Mapping[str, str] = os.environ) -> LocalStorage | None:
    """Return the storage folder set by the environment (`resources/environment.py`); None if it sets a bucket.

    Relative folders are below `project_root`. Raises ConfigError with the variable if its value is not allowed.
    """
    kind = environment.get("DATAPREP_STORAGE") or "local"
    if kind not in KINDS:
        raise ConfigError(f"DATAPREP_STORAGE: unknown kind {kind!r}. Available: {', '.join(KINDS)}")
    root = environment.get("DATAPREP_ROOT") or ""
    cache, cache_bytes = choose_cache(project_root, environment)
    if "://" in root:
        raise ConfigError(
            f"DATAPREP_ROOT: {root!r} must be a folder or, in object storage, a prefix, not a URL. Set the bucket with "
            "DATAPREP_STORAGE and DATAPREP_BUCKET, or with `storage:` of a dataset"
        )
    if kind != "local":
        return None
    return LocalStorage(
        root=_resolve_project_path(project_root, root or DEFAULT_ROOT, "DATAPREP_ROOT"),
        cache=cache,
        cache_bytes=cache_bytes,
    )


def choose_cache(project_root: Path, environment: Mapping[str, str] = os.environ) -> tuple[Path, int | None]:
    """Return the folder for copies and builds of buckets, and the maximum size of one bucket's copies (or None)."""
    cache = _resolve_project_path(project_root, environment.get("DATAPREP_CACHE") or DEFAULT_CACHE, "DATAPREP_CACHE")
    return cache, _read_bytes_limit(environment, "DATAPREP_CACHE_BYTES")


def _resolve_project_path(project_root: Path, path: str | Path, variable: str) -> Path:
    return project_root / expand_path(path, variable)


def _read_bytes_limit(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name)
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise ConfigError(f"{name}={text!r}: must be a number of bytes, such as 200000000000")
    return int(text)
