"""A prefix of an object storage bucket as the source of a corpus (AWS S3, Cloudflare R2, MinIO, Google Cloud Storage).

`stores` provides requests, retries and errors. The manifest pins each object by its version (an S3 ETag, a GCS
generation). Every request for bytes includes the version, so an object that was replaced is refused, never mixed. The
mirror uses the keys as paths, with a record next to each file::

    <cache_dir>/<bucket>/<prefix>/<relpath>        the object's bytes (of GCS below <cache_dir>/gs/)
    <cache_dir>/<bucket>/<prefix>/<relpath>.etag   {"etag", "size", "sha256"}: the verified values

Downloads are verified by the best digest that the store has for the object. It is the SHA-256 recorded by this
package's uploads, an MD5 (a plain ETag is one), or a CRC32C (GCS). S3 has no digest for a multipart object from another
uploader, so it is verified by its length, and by its version on every range. The record always has a SHA-256 computed
here, and a mirrored file is reused only while its bytes have that digest.

The record is also the lock of its file. It is written in place and never replaced or removed. Two processes that need
the same object (a snapshot, and the certificate's sample) therefore fetch it only once. It is emptied before its file
is changed, and an incomplete record does not count.

Credentials are only read from the environment (`stores.connect.place_of`).

Entry point: :class:`ObjectStorePrefix`.
"""

import errno
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import ConfigError, MissingArtifactError, SourceError, count_of
from dataprep_assets.planning.manifest import ManifestEntry, SourceFile
from dataprep_assets.sources.access import Listing
from dataprep_assets.stores import ranged
from dataprep_assets.stores.connect import (
    BUCKET_URL,
    BUCKETS,
    Access,
    BucketAddress,
    StoreAddress,
    format_bucket_urls,
    parse_place,
)
from dataprep_assets.stores.endpoints import check_endpoint, check_region
from dataprep_assets.stores.files import check_headroom
from dataprep_assets.stores.locks import open_own_file, try_lock
from dataprep_assets.stores.pool import run_all
from dataprep_assets.stores.retry import StoppedError
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Store, check_key

logger = logging.getLogger(__name__)

WORKERS = 8
"""Number of parallel requests across all files of one `fetch`."""

_OPTIONS = {"endpoint_url": None, "region": "auto", "access": "keys"}
"""Options that only some kinds of buckets support → their defaults."""
_BLOCK = 4 * 1024 * 1024
_POLL_SECONDS = 0.05

# Suffixes of the files that a fetch writes next to a mirrored file.
_COMPANIONS = (".etag", ".part")
_OBSTRUCTED_ERRNOS = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR}


