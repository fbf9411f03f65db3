"""Interface shared by all object stores (a folder, an S3-compatible bucket or a GCS bucket), and its rules for keys.

A write is atomic: no method leaves a partial object visible under its key. Keys are relative to the store's prefix,
`/`-separated, without `.` and `..`. Every method retries temporary failures according to the store's `RetryPolicy`,
and then raises TransferError. Other failures raise immediately, with an error that describes the remedy.

`ConflictError` means that a conditional write (`if_absent`, `if_version`) lost a race. It is never retried.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from dataprep_assets.errors import ConfigError, DataprepError, MissingArtifactError, count_of
from dataprep_assets.stores.files import explain_invalid_name

# A key is a valid file name (`files.explain_invalid_name`). :func:`check_key` restricts keys further, so that any
# dataset can move between any two stores.

UPLOADS = ".uploads/"
"""Prefix of the temporary objects of unfinished uploads. It is never listed, and no key may begin with it."""

# GCS and S3 both allow 1024 bytes for the full name, which includes the store's prefix.
_LONGEST = 1024


def check_key(key: str) -> str:
    """Return `key` unchanged; raise ConfigError with the reason if it is not valid in every store."""
    reason = explain_invalid_name(key)
    if not reason and len(key.encode()) > _LONGEST:
        reason = f"it has {count_of(len(key.encode()), 'byte')} in UTF-8, more than {_LONGEST}"
    if not reason and key.startswith(UPLOADS):
        reason = f"the prefix {UPLOADS!r} is reserved for unfinished uploads"
    if reason:
        raise ConfigError(f"{key!r} is not a valid object key: {reason}. Rename the object")
    return key


Progress = Callable[[int], None]
"""Called with the number of newly transferred bytes; the number is negative if bytes are discarded."""

NEEDS_BOTO3 = "S3 storage needs boto3. Run `pip install boto3`, or install the extra `r2`"


class ReversibleProgress:
    """Progress callback that forwards counts from any thread and can revert them when the bytes are discarded."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        # Sum of all forwarded counts. `revert_progress` forwards its negative, which resets the sum to 0.
        self._bytes = 0
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if self._progress is not None and count:
                self._progress(count)

    def revert_progress(self) -> None:
        """Revert all progress forwarded so far."""
        self(-self._bytes)


class ConflictError(DataprepError):
    """Error for a failed conditional write: the object was not in the required state."""


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """An object as its store describes it.

    Attributes:
        version: Identifier of the current content: a GCS generation or an S3 ETag.
        sha256: Hex digest from the object's metadata, if this project recorded one; otherwise None.
        md5: The store's own hex digest, if it has one for this object; otherwise None.
        crc32c: The store's own checksum (unsigned), if it has one for this object; otherwise None.
    """

    key: str
    bytes: int
    version: str
    sha256: str | None = None
    md5: str | None = None
    crc32c: int | None = None


def build_missing_object_error(label: str) -> MissingArtifactError:
    """Return the error for an object that does not exist."""
    return MissingArtifactError(f"{label}: the object does not exist. Build or upload it, or correct the key")


def build_conflict_error(label: str, wanted_version: str | None, actual_version: object) -> ConflictError:
    """Return the error for a failed conditional write to `label`.

    `wanted_version` is the required version (None: no object), and `actual_version` is the version that was found.
    """
    expectation = "no object" if wanted_version is None else f"version {wanted_version}"
    actual = "none" if actual_version is None else f"version {actual_version}"
    return ConflictError(f"{label}: expected {expectation}, but found {actual}")


def check_range(start: int, stop: int | None, label: str) -> None:
    """Raise ConfigError unless `[start, stop)` is a valid byte range of the object `label`.

    A `stop` of None means the end of the object.
    """
    if start < 0:
        raise ConfigError(f"{label}: invalid range [{start}, {stop}): start must be at least 0")
    if stop is not None and stop < start:
        raise ConfigError(f"{label}: invalid range [{start}, {stop}): stop must not be less than start")


class Store(ABC):
    """Base class of all stores; the module docstring describes its guarantees. Implementations are thread-safe."""

    @property
    @abstractmethod
    def url(self) -> str:
        """URL of the store without credentials: `file:///…`, `s3://bucket/prefix` or `gs://bucket/prefix`."""

    @abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """Return the object's description, or None if it does not exist."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose keys begin with `prefix`, sorted by the UTF-8 bytes of their keys, page by page."""

    @abstractmethod
    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        """Yield the bytes `[start, stop)` of an object in blocks; retries resume at the byte where the read failed.

        A `stop` of None means the end of the object. Raises MissingArtifactError if the object does not exist, and
        ConflictError if the object does not have the required `version`. Raises an error rather than yield fewer bytes
        than requested.
        """

    @abstractmethod
    def put(
        self,
        key: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_version: str | None = None,
        content_type: str | None = None,
    ) -> ObjectInfo:
        """Write `data` as one small object, in one request.

        With `if_absent`, writes only if the key has no object yet. With `if_version`, writes only if the current object
        has that version. Raises ConflictError if the condition is not met. With `content_type`, a bucket sends this
        type to browsers.
        """

    @abstractmethod
    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        """Send the file `path`, of any size, in parallel parts; `sweep` removes the parts of a killed process.

        `sha256` (hex) is compared with the bytes as they are read (IntegrityError if the file changed) and recorded in
        the metadata. The store's digests are compared with the sent bytes (TransferError). `progress` receives the
        number of sent bytes. Memory is bounded by the parts in flight.
        """

    @abstractmethod
    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        """Download an object to `target` in parallel ranges; the file is verified before it is renamed to `target`.

        `sha256` (hex), if set, is compared with the bytes. `progress` receives the number of downloaded bytes. Raises
        MissingArtifactError, CorruptSourceError (if the digest is wrong twice) and TransferError.
        """

    @abstractmethod
    def compose(self, keys: Sequence[str], key: str, *, sha256: str | None = None) -> ObjectInfo:
        """Concatenate the objects `keys` of this store into `key` on the server, bypassing the client.

        The result's size and the store's own digests are compared with the parts. `sha256` (hex) of the full
        content, if known, is recorded in the metadata, as after an upload. It is verified only if all bytes pass
        through the client.
        """

    @abstractmethod
    def copy(self, source: str, key: str) -> ObjectInfo:
        """Copy an object and its metadata within the store, on the server if possible."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; do nothing if it does not exist."""

    @abstractmethod
    def sweep(self, prefix: str = "", *, older_than_seconds: float = 0.0) -> int:
        """Discard unfinished uploads below `prefix` and return their number.

        Multipart uploads are aborted and temporary objects are removed. Uploads that received a part in the last
        `older_than_seconds` are kept.
        """


class ReadOnlyStore(Store):
    """A store whose write methods all raise the error of `_refuse`."""

    def put(
        self,
        key: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_version: str | None = None,
        content_type: str | None = None,
    ) -> Never:
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

    @abstractmethod
    def _refuse(self) -> Never:
        """Raise a ConfigError that names a location to write to instead."""
