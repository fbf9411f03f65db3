"""Requests to one S3 bucket, the interpretation of its ETags, and reads of a fixed version.

A plain ETag is the MD5 of the content. The ETag of a multipart object is the MD5 of its parts' MD5s, plus their number.
Under SSE-KMS or a customer's key an ETag has the same form but is neither. Every request for bytes sends `If-Match`, so
bytes of two versions never mix.

Entry points: :class:`S3Bucket`, whose requests are labeled, retried and translated into errors with a remedy;
:func:`read_range`, :class:`Stream`, :func:`find_etag_mismatch`.
"""

import hashlib
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dataprep_assets.errors import DataprepError, IntegrityError, SourceError, TransferError, count_of
from dataprep_assets.stores.amazon.api import (
    CredentialNames,
    RefusedError,
    explain_refusal,
    find_endpoint,
    translate_errors,
)
from dataprep_assets.stores.retry import RetryableError, RetryPolicy
from dataprep_assets.stores.store import ConflictError, ObjectInfo, build_missing_object_error, check_key

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A larger block is slower, because the allocator maps memory for each block, and a block has left the processor's
# cache when it is written. With 1 MiB a download took three times the system time and 25% more time in total (256 MiB,
# two cores).
_BLOCK = 256 * 1024
_EMPTY_PAGES = 1_000

MD5 = re.compile(r"[0-9a-f]{32}")
COMPOSITE = re.compile(r"([0-9a-f]{32})-([1-9][0-9]{0,4})")
SHA256 = re.compile(r"[0-9a-f]{64}")

DIGEST = "sha256"
"""Metadata key for the SHA-256 of the content."""

WRITE = "dataprep-write"
"""Metadata key for the id of the conditional write that created the object."""

PART_BYTES = "dataprep-part-bytes"
"""Metadata key for the part size of objects assembled on the server; only the last part may be smaller."""


def read_etag(response: Mapping[str, Any]) -> str:
    """Return the ETag of a response without its quotes."""
    return str(response.get("ETag", "")).strip('"')


def is_opaque(response: Mapping[str, Any]) -> bool:
    """Return whether the object's ETag is not a digest, because of encryption with KMS or a customer's key."""
    # KMS is `aws:kms` or `aws:kms:dsse`. With the store's own key (`AES256`), an ETag is still an MD5.
    return str(response.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in response


def find_md5(response: Mapping[str, Any]) -> str | None:
    """Return the MD5 (hex) of the object's content, or None if its ETag is not an MD5."""
    etag = read_etag(response)
    return etag if MD5.fullmatch(etag) and not is_opaque(response) else None


def compute_composite_etag(md5s: Sequence[str | None]) -> str | None:
    """Return the ETag of a multipart object whose parts have these MD5s (hex), or None if one is unknown."""
    if None in md5s:
        return None
    digests = b"".join(bytes.fromhex(md5 or "") for md5 in md5s)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(md5s)}"


