"""The small interface to all stores of objects (a folder, an S3-compatible or GCS bucket), and the keys they take.

An object appears whole or not at all: no method leaves a partial object visible under its key. Keys are relative to
the store's prefix, `/`-separated, without `.` and `..`. Every method retries temporary failures, within the store's
`RetryPolicy`, and then raises TransferError; other failures raise at once, and say what to fix.

`ConflictError` means a lost race (`if_absent`, `if_version`), and is never retried.
"""

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Never

from dataprep_assets.errors import ConfigError, DataprepError, MissingArtifactError, count_of

# Which names of files are valid: keys in a store, paths in a receipt, a manifest, a release or a lock.
#
# The author of such a file may be malicious, and readers turn its names into paths, log lines and pages. So
# :func:`why_not_a_name` checks each name once, where it is parsed; the parser adds where the name was found. Keys
# are restricted further by :func:`check_key`, so that any dataset can move between any two stores.

UPLOADS = ".uploads/"
"""Prefix of the temporaries of unfinished uploads: never listed, and not a valid key."""

# Both GCS and S3 allow 1024 bytes for the whole name, the store's prefix included.
_LONGEST = 1024
# Unicode's direction marks, overrides and line ends make a terminal show a name other than the real one.
# Lone surrogates, which Python also reads for bytes of a file's name that are not UTF-8, cannot be written as UTF-8.
_DECEIVING = re.compile("[\x00-\x1f\x7f-\x9f\N{ARABIC LETTER MARK}\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_OUTSIDE = frozenset(("", ".", ".."))


def why_not_a_name(name: object) -> str:
    """Why a value cannot be the relative path of a file; "" if it can.

    A valid path is a text of parts separated by `/`, none of them empty, `.` or `..` (so it does not begin with `/`),
    without control characters, direction marks and lone surrogates.
    """
    if not isinstance(name, str):
        return f"it is {type(name).__name__}, not text"
    if not _OUTSIDE.isdisjoint(name.split("/")):
        return "it has an empty part, '.' or '..'"
    if (found := _DECEIVING.search(name)) is not None:
        if "\ud800" <= found[0] <= "\udfff":
            return "it is not UTF-8"
        return "it has a control character or a bidirectional mark"
    return ""


def check_key(key: str) -> str:
    """The key itself; raises ConfigError, saying why, if it is not valid in every store."""
    why = why_not_a_name(key)
    if not why and len(key.encode()) > _LONGEST:
        why = f"it has {count_of(len(key.encode()), 'byte')} in UTF-8, more than {_LONGEST}"
    if not why and key.startswith(UPLOADS):
        why = f"the prefix {UPLOADS!r} is reserved for unfinished uploads"
    if why:
        raise ConfigError(f"{key!r} cannot be an object's key: {why}. Rename the object")
    return key


Progress = Callable[[int], None]
"""Called with the number of bytes newly transferred; negative for discarded bytes."""

NEEDS_BOTO3 = "S3 stores need boto3: pip install boto3, or the extra `r2`"


class ReversibleProgress:
    """Passes progress on, from any thread, and can take back all that it passed on, because the bytes are discarded."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        # The sum of all that was passed on: taking it back passes on its negative, which sets it to 0.
        self._bytes = 0
        self._lock = threading.Lock()

    def __call__(self, count: int) -> None:
        with self._lock:
            self._bytes += count
            if self._progress is not None and count:
                self._progress(count)

    def take_back(self) -> None:
        """Take back everything that was passed on."""
        self(-self._bytes)


class ConflictError(DataprepError):
    """A conditional write did not find the state of the object that it required."""


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """An object as its store describes it. `version` names its present content: a GCS generation, an S3 ETag.

    `sha256` is hex, from the object's own metadata where we recorded it; `md5` (hex) and `crc32c` (unsigned)
    are the store's own digests, where it has them for this object. None: unknown.
    """

    key: str
    bytes: int
    version: str
    sha256: str | None = None
    md5: str | None = None
    crc32c: int | None = None


def no_object(label: str) -> MissingArtifactError:
    """The error for an object that does not exist."""
    return MissingArtifactError(f"{label}: the object does not exist. Build or upload it, or correct the key")


def conflict(label: str, wanted: str | None, found: object) -> ConflictError:
    """The error of a conditional write of the object `label`: `found` is not the version `wanted` (None: no object)."""
    expected = "no object" if wanted is None else f"version {wanted}"
    there = "none" if found is None else f"version {found}"
    return ConflictError(f"{label}: expected {expected}, but found {there}")


def check_range(start: int, stop: int | None, label: str) -> None:
    """Raise ConfigError unless `[start, stop)` is a range of bytes; None stands for the end.

    `label` names the object.
    """
    if start < 0:
        raise ConfigError(f"{label}: invalid range [{start}, {stop}): start is negative")
    if stop is not None and stop < start:
        raise ConfigError(f"{label}: invalid range [{start}, {stop}): stop is less than start")


class Store(ABC):
    """See the module. Implementations are safe to use from many threads."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where objects live, without credentials: `file:///…`, `s3://bucket/prefix`, `gs://bucket/prefix`."""

    @abstractmethod
    def head(self, key: str) -> ObjectInfo | None:
        """The object, or None when there is none."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose keys begin with `prefix`, in the order of their keys' UTF-8 bytes, page by page."""

    @abstractmethod
    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        """The bytes `[start, stop)` of an object, in blocks; all retries happen inside, resuming where it broke.

        `stop` None stands for the end of the object. Raises MissingArtifactError when the object does not exist, and
        ConflictError when `version` is given and the object has another. Never yields fewer bytes than asked without
        raising.
        """

    @abstractmethod
    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> ObjectInfo:
        """Write `data` as one small object, in one request.

        With `if_absent` only if there is no object of this key, with `if_version` only over that version; otherwise
        raises ConflictError.
        """

    @abstractmethod
    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        """Send the file `path` of any size in parallel parts; a sweep removes those that a kill left.

        `sha256` (hex) is compared with the bytes as they are read (IntegrityError: the file changed) and recorded in
        the metadata; the store's digests are compared with what was sent (TransferError). `progress` gets the number of
        bytes sent. Memory is bounded by the parts in flight.
        """

    @abstractmethod
    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        """Fetch an object to `target` in parallel ranges; verified, then renamed.

        `sha256` (hex) is compared with the bytes, if it is given; `progress` gets the number of bytes fetched.
        Raises MissingArtifactError, CorruptSourceError (wrong digest twice), TransferError.
        """

    @abstractmethod
    def compose(self, keys: Sequence[str], key: str, *, sha256: str | None = None) -> ObjectInfo:
        """Concatenate the objects `keys` of this store into `key` on the server; no data passes through the client.

        The result's size and the store's own digests are compared with those of the parts. `sha256` (hex) of the whole,
        if known, is recorded in the metadata, as after an upload; it is compared only if all bytes pass through the
        client.
        """

    @abstractmethod
    def copy(self, source: str, key: str) -> ObjectInfo:
        """Copy an object within the store, on the server if possible; its metadata are kept."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; no error if there is none."""

    @abstractmethod
    def sweep(self, prefix: str = "", *, older_than_seconds: float = 0.0) -> int:
        """Give up unfinished uploads below `prefix` (abort multipart uploads, remove temporaries); returns how many.

        Those of which a part arrived in the last `older_than_seconds` are left alone.
        """


class ReadOnlyStore(Store):
    """A store that refuses to be written, with an error of its own."""

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

    @abstractmethod
    def _refuse(self) -> Never:
        """Raise ConfigError that says where to write instead."""