@dataclass(frozen=True, kw_only=True)
class ObjectStorePrefix:
    """The objects below `url` (`s3://bucket/prefix`, `gs://…`), mirrored on demand below `cache_dir`; a `SourceAccess`.

    `endpoint_url` is the URL of an S3 store (None: from the environment, or boto3's default). If it differs from the
    environment's endpoint, boto3's own credentials are used, because the environment's are for a different store. R2
    needs the `region` `auto`. Without an endpoint, `auto` leaves the region to boto3.
    """

    url: str
    cache_dir: Path
    endpoint_url: str | None = None
    region: str = "auto"
    allow_http: bool = False
    access: Access = "keys"
    part_bytes: int = ranged.PART_BYTES
    mirrored = True

    def __post_init__(self) -> None:
        match = re.fullmatch(BUCKET_URL, self.url)
        if "@" in self.url:  # the URL is not shown, because text before an @ may be a secret
            raise ConfigError("source.url: contains credentials. Remove them, and set them in the environment")
        key = (match[2] or "")[1:] if match else ""
        if match is None or not _is_key(key.removesuffix("/") if key else "x"):
            raise ConfigError(f"source.url: {self.url!r} has no bucket. Use {format_bucket_urls()}")
        for name, default in _OPTIONS.items():
            if getattr(self, name) != default and not hasattr(BUCKETS[match[1]], name):
                raise ConfigError(f"source.{name}: not supported by {match[1]}://. Remove it")
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url, "source.endpoint_url", allow_http=self.allow_http)
        check_region(self.region, "source.region")

    @property
    def storage(self) -> Path:
        """The folder of the mirror."""
        scheme, _, bucket_path = self.url.partition("://")
        return self.cache_dir / BUCKETS[scheme].mirror / bucket_path.removesuffix("/")

    def address(self) -> StoreAddress:
        """Return the prefix as an address of `stores`, with the environment of this process."""
        place = parse_place(self.url, os.environ)
        assert isinstance(place, BucketAddress)
        options = {name: getattr(self, name) for name in _OPTIONS if hasattr(place, name)}
        return place.with_options(allow_http=place.allow_http or self.allow_http, **options)

    def open(self) -> Store:
        """Open a new store of the prefix. Raises ConfigError if its extra or its credentials are missing."""
        return self.address()()

    def list(self) -> Listing:
        """Return all objects below the prefix, pinned by their versions.

        Folder markers (keys that end in `/`) are excluded.
        """
        store = self.open()
        files = [SourceFile(relpath=info.key, size_bytes=info.bytes, etag=info.version) for info in store.list()]
        return Listing.from_files(files, url_prefix=f"{self.url.removesuffix('/')}/")

    def bytes_to_fetch(self, entries: Sequence[ManifestEntry]) -> int:
        """Return the bytes of missing or different files, minus the space that an interrupted fetch allocated."""
        needed = 0
        for entry in _deduplicate_entries(entries):
            path = self.path(entry)
            if _read_size(path) == entry.size_bytes and _read_record(_record_path(path)).get("etag") == entry.etag:
                continue
            needed += max(0, entry.size_bytes - ranged.measure_partial_bytes(path))
        return needed

    def fetch(self, entries: Sequence[ManifestEntry], progress: Callable[[int], None] | None = None) -> None:
        """Mirror the entries. A mirrored file is read again, and reused if its digest still matches its record.

        `progress` gets byte counts, reused ones included (see `stores.ranged.download`). Raises SourceError (no room,
        an object removed or changed since the manifest), ConfigError (no access), TransferError and CorruptSourceError,
        each naming the object. Completed ranges are kept, and the next call resumes from there.
        """
        unique_entries = _deduplicate_entries(entries)
        if not unique_entries:
            return
        _check_names(unique_entries)
        check_headroom(self.storage, self.bytes_to_fetch(unique_entries))
        lock = threading.Lock()

        def report(count: int) -> None:
            if progress is not None:
                with lock:
                    progress(count)

        # Divide the workers among the files. If there are fewer files than workers, each file may get several workers,
        # which read its ranges in parallel.
        at_once = min(WORKERS, len(unique_entries))
        fetcher = _Fetcher(source=self, store=self.open(), workers=WORKERS // at_once, report=report)
        run_all(fetcher, unique_entries, at_once, fetcher.stop)

    def path(self, entry: ManifestEntry) -> Path:
        """Return the path of the mirrored file. Raises SourceError if the key is not a path below the mirror."""
        if not _is_key(entry.relpath):
            raise SourceError(
                f"{self.object_url(entry)!r}: this key is not a valid file path: it has an empty part, '.', '..', a "
                "control character, or the prefix '.uploads/'. Rename the object, or exclude it with `include`"
            )
        return self.storage / entry.relpath

    def copies(self, relpath: str) -> Sequence[Path]:
        """Return the mirrored file of this key, if it exists; the mirror stores one version."""
        path = self.storage / relpath
        return [path] if _is_key(relpath) and path.is_file() else []

    def object_url(self, entry: ManifestEntry) -> str:
        """Return `s3://bucket/key` or `gs://bucket/key`, for messages."""
        return f"{self.url.removesuffix('/')}/{entry.relpath}"


@dataclass(kw_only=True)
class _Fetcher:
    """Fetcher of one file: it reuses the mirror's verified copy, or downloads a missing or changed file."""

    source: ObjectStorePrefix
    store: Store
    workers: int
    report: Callable[[int], None]
    # `run_all` sets this event after an error or an interrupt, so that running digests and downloads stop early.
    stop: threading.Event = field(default_factory=threading.Event)

    def __call__(self, entry: ManifestEntry) -> None:
        path, label = self.source.path(entry), self.source.object_url(entry)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _lock_record(_record_path(path), label, self.stop.is_set) as record:
                self._ensure(entry, path, record, label)
        except OSError as error:
            if error.errno in _OBSTRUCTED_ERRNOS:
                raise SourceError(
                    f"{label}: {error.filename} blocks its mirror: one key is a folder in another key's path. Rename "
                    "one of the objects, or remove that file"
                ) from error
            if error.errno == errno.ENAMETOOLONG:
                raise SourceError(
                    f"{label}: a part of this key is too long for a file name. Rename the object, or exclude it with "
                    "`include`"
                ) from error
            raise

    def _ensure(self, entry: ManifestEntry, path: Path, record: int, label: str) -> None:
        if entry.etag is None:
            raise SourceError(f"{label}: the manifest has no version of this object. Rebuild `manifest`")
        if self._is_usable(entry, path, label):
            self.report(entry.size_bytes)
            return
        # Empty the record before the file changes, so that no record describes unverified bytes.
        os.ftruncate(record, 0)
        path.unlink(missing_ok=True)
        info = self._read_pinned_info(entry, label)
        digest = ranged.download(
            lambda start, stop: self._read_range(entry, start, stop, label),
            size=entry.size_bytes,
            target=path,
            sha256=info.sha256,
            verify=None if info.sha256 else lambda part, _: self._find_difference(info, part),
            label=label,
            part_bytes=self.source.part_bytes,
            workers=self.workers,
            progress=self.report,
            stop=self.stop,
        )
        content = json.dumps({"etag": entry.etag, "size": entry.size_bytes, "sha256": digest}).encode()
        os.pwrite(record, content, 0)
        os.fsync(record)

    def _read_pinned_info(self, entry: ManifestEntry, label: str) -> ObjectInfo:
        """Return the store's information on the object that the manifest pinned.

        Raises SourceError if the object no longer exists.
        """
        info = self.store.head(entry.relpath)
        if info is None:
            raise _build_removed_object_error(label)
        if (info.version, info.bytes) != (entry.etag, entry.size_bytes):
            raise _build_changed_error(
                label,
                f"version {info.version} with {count_of(info.bytes, 'byte')}, but the manifest lists version "
                f"{entry.etag} with {entry.size_bytes}",
            )
        return info

    def _read_range(self, entry: ManifestEntry, start: int, stop: int, label: str) -> Iterator[bytes]:
        try:
            yield from self.store.read(entry.relpath, start, stop, version=entry.etag)
        except ConflictError:
            raise _build_changed_error(label, f"version {entry.etag} was replaced during the download") from None
        except MissingArtifactError:
            raise _build_removed_object_error(label) from None

    def _find_difference(self, info: ObjectInfo, path: Path) -> str:
        """Return the difference between a fetched file and the store's own digests; "" if they match."""
        digest: Any
        if info.md5 is not None:
            name, expected_digest, digest = "MD5", info.md5, hashlib.md5(usedforsecurity=False)
        elif info.crc32c is not None:
            import google_crc32c

            checksum = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
            name, expected_digest, digest = "CRC32C", f"{info.crc32c:08x}", checksum
        else:
            return ""
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
                if self.stop.is_set():
                    raise StoppedError(f"{path}: stopped while its digest was computed")
        actual = digest.digest().hex()
        return "" if actual == expected_digest else f"expected {name} {expected_digest}, but found {actual}"

    def _is_usable(self, entry: ManifestEntry, path: Path, label: str) -> bool:
        record = _read_record(_record_path(path))
        if {_read_size(path), record.get("size")} != {entry.size_bytes} or record.get("etag") != entry.etag:
            return False
        actual = ranged.digest_file(path, stopped=self.stop.is_set)
        if actual == record.get("sha256"):
            return True
        logger.warning(
            "%s: the mirrored file %s has sha256 %s instead of the verified %s; downloading it again",
            label,
            path,
            actual,
            record.get("sha256"),
        )
        return False


def _build_changed_error(label: str, difference: str) -> SourceError:
    return SourceError(
        f"{label}: the object changed after the manifest was built ({difference}). Restore the object, or rebuild "
        "`manifest` if the change was intended"
    )


def _build_removed_object_error(label: str) -> SourceError:
    return SourceError(
        f"{label}: the object no longer exists. Restore the object, or rebuild `manifest` if the removal was intended"
    )


@contextmanager
def _lock_record(record: Path, label: str, stopped: Callable[[], bool]) -> Iterator[int]:
    """Open and lock a file's record for one process or thread at a time, if the file system supports locks."""
    descriptor = open_own_file(record, os.O_RDWR | os.O_CREAT)
    try:
        # Continue on a file system without locks, because at worst two processes download the same file.
        while not try_lock(descriptor, required=False):
            if stopped():
                raise StoppedError(f"{label}: stopped while waiting for another process to download it")
            time.sleep(_POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def _record_path(path: Path) -> Path:
    return path.with_name(path.name + ".etag")


def _read_record(record: Path) -> dict[str, Any]:
    """Return the verified values of a file; empty if the record is missing or incomplete."""
    try:
        value = load_untrusted_json(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _check_names(entries: Sequence[ManifestEntry]) -> None:
    """Raise SourceError if an object's path collides with another's folder or bookkeeping files."""
    names = {entry.relpath for entry in entries}
    folders = {str(folder): name for name in sorted(names) for folder in PurePosixPath(name).parents}
    all_paths = names | folders.keys()
    for name in sorted(names):
        if name in folders:
            raise SourceError(
                f"{name} and {folders[name]}: one key is a folder in the other's path, which no file system can "
                "store. Rename one of the objects, or exclude it with `include`"
            )
        for suffix in _COMPANIONS:
            if name + suffix in all_paths:
                raise SourceError(
                    f"{name} and {name + suffix}: the second name is reserved for files of the mirror. Rename that "
                    "object, or exclude it with `include`"
                )


def _is_key(key: str) -> bool:
    """Return whether the key is valid in every store, and therefore as a path in a folder."""
    try:
        check_key(key)
    except ConfigError:
        return False
    return True


def _read_size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _deduplicate_entries(entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    return list({entry.relpath: entry for entry in entries}.values())
