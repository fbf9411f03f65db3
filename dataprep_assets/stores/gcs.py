"""Store of objects in a Google Cloud Storage bucket, based on google-cloud-storage's `Bucket` and `Blob`.

**Uploads** of more than one part create temporary objects `.uploads/<id>/<n>` in parallel, which the server composes
into the key. Nothing appears under the key before that one request. The server rejects a part whose CRC32C is wrong,
and the composition names the generation of every part. The drawbacks are that the object has a CRC32C but no MD5, and
that the parts are objects for a while. A bucket with soft delete (Google's default: seven days) keeps and bills removed
parts for that period. A Nearline or colder default class bills early removal, and a retention policy forbids removal.
Therefore, turn soft delete off, use the Standard class and set no retention policy. The required permissions on objects
are create, get, list and delete (`roles/storage.objectUser`).

**Reads** name the generation in every request, so bytes of two versions never mix.

These features of google-cloud-storage 3.17 were tried and are not used:

- Its retries (`retry=`) ignore Retry-After, and have a time limit instead of a number of attempts
  (`test_a_wait_requested_by_a_server_is_obeyed_or_refused`).
- Its `transfer_manager` completes an upload before the file's SHA-256 is known, and the library cannot find the parts
  that a killed process left (`test_a_file_that_differs_from_its_recorded_digest_is_not_stored`,
  `test_a_sweep_removes_old_unfinished_uploads_below_its_prefix`).
- Its chunked download does not resume the file of a killed process (`test_a_killed_download_leaves_no_visible_file`).

An upload needs memory for three times `workers` parts, a download for `workers` ranges. Entry point: :class:`GcsStore`.
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
    raise_detached,
)
from dataprep_assets.stores import ranged
from dataprep_assets.stores.client_logs import keep_secrets_from_logs
from dataprep_assets.stores.crc32c import combine_all_crc32c, compute_crc32c, compute_file_crc32c
from dataprep_assets.stores.pool import map_all
from dataprep_assets.stores.retry import RETRY_STATUS, RetryableError, RetryPolicy, parse_retry_after
from dataprep_assets.stores.store import (
    UPLOADS,
    ConflictError,
    ObjectInfo,
    Progress,
    ReversibleProgress,
    Store,
    build_conflict_error,
    build_missing_object_error,
    check_key,
    check_range,
)
from dataprep_assets.stores.upload import UploadPart, send_parts, split_into_parts

logger = logging.getLogger(__name__)

keep_secrets_from_logs()
# Without this setting, the library would fetch the bucket in a separate thread, for traces that this project does not
# use.
os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")

T = TypeVar("T")

# The library uploads a body of up to this size in one request, and a larger one in a resumable upload.
PART_BYTES = 8 * 1024 * 1024
WORKERS = 8
RETRY = RetryPolicy()

# Size of the first range of a read without an end. It is small, because such a read may stop early. The following
# ranges double in size, up to a part.
_FIRST_BYTES = 1024 * 1024
# The library sends a body in one call, to which the socket's time limit applies, so the limit must grow with the body.
_SLOWEST_BYTES_PER_SECOND = 64 * 1024
# GCS composes at most this many objects per request.
_COMPOSE = 32
_FIELDS = "items(name,size,generation,md5Hash,crc32c,metadata,updated),nextPageToken"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REASON = re.compile(r'"reason":\s*"([A-Za-z0-9]+)"')
# Permissions that the requests need, for error messages.
GET, CREATE, LIST, DELETE = (f"storage.objects.{what}" for what in ("get", "create", "list", "delete"))

# Metadata keys of this project: the digest of the content, the final key of a temporary object, and the id of a
# conditional write.
DIGEST, KEY, WRITE = "sha256", "dataprep-key", "dataprep-write"

_REMEDY = (
    "Set GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account with roles/storage.objectUser on the "
    "bucket, or run `gcloud auth application-default login`"
)


class MissingObjectError(Exception):
    """Error for a missing object, or a missing generation of it."""


@dataclass(frozen=True, kw_only=True)
class GcsBucket:
    """Objects of `handle`, a `Bucket` of `client`, below `prefix` ("" or ending in `/`).

    `workers` limits the number of parallel requests. `GcsStore` describes `timeout_seconds`.
    """

    client: Any = field(repr=False)
    handle: Any = field(repr=False)
    prefix: str
    retry: RetryPolicy
    workers: int
    timeout_seconds: float

    @property
    def url(self) -> str:
        """URL of the objects without credentials."""
        return f"gs://{self.handle.name}/{self.prefix}".rstrip("/")

    @property
    def once_arguments(self) -> dict[str, Any]:
        """Arguments that keep the library from repeating a request, because `run_with_retries` repeats it."""
        return {"timeout": (self.timeout_seconds, self.timeout_seconds), "retry": None}

    def check_key(self, key: str) -> str:
        """Return `key` unchanged; raise ConfigError if it is not valid in every store."""
        check_key(self.prefix + check_key(key))
        return key

    def label(self, key: str) -> str:
        """Return the object's name for messages."""
        return f"gs://{self.handle.name}/{self.prefix}{key}"

    def blob(self, key: str, **options: Any) -> Any:
        """Return the library's object for this key, without sending a request."""
        return self.handle.blob(self.prefix + key, **options)

    def info(self, blob: Blob) -> ObjectInfo:
        """Return the object described by a response; raise ValueError or a similar error if it is malformed."""
        # A missing or malformed field raises an error, upon which `run_with_retries` repeats the request, because the
        # response may be damaged.
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
        """Return the object with its metadata, or None if it does not exist."""

        def ask() -> Blob:
            blob = self.blob(key)
            blob.reload(**self.once_arguments)
            self.info(blob)
            return blob

        try:
            return self.run_with_retries(ask, self.label(key))
        except MissingObjectError:
            return None

    def head(self, key: str) -> ObjectInfo | None:
        blob = self.find_blob(key)
        return None if blob is None else self.info(blob)

    def require_object(self, key: str) -> ObjectInfo:
        """Return the object; raise MissingArtifactError if it does not exist."""
        info = self.head(self.check_key(key))
        if info is None:
            raise build_missing_object_error(self.label(key))
        return info

    def blobs(self, prefix: str) -> Iterator[tuple[ObjectInfo, Blob]]:
        """Yield all objects whose keys begin with `prefix`, page by page."""
        label, token = f"list of {self.label(prefix)}", None

        def page() -> tuple[Sequence[tuple[ObjectInfo, Blob]], str | None]:
            listing = self.client.list_blobs(
                self.handle, prefix=self.prefix + prefix, page_token=token, fields=_FIELDS, **self.once_arguments
            )
            entries = [(self.info(blob), blob) for blob in next(listing.pages, ())]
            return entries, listing.next_page_token

        while True:
            blobs, next_page = self.run_with_retries(page, label, LIST)
            yield from blobs
            if next_page is None:
                return
            if next_page == token:
                raise SourceError(f"{label}: the server returned the same page token twice. Try again later")
            token = next_page

    def insert(
        self,
        key: str,
        data: bytes,
        metadata: Mapping[str, str],
        *,
        label: str,
        if_generation: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
        content_type: str | None = None,
    ) -> ObjectInfo:
        """Write `data` with this `metadata`; the server and the response confirm its digest.

        With `if_generation`, the write succeeds only if the object has that generation; otherwise ConflictError is
        raised. 0 means that the object must not exist. `stopped` ends the retries early.
        """
        # Mark a conditional write, so that the next attempt recognizes its own object if the response to a successful
        # write is lost.
        mark = {} if if_generation is None else {WRITE: secrets.token_hex(16)}
        timeout = (self.timeout_seconds + len(data) / _SLOWEST_BYTES_PER_SECOND, self.timeout_seconds)

        def send() -> ObjectInfo:
            blob = self.blob(key)
            blob.metadata = {**metadata, **mark}
            blob.upload_from_string(
                data,
                content_type or "application/octet-stream",
                checksum="crc32c",
                if_generation_match=if_generation,
                timeout=timeout,
                retry=None,
            )
            return self.info(blob)

        try:
            info = self.run_with_retries(send, label, CREATE, stopped)
        except ConflictError:
            if if_generation is None:
                raise SourceError(
                    f"{label}: HTTP 412 (precondition failed) for an unconditional write. Check the policies of "
                    "the bucket, and any proxy"
                ) from None
            existing_blob = self.find_blob(key)
            if existing_blob is None or (existing_blob.metadata or {}).get(WRITE) != mark[WRITE]:
                raise
            info = self.info(existing_blob)
        return self.verify_or_remove(info, len(data), compute_crc32c(data), label)

    def verify_or_remove(self, info: ObjectInfo, size: int, crc: int | None, label: str) -> ObjectInfo:
        """Return the new object `info` if it has `size` bytes and the CRC32C `crc`; otherwise remove it.

        Raises TransferError for a wrong object; `label` names the write in it.
        """
        if (info.bytes, info.crc32c) == (size, crc):
            return info
        # Request the object's description again, because the damage may be only in the response.
        stored_info = self.head(info.key)
        if stored_info is None or stored_info.version != info.version:
            raise TransferError(f"{label}: replaced or removed immediately after it was written. Run the command again")
        if (stored_info.bytes, stored_info.crc32c) == (size, crc):
            return stored_info
        self.remove(stored_info.key, int(stored_info.version))
        raise TransferError(
            f"{label}: the server stored {count_of(stored_info.bytes, 'byte')} with CRC32C {stored_info.crc32c:08x}, "
            f"but {count_of(size, 'byte')} with {crc:08x} were sent. The object was removed. Run the command again"
        )

    def join(self, sources: Sequence[ObjectInfo], key: str, metadata: Mapping[str, str]) -> ObjectInfo:
        """Compose any number of non-empty `sources` into `key`, in levels of 32 objects.

        Raises ConflictError if a source was replaced or removed during the operation.
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
        """Compose the checked generations of up to 32 objects, and verify the result."""
        size = sum(source.bytes for source in sources)
        crc = combine_all_crc32c((source.crc32c or 0, source.bytes) for source in sources)
        pinned = [self.blob(source.key, generation=int(source.version)) for source in sources]

        def ask() -> ObjectInfo:
            blob = self.blob(key)
            blob.metadata, blob.content_type = dict(metadata), "application/octet-stream"
            blob.compose(
                pinned,
                if_generation_match=if_generation,
                if_source_generation_match=[source.generation for source in pinned],
                **self.once_arguments,
            )
            return self.info(blob)

        try:
            return self.verify_or_remove(self.run_with_retries(ask, label, CREATE), size, crc, label)
        except (MissingObjectError, ConflictError):
            # Check the result, because a request that timed out may have succeeded and replaced one of the request's
            # own sources.
            info = self.head(key)
            if info is not None and (info.bytes, info.crc32c, info.sha256) == (size, crc, metadata.get(DIGEST)):
                return info
            raise ConflictError(
                f"{label}: one of its sources was replaced or removed during the operation. Run the command again"
            ) from None

    def remove(self, key: str, generation: int | None = None) -> None:
        """Remove an object, or only this generation of it; do nothing if it does not exist."""
        try:
            blob, label = self.blob(key), f"removal of {self.label(key)}"
            self.run_with_retries(
                lambda: blob.delete(if_generation_match=generation, **self.once_arguments), label, DELETE
            )
        except (MissingObjectError, ConflictError):
            return

    def remove_quietly(self, names: Sequence[str]) -> None:
        """Remove temporary objects; a failure is only logged, because the work is done and `sweep` removes the rest."""
        try:
            map_all(self.remove, names, self.workers)
        except DataprepError as error:
            logger.warning("%s: temporary objects under %s remain until the next sweep: %s", self.url, UPLOADS, error)

    def range(self, info: ObjectInfo, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes [start, stop) of the version in `info`, read in one request; see `ranged.download`.

        After a failure, the bytes received before it are yielded, and then its error is raised.
        """
        label, arrived, failure = self.label(info.key), io.BytesIO(), None
        try:
            with _translate_errors(label, GET):
                self.blob(info.key).download_to_file(
                    arrived,
                    start=start,
                    end=stop - 1,
                    raw_download=True,  # otherwise objects with a Content-Encoding of gzip would be unpacked
                    checksum=None,  # the store's checksum covers the whole object, not a range
                    if_generation_match=int(info.version),
                    **self.once_arguments,
                )
        except RetryableError as error:
            failure = error
        except (MissingObjectError, ConflictError):
            raise ConflictError(f"{label}: version {info.version} no longer exists. Run the command again") from None
        yield arrived.getvalue()
        if failure is not None:
            raise failure

    def read(self, info: ObjectInfo, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop) of the version in `info`; a retry resumes where the last attempt failed."""
        data = bytearray()

        def attempt() -> None:
            for block in self.range(info, start + len(data), stop):
                data.extend(block)
            if len(data) < stop - start:
                raise RetryableError(f"incomplete response: ended at byte {start + len(data)}")
            if len(data) > stop - start:
                data.clear()
                raise RetryableError("the response is longer than the requested range")

        self.retry.run(attempt, label=f"{self.label(info.key)}, bytes {start}-{stop - 1}")
        return bytes(data)

    def run_with_retries(
        self,
        request: Callable[[], T],
        label: str,
        permission: str = GET,
        stopped: Callable[[], bool] = lambda: False,
    ) -> T:
        """Send a request of the library within the retry policy; `label` names it in errors."""

        def attempt() -> T:
            with _translate_errors(label, permission):
                return request()

        return self.retry.run(attempt, label=label, stopped=stopped)


@contextmanager
def _translate_errors(label: str, permission: str) -> Iterator[None]:
    """Translate the library's errors into this project's, without chaining, because they contain URLs and responses.

    Raises RetryableError for temporary failures, MissingObjectError, ConflictError for a failed precondition, and
    SourceError for a refusal.
    """
    try:
        yield
    except GoogleAPICallError as error:
        raise_detached(_from_response(error, label, permission))
    except DataCorruption:
        raise_detached(RetryableError("the received bytes differ from the sent ones"))
    except (RequestException, HTTPError, ConnectionError, TimeoutError, AuthTransportError) as error:
        raise_detached(RetryableError(_find_cause(error)))
    except GoogleAuthError as error:
        if getattr(error, "retryable", False):
            raise_detached(RetryableError(type(error).__name__))
        raise_detached(SourceError(f"{label}: Google credentials cannot be used ({type(error).__name__}). {_REMEDY}"))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # These errors come from malformed responses, because the library does not validate their JSON before it uses
        # the fields.
        raise_detached(RetryableError(f"the response does not describe an object ({type(error).__name__})"))


def _find_cause(error: Exception) -> str:
    """Return the class names of an error and its innermost cause: `ConnectionError (ConnectionResetError)`."""
    inner: BaseException = error
    while isinstance(cause := inner.__cause__ or inner.__context__, BaseException):
        inner = cause
    return type(error).__name__ if inner is error else f"{type(error).__name__} ({type(inner).__name__})"


def _from_response(error: GoogleAPICallError, label: str, permission: str) -> Exception:
    status, response = int(error.code or 0), error.response
    text = "" if response is None else response.text
    # Parse the reason from the text, because the library does not extract it from responses to uploads.
    message, reason = text.lower(), _REASON.search(text)
    code = f"HTTP {status}, {reason[1]}" if reason else f"HTTP {status}"
    if status in RETRY_STATUS:
        return RetryableError(code, parse_retry_after(response.headers.get("Retry-After")))
    if status == 400 and ("crc32c" in message or "md5" in message):
        return RetryableError(f"{code}: the received bytes differ from the sent ones")
    if status in (401, 403):
        return SourceError(
            f"{label}: access denied ({code}), because the permission {permission} is missing. {_REMEDY}"
        )
    if status == 404 and ("bucket does not exist" in message or permission == LIST):
        bucket = label.partition("gs://")[2].partition("/")[0]
        return SourceError(f"{label}: bucket {bucket} does not exist ({code}). Create it, or correct its name")
    if status == 404:
        return MissingObjectError(label)
    # A refusal by an organization's policy may also have status 412, but is not a conflict.
    if status in (412, 416) and "orgpolicyconstraintfailed" not in message:
        return ConflictError(f"{label}: the requested version no longer exists ({code}). Run the command again")
    return SourceError(
        f"{label}: the server refused a request that needs {permission} ({code}). Check the policies of the bucket"
    )


class GcsStore(Store):
    """Objects of a bucket below `prefix`.

    Args:
        client: A `google.cloud.storage.Client`.
        bucket: Name of the bucket.
        prefix: Prefix of all keys.
        retry: Retry policy of each request.
        part_bytes: Size of an upload's parts and of a download's ranges.
        workers: Number of parallel requests.
        timeout_seconds: Time limit of each connect and each wait for bytes. Sending a body extends it by one second per
            64 KiB.
        user_project: Project that pays for the requests.
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
                f"gs://{bucket}: part_bytes ({part_bytes}), workers ({workers}) and timeout_seconds "
                f"({timeout_seconds}) must be positive"
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
        return self._bucket.head(self._bucket.check_key(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info, _ in self._bucket.blobs(prefix):
            # Skip empty objects whose key ends with a slash, because consoles create them to represent folders. If such
            # an object has content, it is data.
            is_marker = info.key.endswith("/") and info.bytes == 0
            if not info.key.startswith(UPLOADS) and not is_marker and info.key:
                yield info

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        label = self._bucket.label(self._bucket.check_key(key))
        check_range(start, stop, label)
        # If the version and the end are known, no HEAD is needed, because each request names the generation, and a
        # short body is detected.
        if version is None or stop is None or start == stop:
            info = self._bucket.require_object(key)
            if version not in (None, info.version):
                raise ConflictError(
                    f"{label}: expected version {version}, but found {info.version}. Run the command again"
                )
            if max(start, stop or 0) > info.bytes:
                raise IntegrityError(
                    f"{label}: has {count_of(info.bytes, 'byte')}, but bytes up to {stop or start} were requested"
                )
        else:
            info = ObjectInfo(key=key, bytes=stop, version=str(_parse_generation(version)))
        end, step = (info.bytes, _FIRST_BYTES) if stop is None else (stop, self._part_bytes)
        while start < end:
            upto = min(start + step, end)
            yield self._bucket.read(info, start, upto)
            start, step = upto, min(2 * step, max(self._part_bytes, _FIRST_BYTES))

    def put(
        self,
        key: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_version: str | None = None,
        content_type: str | None = None,
    ) -> ObjectInfo:
        label = self._bucket.label(self._bucket.check_key(key))
        if if_absent and if_version is not None:
            raise ConfigError(f"{label}: if_absent and if_version cannot be combined. Remove one of them")
        metadata = {DIGEST: hashlib.sha256(data).hexdigest()}
        required_generation = 0 if if_absent else None if if_version is None else _parse_generation(if_version)
        try:
            return self._bucket.insert(
                key, data, metadata, label=label, if_generation=required_generation, content_type=content_type
            )
        except ConflictError:
            current_info = self.head(key)
            raise build_conflict_error(label, if_version, current_info and current_info.version) from None

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        size, sha256, label = path.stat().st_size, sha256.lower(), self._bucket.label(self._bucket.check_key(key))
        metadata, reversible_progress = {DIGEST: sha256}, ReversibleProgress(progress)
        if size <= self._part_bytes:
            data = path.read_bytes()
            if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
                raise IntegrityError(
                    f"{path}: does not have sha256 {sha256}, so the file changed after it was recorded. Rebuild the "
                    "artifact"
                )
            info = self._bucket.insert(key, data, metadata, label=label)
            reversible_progress(size)
            return info
        area, stop = f"{UPLOADS}{secrets.token_hex(16)}/", Event()
        names: list[str] = []

        def send(part: UploadPart, view: memoryview) -> ObjectInfo:
            # Record the name before sending, because an attempt may create the object although its response is lost.
            names.append(name := f"{area}{part.number:08d}")
            part_label = f"{label}, part {part.number}"
            info = self._bucket.insert(
                name, bytes(view), {KEY: key}, label=part_label, if_generation=0, stopped=stop.is_set
            )
            reversible_progress(part.bytes)
            return info

        try:
            parts = send_parts(
                path,
                split_into_parts(size, self._part_bytes),
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
                f"{label}: the uploaded parts were removed before they could be joined. A sweep or a lifecycle rule "
                f"removes {UPLOADS} during uploads. Stop it, then run the command again"
            ) from None
        self._bucket.remove_quietly(names)
        return info

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        label = self._bucket.label(self._bucket.check_key(key))

        def fetch(info: ObjectInfo, report: Progress) -> str:
            def describe_mismatch(path: Path, _: str) -> str:
                actual_crc = compute_file_crc32c(path)
                return (
                    ""
                    if actual_crc == info.crc32c
                    else f"expected CRC32C {info.crc32c:08x}, but found {actual_crc:08x}"
                )

            return ranged.download(
                partial(self._bucket.range, info),
                size=info.bytes,
                target=target,
                sha256=sha256 or info.sha256,
                # Always compare the CRC32C, because it is the only digest that every object has.
                verify=describe_mismatch,
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
        self._bucket.check_key(key)
        if len(keys) == 1 and sha256 is None:
            return self.copy(keys[0], key)
        sources = map_all(self._bucket.require_object, keys, self._workers)
        # Leave out empty objects, because they add nothing. If no other object is left, write an empty one, because a
        # composition needs at least one source.
        filled_sources = [source for source in sources if source.bytes]
        return (
            self._bucket.join(filled_sources, key, {DIGEST: sha256.lower()} if sha256 else {})
            if filled_sources
            else self.put(key, b"")
        )

    def copy(self, source: str, key: str) -> ObjectInfo:
        label = f"copy of {self._bucket.label(source)} to {self._bucket.check_key(key)}"
        source_info, target = self._bucket.require_object(source), self._bucket.blob(key)
        pinned = self._bucket.blob(source, generation=int(source_info.version))
        token: str | None = None
        position = -1

        def step() -> tuple[str | None, int]:
            next_token, copied, _ = target.rewrite(
                pinned, token=token, if_source_generation_match=pinned.generation, **self._bucket.once_arguments
            )
            if next_token is not None and copied <= position:
                raise RetryableError(f"the copy stopped at byte {copied}")
            if next_token is None:
                self._bucket.info(target)
            return next_token, copied

        try:
            # Repeat the call, because each call copies only a part of a large object, and returns a token for the next
            # call.
            while position < 0 or token is not None:
                token, position = self._bucket.run_with_retries(step, label, CREATE)
        except (MissingObjectError, ConflictError):
            raise ConflictError(
                f"{label}: the source was replaced or removed during the copy. Run the command again"
            ) from None
        return self._bucket.verify_or_remove(self._bucket.info(target), source_info.bytes, source_info.crc32c, label)

    def delete(self, key: str) -> None:
        self._bucket.remove(self._bucket.check_key(key))

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 0.0) -> int:
        areas: dict[str, list[str]] = {}
        kept_areas: set[str] = set()
        latest = time.time() - older_than_seconds
        for info, blob in self._bucket.blobs(UPLOADS):
            area = info.key.rpartition("/")[0]
            areas.setdefault(area, []).append(info.key)
            if not (blob.metadata or {}).get(KEY, "").startswith(prefix) or blob.updated.timestamp() > latest:
                # Keep an area as a whole, because all of its parts belong to one upload, and one recent part means that
                # this upload may still be running.
                kept_areas.add(area)
        swept = areas.keys() - kept_areas
        map_all(self._bucket.remove, [key for area in swept for key in areas[area]], self._workers)
        return len(swept)


def _parse_generation(version: str) -> int:
    """Return the generation in an `ObjectInfo.version` of GCS; raise ConfigError for any other text."""
    if not (version.isascii() and version.isdigit()):
        raise ConfigError(f"{version!r} is not a version of a GCS object. Use the `version` of an ObjectInfo")
    return int(version)