def read_recorded_sha256(response: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 (hex) recorded by this project's upload, or None."""
    # Other writers can set any metadata, so a value that is not a digest is ignored.
    sha256 = response.get("Metadata", {}).get(DIGEST, "")
    return sha256 if SHA256.fullmatch(sha256) else None


class S3Bucket:
    """Requests to one bucket, below `prefix` ("" or ending in `/`); safe to share between threads."""

    def __init__(
        self, client: Any, name: str, prefix: str, *, retry: RetryPolicy, credentials: CredentialNames
    ) -> None:
        _stop_redirecting_bucket_heads(client)
        self.name = name
        self.prefix = prefix
        self.retry = retry
        self._client = client
        self._credentials = credentials
        self._endpoint = find_endpoint(client)
        # `_seen` is true once the bucket is known to exist. Until then, a 404 response to HEAD may mean that the bucket
        # is missing.
        self._seen = False

    @property
    def url(self) -> str:
        """URL of the objects without credentials."""
        return f"s3://{self.name}/{self.prefix}".rstrip("/")

    def build_key(self, key: str) -> str:
        """Return the key in the bucket; raise ConfigError if the key is not valid in every store."""
        return check_key(self.prefix + check_key(key))

    def label(self, key: str) -> str:
        """Return the object's name for messages."""
        return f"s3://{self.name}/{self.prefix}{key}"

    def attempt(self, operation: str, label: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Call the client's method `operation` once with `request`; `label` names the object in messages.

        Raises RetryableError, RefusedError, ConfigError.
        """
        with translate_errors(label, self._endpoint, self._credentials):
            response: Mapping[str, Any] = getattr(self._client, operation)(Bucket=self.name, **request)
        self._seen = True
        return response

    def run_with_retries(self, attempt: Callable[[], T], label: str, stopped: Callable[[], bool] = lambda: False) -> T:
        """Call `attempt` within the retry policy; `label` names it in errors, and `stopped()` ends waits early."""
        return self.retry.run(attempt, label=label, stopped=stopped)

    def call(
        self, operation: str, label: str, *, answers: set[str] | frozenset[str] = frozenset(), **request: Any
    ) -> Mapping[str, Any]:
        """Call the client's method `operation` and retry temporary failures; `label` names the object in messages.

        Returns {} for a refusal whose code or status (as text) is in `answers`; raises the error of `explain_refusal`
        for others.
        """
        try:
            return self.run_with_retries(partial(self.attempt, operation, label, request), label)
        except RefusedError as error:
            # Exclude a missing bucket, because it has the same status as a missing key, but is always an error.
            if {error.code, str(error.status)} & answers and error.code != "NoSuchBucket":
                return {}
            raise self.explain(error, label) from None

    def explain(self, error: RefusedError, label: str) -> DataprepError:
        """Return the error for a refusal, with its meaning and the remedy."""
        if error.code == "InvalidObjectState":
            return SourceError(
                f"{label}: the object is archived ({error}). Restore it from the archive, then run the command again"
            )
        return explain_refusal(error, label=label, bucket=self.name, endpoint=self._endpoint, names=self._credentials)

    def head(self, key: str) -> Mapping[str, Any] | None:
        """Return HeadObject's response, or None if the object does not exist."""
        label, request = self.label(key), {"Key": self.build_key(key)}
        ask = partial(self.run_with_retries, partial(self.attempt, "head_object", label, request), label)
        try:
            return ask()
        except RefusedError as error:
            # Send a request whose response has a body, because the body shows the cause (key, bucket or credentials),
            # and a HEAD response has none.
            if error.status != 404:
                self.call("list_objects_v2", label, Prefix=self.prefix, MaxKeys=1)
                try:
                    # Try HEAD again, because a wrong clock may have caused the refusal. Only the listing reports a
                    # wrong clock, and it is retried until the clock is corrected.
                    return ask()
                except RefusedError:
                    raise self.explain(error, label) from None
            if not self._seen:
                # Ignore a refusal (403), because the keys may allow reading objects but not listing them.
                self.call("list_objects_v2", label, answers={"403"}, Prefix=self.prefix, MaxKeys=1)
                self._seen = True
        return None

    def require(self, key: str) -> Mapping[str, Any]:
        """Return HeadObject's response; raise MissingArtifactError if the object does not exist."""
        response = self.head(key)
        if response is None:
            raise build_missing_object_error(self.label(key))
        return response

    def require_object(self, key: str) -> ObjectInfo:
        """Return the object; raise MissingArtifactError if it does not exist."""
        return self.info(key, self.require(key))

    def info(self, key: str, response: Mapping[str, Any]) -> ObjectInfo:
        """Return the object described by HeadObject's response."""
        return ObjectInfo(
            key=key,
            bytes=response["ContentLength"],
            version=read_etag(response),
            sha256=read_recorded_sha256(response),
            md5=find_md5(response),
        )

    def blocks(self, response: Mapping[str, Any], label: str) -> Iterator[bytes]:
        """Yield the body of a GET response in blocks; raise RetryableError if it ends early."""
        body = response["Body"]
        try:
            while True:
                with translate_errors(label, self._endpoint, self._credentials):
                    block: bytes = body.read(_BLOCK)
                if not block:
                    return
                yield block
        finally:
            body.close()

    def pages(self, operation: str, field_name: str, label: str, **request: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the items of the listing `operation`, page by page.

        `field_name` is the response's field with the items; `label` names the listing in messages. boto3's paginators
        are not used, because they end at the first failing page and take an empty body for an empty listing
        (`test_one_fault_anywhere_ends_with_the_right_bytes[list-list-…]`).

        Raises TransferError if the store does not return where the listing continues, or returns too many empty pages.
        """
        empty = 0

        def attempt() -> Mapping[str, Any]:
            page = self.attempt(operation, label, request)
            # Require `IsTruncated`, because an empty body is parsed without an error and would look like an empty
            # listing.
            if "IsTruncated" not in page:
                raise RetryableError("the response is not a listing")
            return page

        while True:
            try:
                page = self.run_with_retries(attempt, label)
            except RefusedError as error:
                # Yield no parts of an upload that was completed or aborted after it was listed, because it has none
                # left.
                if operation == "list_parts" and error.code == "NoSuchUpload":
                    return
                raise self.explain(error, label) from None
            items = page.get(field_name, ())
            yield from items
            if not page["IsTruncated"]:
                return
            # Limit the number of empty pages. They are valid, e.g., after many deletions, but a broken proxy may return
            # them forever.
            empty = 0 if items else empty + 1
            if empty > _EMPTY_PAGES:
                raise TransferError(
                    f"{label}: the store returned {_EMPTY_PAGES:,} empty pages of its listing in a row. Try again later"
                )
            page_request = dict(request)
            request |= _build_next_page_fields(operation, page)
            if request == page_request:
                raise TransferError(
                    f"{label}: the store returned an incomplete listing without a continuation token. Try again later"
                )

    def remove(self, key: str) -> None:
        """Remove an object; do nothing if it does not exist."""
        self.call("delete_object", self.label(key), answers={"NoSuchKey"}, Key=self.build_key(key))

    def remove_quietly(self, key: str) -> None:
        """Remove an invalid object; a failure is only logged, because the caller raises an error anyway."""
        try:
            self.remove(key)
        except DataprepError as error:
            logger.warning("%s: the faulty object could not be removed (%s). Remove it by hand", self.label(key), error)

    # --- multipart uploads; `name` is the key in the bucket, including the prefix

    def create_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        """Start a multipart upload and return its id."""
        response = self.call(
            "create_multipart_upload", self.label(key), Key=self.build_key(key), Metadata=dict(metadata)
        )
        return str(response["UploadId"])

    def list_unfinished_uploads(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """Yield the unfinished uploads whose keys in the bucket begin with `prefix`."""
        label = f"list of the unfinished uploads under s3://{self.name}/{prefix}"
        return self.pages("list_multipart_uploads", "Uploads", label, Prefix=prefix)

    def find_newest_part_time(self, name: str, upload: str) -> float:
        """Return the arrival time of the upload's latest part in seconds since 1970; minus infinity without parts."""
        return max((part["LastModified"].timestamp() for part in self._list_parts(name, upload)), default=-math.inf)

    def _list_parts(self, name: str, upload: str) -> Iterator[Mapping[str, Any]]:
        label = f"list of the parts of s3://{self.name}/{name}"
        return self.pages("list_parts", "Parts", label, Key=name, UploadId=upload)

    def abort(self, name: str, upload: str) -> None:
        """Abort an upload; do nothing if it does not exist."""
        label = f"abort of an unfinished upload of s3://{self.name}/{name}"
        self.call("abort_multipart_upload", label, answers={"404"}, Key=name, UploadId=upload)

    def abort_quietly(self, name: str, upload: str) -> None:
        """Abort an upload; a failure is only logged, because a sweep will abort it later."""
        try:
            self.abort(name, upload)
        except DataprepError as error:
            logger.warning("%s: an unfinished upload of %s remains until the next sweep: %s", self.url, name, error)


def _stop_redirecting_bucket_heads(client: Any) -> None:
    """Prevent infinite recursion in boto3's search for a bucket's region.

    Its redirector (botocore 1.4x, `S3RegionRedirectorv2.get_bucket_region`) follows a redirect with HeadBucket. If that
    is redirected too, it sends HeadBucket again, until Python's recursion limit.
    """

    def mark(params: Mapping[str, Any], **_: Any) -> None:
        params["context"].setdefault("s3_redirect", {})["redirected"] = True

    # With this id, stores that share the client register the handler only once.
    client.meta.events.register("before-call.s3.HeadBucket", mark, unique_id="dataprep-bucket-heads")


def _build_next_page_fields(operation: str, page: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request fields that continue a listing; the last item is used if the store omits the markers."""
    if operation == "list_objects_v2":
        token = page.get("NextContinuationToken")
        return {"ContinuationToken": token} if token else {}
    if operation == "list_parts":
        return {"PartNumberMarker": page.get("NextPartNumberMarker") or page["Parts"][-1]["PartNumber"]}
    last_upload = (page.get("Uploads") or ({"Key": "", "UploadId": ""},))[-1]
    return {
        "KeyMarker": page.get("NextKeyMarker") or last_upload["Key"],
        "UploadIdMarker": page.get("NextUploadIdMarker") or last_upload["UploadId"],
    }


class _PastEndError(Exception):
    """Error for a range that begins at or after the object's end."""


def read_range(bucket: S3Bucket, info: ObjectInfo, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes [start, stop) of the version in `info` in blocks, read in one request.

    Raises RetryableError for temporary failures, and ConflictError if the object has a different version.
    """
    try:
        response = _request_range(bucket, info.key, start, stop, info.version)
    except _PastEndError:
        raise ConflictError(
            f"{bucket.label(info.key)}: the object became shorter while it was being read. Run the command again"
        ) from None
    yield from bucket.blocks(response, bucket.label(info.key))


def _request_range(bucket: S3Bucket, key: str, start: int, stop: int | None, version: str | None) -> Mapping[str, Any]:
    """Request [start, stop) of the object and return the response with its unread body.

    Raises RetryableError, ConflictError, _PastEndError or the error that explains a refusal.
    """
    label = bucket.label(key)
    request: dict[str, Any] = {"Key": bucket.build_key(key)}
    if start or stop is not None:
        request["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
    if version is not None:
        request["IfMatch"] = f'"{version}"'
    try:
        response = bucket.attempt("get_object", label, request)
    except RefusedError as error:
        if error.status == 412:
            raise ConflictError(f"{label}: version {version} no longer exists. Run the command again") from None
        if error.status == 416:
            raise _PastEndError from None
        raise bucket.explain(error, label) from None
    response_start, response_stop, _ = _parse_extent(response)
    # Check the version here as well, because some stores ignore If-Match.
    if version is not None and read_etag(response) != version:
        response["Body"].close()
        raise ConflictError(
            f"{label}: expected version {version}, but found {read_etag(response)}. Run the command again"
        )
    if response_start != start or (stop is not None and response_stop > stop):
        response["Body"].close()
        raise RetryableError(
            f"requested bytes {start}-{stop}, but the response contains {response_start}-{response_stop}"
        )
    return response


def _parse_extent(response: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the first byte, the end (exclusive) and the object's size from a GET response."""
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.get("ContentRange", ""))
    if match is None:
        length = int(response.get("ContentLength", 0))
        return 0, length, length
    return int(match[1]), int(match[2]) + 1, int(match[3])


@dataclass(kw_only=True)
class Stream:
    """Resumable read of a byte range, with all bytes from the version of the first response."""

    bucket: S3Bucket
    key: str
    # `position` is the next byte to read. `stop` is None until the first response contains the object's size.
    position: int
    stop: int | None
    # `version` is the version of the object that every request requires. If it is None, the first response sets it.
    version: str | None
    # `source` is the body of the current response. It is None before the first response and after a failure.
    source: Iterator[bytes] | None = None

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the range; see `Store.read`."""
        label = self.bucket.label(self.key)
        if self.position == self.stop:
            self._check_version()
            return
        try:
            while block := self.bucket.run_with_retries(self._read_next_block, label):
                yield block
        finally:
            self._close()

    def _read_next_block(self) -> bytes:
        """Return the next block, or b"" at the end; raise RetryableError and close a connection that failed."""
        try:
            if self.position == self.stop:
                return b""
            if self.source is None and not self._request_range():
                return b""
            assert self.source is not None
            block = next(self.source, b"")
            if not block:
                raise RetryableError(f"incomplete response: ended at byte {self.position}")
        except RetryableError:
            self._close()
            raise
        self.position += len(block)
        return block

    def _request_range(self) -> bool:
        try:
            response = _request_range(self.bucket, self.key, self.position, self.stop, self.version)
        except _PastEndError:
            self._check_version()
            return False
        self.version = read_etag(response)
        _, response_stop, total = _parse_extent(response)
        self._check_end(total)
        if self.stop is None:
            self.stop = response_stop
        self.source = self.bucket.blocks(response, self.bucket.label(self.key))
        return True

    def _check_version(self) -> None:
        """Check the version with HEAD, because an empty range cannot be requested."""
        info = self.bucket.require_object(self.key)
        if self.version not in (None, info.version):
            raise ConflictError(
                f"{self.bucket.label(self.key)}: expected version {self.version}, but found {info.version}. Run the "
                "command again"
            )
        self._check_end(info.bytes)

    def _check_end(self, total: int) -> None:
        required_size = max(self.position, self.stop or 0)
        if required_size > total:
            raise IntegrityError(
                f"{self.bucket.label(self.key)}: has {count_of(total, 'byte')}, but bytes up to {required_size} were "
                "requested"
            )

    def _close(self) -> None:
        close = getattr(self.source, "close", None)
        if close is not None:
            close()
        self.source = None


def find_etag_mismatch(bucket: S3Bucket, info: ObjectInfo, path: Path) -> str:
    """Return an error message if the object's ETag contradicts the bytes of `path`, or "" if it does not.

    A plain ETag is the MD5. The ETag of a multipart object is the MD5 of its parts' MD5s, and can be verified only if
    this project's metadata record the part size. For other objects the length and `If-Match` on every range are the
    only checks.
    """
    if info.md5 is not None:
        actual = _compute_part_md5s(path, max(info.bytes, 1))[0].hex()
    elif (step := _find_part_size(bucket, info)) is not None:
        actual = compute_composite_etag([digest.hex() for digest in _compute_part_md5s(path, step)]) or ""
    else:
        return ""
    return "" if actual == info.version else f"its ETag is {info.version}, but the bytes give {actual}"


def _find_part_size(bucket: S3Bucket, info: ObjectInfo) -> int | None:
    """Return the part size of a multipart object, if it is recorded and agrees with the number of parts."""
    # Request the object's metadata, because an ObjectInfo has none. Ignore the metadata of a different version.
    parts, response = COMPOSITE.fullmatch(info.version), bucket.head(info.key)
    if parts is None or response is None or read_etag(response) != info.version or is_opaque(response):
        return None
    recorded_size = response.get("Metadata", {}).get(PART_BYTES, "")
    # Other writers can set this value. `isascii` is needed, because `isdigit` also accepts `²`.
    step = int(recorded_size) if recorded_size.isascii() and recorded_size.isdigit() else 0
    return step if step and -(-info.bytes // step) == int(parts[2]) else None


def _compute_part_md5s(path: Path, step: int) -> list[bytes]:
    """Return the MD5s of a file's parts of `step` bytes; an empty file has one empty part."""
    digests: list[bytes] = []
    with path.open("rb") as stream:
        while True:
            digest, remaining = hashlib.md5(usedforsecurity=False), step
            while remaining and (block := stream.read(min(remaining, _BLOCK))):
                digest.update(block)
                remaining -= len(block)
            if remaining == step and digests:
                return digests
            digests.append(digest.digest())
            if remaining:
                return digests
