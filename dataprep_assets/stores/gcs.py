"""Objects in a Google Cloud Storage bucket, through google-cloud-storage's `Bucket` and `Blob`.

**Uploads** beyond one part go up as temporary objects `.uploads/<id>/<n>`, in parallel, which the server composes into
the key; the key shows nothing before that one request. The server refuses a part unless its CRC32C is right, and the
composition names the generation of every part. The price: the object has a CRC32C and no MD5, and the parts are objects
for a while. A bucket with soft delete (Google's default: seven days) keeps and bills removed parts for that period, a
Nearline or colder default class bills early removal, and a retention policy forbids it: turn soft delete off, use the
Standard class, set no retention. Permissions: objects create, get, list, delete (`roles/storage.objectUser`).

**Reads** name the generation in every request, so bytes of two versions never mix.

Of google-cloud-storage 3.17 these were tried and are not used: its retries (`retry=`) know no Retry-After and a time
limit instead of a number of attempts (`test_the_wait_that_a_server_asks_for_is_kept_or_refused`); its
`transfer_manager` completes an upload before the file's SHA-256 is known, and no call of the library finds the parts
that a kill left (`test_a_file_that_is_not_what_was_recorded_is_not_stored`, `test_a_sweep_takes_unfinished_uploads_…`);
its chunked download goes on with no file of a killed process (`test_a_download_that_was_killed_goes_on`).

Memory of an upload: three times `workers` parts; of a download `workers` ranges. Entry point: :class:`GcsStore`.
"""

import base64
import hashlib
import io
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError
from google.auth.exceptions import TransportError as AuthTransportError
from google.cloud.storage import Blob
from google.cloud.storage.exceptions import DataCorruption
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from dataprep_assets.errors import (
    ConfigError,
    DataprepError,
    IntegrityError,
    SourceError,
    TransferError,
    count_of,
    raise_alone,
)
from dataprep_assets.stores import ranged
from dataprep_assets.stores.client_logs import keep_secrets_from_logs
from dataprep_assets.stores.crc32c import combine_all, crc32c_of, crc32c_of_file
from dataprep_assets.stores.pool import map_all
from dataprep_assets.stores.retry import RETRY_STATUS, RetryableError, RetryPolicy, parse_retry_after
from dataprep_assets.stores.store import (
    UPLOADS,
    ConflictError,
    ObjectInfo,
    Progress,
    ReversibleProgress,
    Store,
    check_key,
    check_range,
    conflict,
    no_object,
)
from dataprep_assets.stores.upload import UploadPart, cut_parts, send_parts

logger = logging.getLogger(__name__)

keep_secrets_from_logs()
# For traces that nobody asked for, the library would get the bucket in a thread of its own.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")

T = TypeVar("T")

# The most that the library sends in one request.
PART_BYTES = 8 * 1024 * 1024
WORKERS = 8
RETRY = RetryPolicy()

# The first range of a read that may not go to its end; each next one is twice as long, up to a part.
_FIRST_BYTES = 1024 * 1024
# It sends a body with one call, all of which a socket's time limit covers: so the limit grows with the body.
_SLOWEST_BYTES_PER_SECOND = 64 * 1024
# GCS composes at most so many objects in one request.
_COMPOSE = 32
_FIELDS = "items(name,size,generation,md5Hash,crc32c,metadata,updated),nextPageToken"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REASON = re.compile(r'"reason":\s*"([A-Za-z0-9]+)"')
# Permissions that a request needs, for messages.
GET, CREATE, LIST, DELETE = (f"storage.objects.{what}" for what in ("get", "create", "list", "delete"))

# Metadata of our objects: the digest of the content, the key of a temporary, and the conditional write that made it.
DIGEST, KEY, WRITE = "sha256", "dataprep-key", "dataprep-write"

_REMEDY = (
    "Set GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account with roles/storage.objectUser on the "
    "bucket, or run `gcloud auth application-default login`"
)


class NoObjectError(Exception):
    """The object (or that generation of it) is not there."""


@dataclass(frozen=True, kw_only=True)
class GcsBucket:
    """The objects of `handle`, a `Bucket` of `client`, below `prefix` (empty, or ending in `/`).

    `workers` bounds the requests that run at once; `timeout_seconds` as in `GcsStore`.
    """

    client: Any = field(repr=False)
    handle: Any = field(repr=False)
    prefix: str
    retry: RetryPolicy
    workers: int
    timeout_seconds: float

    @property
    def url(self) -> str:
        """URL of the objects, without credentials."""
        return f"gs://{self.handle.name}/{self.prefix}".rstrip("/")

    @property
    def once(self) -> dict[str, Any]:
        """Arguments of a request: the library makes it once, because `tried` repeats it."""
        return {"timeout": (self.timeout_seconds, self.timeout_seconds), "retry": None}

    def checked(self, key: str) -> str:
        """The key itself; raises ConfigError for a key that is not valid in every store."""
        check_key(self.prefix + check_key(key))
        return key

    def label(self, key: str) -> str:
        """Return the object's name for messages."""
        return f"gs://{self.handle.name}/{self.prefix}{key}"

    def blob(self, key: str, **about: Any) -> Any:
        """The library's object of this key; nothing is asked for."""
        return self.handle.blob(self.prefix + key, **about)

    def info(self, blob: Blob) -> ObjectInfo:
        """Return what an answer says of an object; ValueError and its like if it says nothing of the kind."""
        # Whatever is missing or malformed raises: `tried` takes that for a damaged answer, and asks again.
        if blob.updated is None:
            raise ValueError("not a time")
        sha256, crc32c = (blob.metadata or {}).get(DIGEST, ""), base64.b64decode(blob.crc32c, validate=True)
        if len(crc32c) != 4:
            raise ValueError("not a CRC32C")
        return ObjectInfo(
            key=blob.name.removeprefix(self.prefix),
            bytes=int(blob.size),
            version=str(int(blob.generation)),
            sha256=sha256 if _SHA256.fullmatch(sha256) else None,
            md5=base64.b64decode(blob.md5_hash, validate=True).hex() if blob.md5_hash else None,
            crc32c=int.from_bytes(crc32c, "big"),
        )

    def find_blob(self, key: str) -> Blob | None:
        """The object with its metadata, None when there is none."""

        def ask() -> Blob:
            blob = self.blob(key)
            blob.reload(**self.once)
            self.info(blob)
            return blob

        try:
            return self.tried(ask, self.label(key))
        except NoObjectError:
            return None

    def head(self, key: str) -> ObjectInfo | None:
        blob = self.find_blob(key)
        return None if blob is None else self.info(blob)

    def existing(self, key: str) -> ObjectInfo:
        """The object; raises MissingArtifactError when there is none."""
        info = self.head(self.checked(key))
        if info is None:
            raise no_object(self.label(key))
        return info

    def blobs(self, prefix: str) -> Iterator[tuple[ObjectInfo, Blob]]:
        """All objects whose keys begin with `prefix`, page by page."""
        label, token = f"list of {self.label(prefix)}", None

        def page() -> tuple[Sequence[tuple[ObjectInfo, Blob]], str | None]:
            listing = self.client.list_blobs(
                self.handle, prefix=self.prefix + prefix, page_token=token, fields=_FIELDS, **self.once
            )
            found = [(self.info(blob), blob) for blob in next(listing.pages, ())]
            return found, listing.next_page_token

        while True:
            blobs, following = self.tried(page, label, LIST)
            yield from blobs
            if following is None:
                return
            if following == token:
                raise SourceError(f"{label}: the server returned the same page token twice")
            token = following

    def insert(
        self,
        key: str,
        data: bytes,
        metadata: Mapping[str, str],
        *,
        label: str,
        if_generation: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> ObjectInfo:
        """Write `data` with this `metadata`, checked by the server and by its answer.

        With `if_generation` the write is refused (ConflictError) unless that is the present generation; 0 stands for no
        object. `stopped` ends the retries early.
        """
        # An answer can be lost after the write was done; the next try then meets its own object.
        mark = {} if if_generation is None else {WRITE: secrets.token_hex(16)}
        timeout = (self.timeout_seconds + len(data) / _SLOWEST_BYTES_PER_SECOND, self.timeout_seconds)

        def send() -> ObjectInfo:
            blob = self.blob(key)
            blob.metadata = {**metadata, **mark}
            blob.upload_from_string(
                data,
                "application/octet-stream",
                checksum="crc32c",
                if_generation_match=if_generation,
                timeout=timeout,
                retry=None,
            )
            return self.info(blob)

        try:
            made = self.tried(send, label, CREATE, stopped)
        except ConflictError:
            if if_generation is None:
                raise SourceError(
                    f"{label}: HTTP 412 (precondition failed) for an unconditional write. Check the bucket's policies "
                    "and any proxy"
                ) from None
            found = self.find_blob(key)
            if found is None or (found.metadata or {}).get(WRITE) != mark[WRITE]:
                raise
            made = self.info(found)
        return self.settled(made, len(data), crc32c_of(data), label)

    def settled(self, made: ObjectInfo, size: int, crc: int | None, label: str) -> ObjectInfo:
        """The new object `made`, if it has `size` bytes and the CRC32C `crc`; else it is removed.

        `label` names the write in the TransferError that says so.
        """
        if (made.bytes, made.crc32c) == (size, crc):
            return made
        # Only the answer may have been damaged on its way, not the object.
        again = self.head(made.key)
        if again is None or again.version != made.version:
            raise TransferError(f"{label}: replaced or removed immediately after it was written. Run again")
        if (again.bytes, again.crc32c) == (size, crc):
            return again
        self.remove(again.key, int(again.version))
        raise TransferError(
            f"{label}: the server stored {count_of(again.bytes, 'byte')} with CRC32C {again.crc32c:08x}, but "
            f"{count_of(size, 'byte')} with {crc:08x} were sent. The object was removed. Run again"
        )

    def join(self, sources: Sequence[ObjectInfo], key: str, metadata: Mapping[str, str]) -> ObjectInfo:
        """Compose any number of `sources`, none of them empty, into `key`, by levels of 32.

        Raises ConflictError when a source was replaced or removed meanwhile.
        """
        area, names = f"{UPLOADS}{secrets.token_hex(16)}/", list[str]()

        def join(group: Sequence[ObjectInfo]) -> ObjectInfo:
            names.append(name := f"{area}join-{secrets.token_hex(8)}")
            return self._compose(group, name, {KEY: key}, self.label(key), if_generation=0)

        try:
            while len(sources) > _COMPOSE:
                groups = [sources[start : start + _COMPOSE] for start in range(0, len(sources), _COMPOSE)]
                sources = map_all(join, groups, self.workers)
            return self._compose(sources, key, metadata, self.label(key))
        finally:
            self.remove_quietly(names)

    def _compose(
        self,
        sources: Sequence[ObjectInfo],
        key: str,
        metadata: Mapping[str, str],
        label: str,
        if_generation: int | None = None,
    ) -> ObjectInfo:
        """Compose up to 32 objects, each the generation that was checked; the result is checked too."""
        size = sum(source.bytes for source in sources)
        crc = combine_all((source.crc32c or 0, source.bytes) for source in sources)
        pinned = [self.blob(source.key, generation=int(source.version)) for source in sources]

        def ask() -> ObjectInfo:
            blob = self.blob(key)
            blob.metadata, blob.content_type = dict(metadata), "application/octet-stream"
            blob.compose(
                pinned,
                if_generation_match=if_generation,
                if_source_generation_match=[source.generation for source in pinned],
                **self.once,
            )
            return self.info(blob)

        try:
            return self.settled(self.tried(ask, label, CREATE), size, crc, label)
        except (NoObjectError, ConflictError):
            # A join that timed out may have been carried out nevertheless, and may have been one of its own sources.
            made = self.head(key)
            if made is not None and (made.bytes, made.crc32c, made.sha256) == (size, crc, metadata.get(DIGEST)):
                return made
            raise ConflictError(f"{label}: one of its sources was replaced or removed during the operation") from None

    def remove(self, key: str, generation: int | None = None) -> None:
        """Remove an object, or only this generation of it; no error when it is gone."""
        try:
            blob, label = self.blob(key), f"removal of {self.label(key)}"
            self.tried(lambda: blob.delete(if_generation_match=generation, **self.once), label, DELETE)
        except (NoObjectError, ConflictError):
            return

    def remove_quietly(self, names: Sequence[str]) -> None:
        """Remove temporaries; what cannot be removed is left to `sweep`, because the work itself is done."""
        try:
            map_all(self.remove, names, self.workers)
        except DataprepError as error:
            logger.warning("%s: temporary objects under %s remain until the next sweep: %s", self.url, UPLOADS, error)

    def range(self, info: ObjectInfo, start: int, stop: int) -> Iterator[bytes]:
        """The bytes [start, stop) of the version that `info` names, in one request; see `ranged.download`.

        What arrived before a failure is yielded before its error is raised.
        """
        label, arrived, failure = self.label(info.key), io.BytesIO(), None
        try:
            with _translated(label, GET):
                self.blob(info.key).download_to_file(
                    arrived,
                    start=start,
                    end=stop - 1,
                    raw_download=True,  # else what is stored with a Content-Encoding of gzip would be unpacked
                    checksum=None,  # the store's is that of the whole object, not of a range
                    if_generation_match=int(info.version),
                    **self.once,
                )
        except RetryableError as error:
            failure = error
        except (NoObjectError, ConflictError):
            raise ConflictError(f"{label}: version {info.version} no longer exists") from None
        yield arrived.getvalue()
        if failure is not None:
            raise failure

    def read(self, info: ObjectInfo, start: int, stop: int) -> bytes:
        """The same bytes, retried; a retry goes on where the last attempt broke."""
        data = bytearray()

        def attempt() -> None:
            for block in self.range(info, start + len(data), stop):
                data.extend(block)
            if len(data) < stop - start:
                raise RetryableError(f"short body: it ended at byte {start + len(data)}")
            if len(data) > stop - start:
                data.clear()
                raise RetryableError("the body is longer than the range")

        self.retry.run(attempt, label=f"{self.label(info.key)}, bytes {start}-{stop - 1}")
        return bytes(data)

    def tried(
        self,
        request: Callable[[], T],
        label: str,
        permission: str = GET,
        stopped: Callable[[], bool] = lambda: False,
    ) -> T:
        """Make a request of the library within the retry policy; errors name `label`."""

        def attempt() -> T:
            with _translated(label, permission):
                return request()

        return self.retry.run(attempt, label=label, stopped=stopped)


@contextmanager
def _translated(label: str, permission: str) -> Iterator[None]:
    """Turn the library's errors into this project's, without chaining: their texts contain URLs and answers.

    RetryableError if temporary, NoObjectError, ConflictError for a failed precondition, SourceError for a refusal.
    """
    try:
        yield
    except GoogleAPICallError as error:
        raise_alone(_from_answer(error, label, permission))
    except DataCorruption:
        raise_alone(RetryableError("the received bytes differ from the sent ones"))
    except (RequestException, HTTPError, ConnectionError, TimeoutError, AuthTransportError) as error:
        raise_alone(RetryableError(_cause(error)))
    except GoogleAuthError as error:
        if getattr(error, "retryable", False):
            raise_alone(RetryableError(type(error).__name__))
        raise_alone(SourceError(f"{label}: Google credentials cannot be used ({type(error).__name__}). {_REMEDY}"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # The library takes the answer's JSON for what it should be.
        raise_alone(RetryableError(f"the answer does not describe an object ({type(error).__name__})"))


def _cause(error: Exception) -> str:
    """The class names of an error and its cause: `ConnectionError (ConnectionResetError)`."""
    inner: BaseException = error
    while isinstance(following := inner.__cause__ or inner.__context__, BaseException):
        inner = following
    return type(error).__name__ if inner is error else f"{type(error).__name__} ({type(inner).__name__})"


def _from_answer(error: GoogleAPICallError, label: str, permission: str) -> Exception:
    status, response = int(error.code or 0), error.response
    text = "" if response is None else response.text
    # in the text, because the library does not take it out of answers to uploads
    message, reason = text.lower(), _REASON.search(text)
    code = f"HTTP {status}, {reason[1]}" if reason else f"HTTP {status}"
    if status in RETRY_STATUS:
        return RetryableError(code, parse_retry_after(response.headers.get("Retry-After")))
    if status == 400 and ("crc32c" in message or "md5" in message):
        return RetryableError(f"{code}: the received bytes differ from the sent ones")
    if status in (401, 403):
        return SourceError(f"{label}: access denied ({code}). The permission {permission} is needed. {_REMEDY}")
    if status == 404 and ("bucket does not exist" in message or permission == LIST):
        bucket = label.partition("gs://")[2].partition("/")[0]
        return SourceError(f"{label}: bucket {bucket} does not exist ({code}). Create it, or correct its name")
    if status == 404:
        return NoObjectError(label)
    # a policy of the organization refuses with 412, too
    if status in (412, 416) and "orgpolicyconstraintfailed" not in message:
        return ConflictError(f"{label}: the object has a different version than requested ({code})")
    return SourceError(f"{label}: the server refused a request of {permission} ({code})")


class GcsStore(Store):
    """The objects of a bucket below `prefix`. `client` is a `google.cloud.storage.Client`.

    `part_bytes` is the size of an upload's parts and of a download's ranges, `workers` how many are under way at once.
    `retry` counts for each request, `timeout_seconds` for each connect and each wait for bytes; the bytes of a request
    have a second more for each 64 KiB.
    """

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str = "",
        *,
        retry: RetryPolicy = RETRY,
        part_bytes: int = PART_BYTES,
        workers: int = WORKERS,
        timeout_seconds: float = 60.0,
        user_project: str | None = None,
    ) -> None:
        if not bucket or "/" in bucket:
            raise ConfigError(f"invalid bucket name {bucket!r}: must be a name without gs:// and without a path")
        if part_bytes < 1 or workers < 1 or timeout_seconds <= 0:
            raise ConfigError(
                f"gs://{bucket}: part_bytes={part_bytes}, workers={workers}, timeout_seconds={timeout_seconds} must be"
                " positive"
            )
        prefix = prefix.strip("/")
        self._bucket = GcsBucket(
            client=client,
            handle=client.bucket(bucket, user_project=user_project),
            prefix=f"{check_key(prefix)}/" if prefix else "",
            retry=retry,
            workers=workers,
            timeout_seconds=timeout_seconds,
        )
        self._part_bytes, self._workers = part_bytes, workers

    def __repr__(self) -> str:
        return f"GcsStore({self.url!r})"

    @property
    def url(self) -> str:
        return self._bucket.url

    def head(self, key: str) -> ObjectInfo | None:
        return self._bucket.head(self._bucket.checked(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info, _ in self._bucket.blobs(prefix):
            # Consoles make empty objects that end in a slash, to show a folder. One with bytes is data.
            is_marker = info.key.endswith("/") and info.bytes == 0
            if not info.key.startswith(UPLOADS) and not is_marker and info.key:
                yield info

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        label = self._bucket.label(self._bucket.checked(key))
        check_range(start, stop, label)
        # A range of a known version needs no HEAD: its generation is in each request, and a short body is noticed.
        if version is None or stop is None or start == stop:
            info = self._bucket.existing(key)
            if version not in (None, info.version):
                raise ConflictError(f"{label}: expected version {version}, found {info.version}")
            if max(start, stop or 0) > info.bytes:
                raise IntegrityError(
                    f"{label}: has {count_of(info.bytes, 'byte')}, but bytes up to {stop or start} were requested"
                )
        else:
            info = ObjectInfo(key=key, bytes=stop, version=str(_generation_of(version)))
        end, step = (info.bytes, _FIRST_BYTES) if stop is None else (stop, self._part_bytes)
        while start < end:
            upto = min(start + step, end)
            yield self._bucket.read(info, start, upto)
            start, step = upto, min(2 * step, max(self._part_bytes, _FIRST_BYTES))

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> ObjectInfo:
        label = self._bucket.label(self._bucket.checked(key))
        if if_absent and if_version is not None:
            raise ConfigError(f"{label}: if_absent and if_version cannot be combined")
        metadata = {DIGEST: hashlib.sha256(data).hexdigest()}
        expected = 0 if if_absent else None if if_version is None else _generation_of(if_version)
        try:
            return self._bucket.insert(key, data, metadata, label=label, if_generation=expected)
        except ConflictError:
            found = self.head(key)
            raise conflict(label, if_version, found and found.version) from None

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        size, sha256, label = path.stat().st_size, sha256.lower(), self._bucket.label(self._bucket.checked(key))
        metadata, given = {DIGEST: sha256}, ReversibleProgress(progress)
        if size <= self._part_bytes:
            data = path.read_bytes()
            if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
                raise IntegrityError(
                    f"{path}: does not have sha256 {sha256}, so it changed since it was recorded. Rebuild it"
                )
            info = self._bucket.insert(key, data, metadata, label=label)
            given(size)
            return info
        area, stop = f"{UPLOADS}{secrets.token_hex(16)}/", Event()
        names: list[str] = []

        def send(part: UploadPart, view: memoryview) -> ObjectInfo:
            # Before it is sent: an attempt whose answer was lost may have made the object all the same.
            names.append(name := f"{area}{part.number:08d}")
            part_label = f"{label}, part {part.number}"
            info = self._bucket.insert(
                name, bytes(view), {KEY: key}, label=part_label, if_generation=0, stopped=stop.is_set
            )
            given(part.bytes)
            return info

        try:
            parts = send_parts(
                path,
                cut_parts(size, self._part_bytes),
                send,
                sha256=sha256,
                lanes=self._workers,
                label=label,
                stop=stop,
            )
            info = self._bucket.join(parts, key, metadata)
        except IntegrityError:
            self._bucket.remove_quietly(names)
            raise
        except ConflictError:
            raise TransferError(
                f"{label}: the uploaded parts were removed before they could be joined. Another process removes "
                f"{UPLOADS} during uploads (a sweep or a lifecycle rule). Stop it, then run again"
            ) from None
        self._bucket.remove_quietly(names)
        return info

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        label = self._bucket.label(self._bucket.checked(key))

        def fetch(info: ObjectInfo, report: Progress) -> str:
            def complaint(path: Path, _: str) -> str:
                found = crc32c_of_file(path)
                return "" if found == info.crc32c else f"expected CRC32C {info.crc32c:08x}, got {found:08x}"

            return ranged.download(
                partial(self._bucket.range, info),
                size=info.bytes,
                target=target,
                sha256=sha256 or info.sha256,
                # The server's own digest is compared whether or not a SHA-256 is known.
                verify=complaint,
                label=label,
                part_bytes=self._part_bytes,
                workers=self._workers,
                retry=self._bucket.retry,
                progress=report,
            )

        return ranged.download_pinned(lambda: self.head(key), fetch, label=label, progress=progress)

    def compose(self, keys: Sequence[str], key: str, *, sha256: str | None = None) -> ObjectInfo:
        if not keys:
            raise ConfigError(f"{self._bucket.label(key)}: compose needs at least one source")
        self._bucket.checked(key)
        if len(keys) == 1 and sha256 is None:
            return self.copy(keys[0], key)
        sources = map_all(self._bucket.existing, keys, self._workers)
        # An empty object adds nothing, and a composition needs at least one source.
        filled = [source for source in sources if source.bytes]
        return (
            self._bucket.join(filled, key, {DIGEST: sha256.lower()} if sha256 else {}) if filled else self.put(key, b"")
        )

    def copy(self, source: str, key: str) -> ObjectInfo:
        label = f"copy of {self._bucket.label(source)} to {self._bucket.checked(key)}"
        found, target = self._bucket.existing(source), self._bucket.blob(key)
        pinned = self._bucket.blob(source, generation=int(found.version))
        token: str | None = None
        done = -1

        def step() -> tuple[str | None, int]:
            following, copied, _ = target.rewrite(
                pinned, token=token, if_source_generation_match=pinned.generation, **self._bucket.once
            )
            if following is not None and copied <= done:
                raise RetryableError(f"the copy does not progress beyond byte {copied}")
            if following is None:
                self._bucket.info(target)
            return following, copied

        try:
            # Call by call: each copies a part of a large object, and its token says where the next one goes on.
            while done < 0 or token is not None:
                token, done = self._bucket.tried(step, label, CREATE)
        except (NoObjectError, ConflictError):
            raise ConflictError(f"{label}: the source was replaced or removed during the copy") from None
        return self._bucket.settled(self._bucket.info(target), found.bytes, found.crc32c, label)

    def delete(self, key: str) -> None:
        self._bucket.remove(self._bucket.checked(key))

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 0.0) -> int:
        areas: dict[str, list[str]] = {}
        kept: set[str] = set()
        latest = time.time() - older_than_seconds
        for info, blob in self._bucket.blobs(UPLOADS):
            area = info.key.rpartition("/")[0]
            areas.setdefault(area, []).append(info.key)
            if not (blob.metadata or {}).get(KEY, "").startswith(prefix) or blob.updated.timestamp() > latest:
                # An area goes whole or not at all: one part that is too new shows that its upload is at work.
                kept.add(area)
        swept = areas.keys() - kept
        map_all(self._bucket.remove, [key for area in swept for key in areas[area]], self._workers)
        return len(swept)


def _generation_of(version: str) -> int:
    """The generation that an `ObjectInfo.version` of GCS stands for; raises ConfigError for anything else."""
    if not (version.isascii() and version.isdigit()):
        raise ConfigError(f"{version!r} is not a version of a GCS object. Use the `version` of an ObjectInfo")
    return int(version)
