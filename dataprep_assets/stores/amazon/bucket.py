"""One bucket of an S3 store: its requests, what its ETags say, and reads of one version.

A plain ETag is the MD5 of the content, that of a multipart object the MD5 of its parts' MD5s with their number. Under
SSE-KMS or a customer's key an ETag has the same form and is neither. Every request for bytes carries `If-Match`, so
bytes of two versions never mix.

Entry points: :class:`S3Bucket`, whose requests are named, retried and explained if they are refused;
:func:`read_range`, :class:`Stream`, :func:`etag_complaint`.
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
from dataprep_assets.stores.amazon.api import CredentialNames, RefusedError, endpoint_of, explained, translated
from dataprep_assets.stores.retry import RetryableError, RetryPolicy
from dataprep_assets.stores.store import ConflictError, ObjectInfo, check_key, no_object

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Larger blocks are memory that the allocator maps anew for each of them, and no longer in the cache when they are
# written: at 1 MiB a download cost three times the system time, and a quarter more of the whole (256 MiB, two cores).
_BLOCK = 256 * 1024
_EMPTY_PAGES = 1_000

MD5 = re.compile(r"[0-9a-f]{32}")
COMPOSITE = re.compile(r"([0-9a-f]{32})-([1-9][0-9]{0,4})")
SHA256 = re.compile(r"[0-9a-f]{64}")

DIGEST = "sha256"
"""Metadata of our objects: the digest of the content."""

WRITE = "dataprep-write"
"""Metadata of our objects: which conditional write made them."""

PART_BYTES = "dataprep-part-bytes"
"""Metadata of objects that were assembled on the server: the size of all their parts but the last."""


def etag_of(answer: Mapping[str, Any]) -> str:
    """The ETag of an answer, without its quotes."""
    return str(answer.get("ETag", "")).strip('"')


def is_opaque(answer: Mapping[str, Any]) -> bool:
    """Return whether its ETag looks like a digest but is not: KMS and customer keys."""
    # `aws:kms` or `aws:kms:dsse`; with a key of the store itself (`AES256`) an ETag is an MD5 as ever
    return str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in answer


def plain_md5(answer: Mapping[str, Any]) -> str | None:
    """The MD5 (hex) of the object's content, where its ETag says it."""
    etag = etag_of(answer)
    return etag if MD5.fullmatch(etag) and not is_opaque(answer) else None


def composite(md5s: Sequence[str | None]) -> str | None:
    """The ETag of an object of parts with these MD5s (hex); None if one of them is not known."""
    if None in md5s:
        return None
    digests = b"".join(bytes.fromhex(md5 or "") for md5 in md5s)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(md5s)}"


def recorded_sha256(answer: Mapping[str, Any]) -> str | None:
    """The SHA-256 (hex) that our upload recorded."""
    # Metadata are whatever a writer set: a value that is no digest counts as none.
    sha256 = answer.get("Metadata", {}).get(DIGEST, "")
    return sha256 if SHA256.fullmatch(sha256) else None


class S3Bucket:
    """The requests of one bucket, below `prefix` (empty, or ending in `/`); safe to share between threads."""

    def __init__(
        self, client: Any, name: str, prefix: str, *, retry: RetryPolicy, credentials: CredentialNames
    ) -> None:
        _stop_redirecting_bucket_heads(client)
        self.name = name
        self.prefix = prefix
        self.retry = retry
        self._client = client
        self._credentials = credentials
        self._endpoint = endpoint_of(client)
        # Whether the bucket is known to be there: until then a 404 of HEAD, which has no body, may mean the bucket.
        self._seen = False

    @property
    def url(self) -> str:
        """URL of the objects, without credentials."""
        return f"s3://{self.name}/{self.prefix}".rstrip("/")

    def key_of(self, key: str) -> str:
        """The key in the bucket; raises ConfigError for a key that is not valid in every store."""
        return check_key(self.prefix + check_key(key))

    def label(self, key: str) -> str:
        """Return the object's name for messages."""
        return f"s3://{self.name}/{self.prefix}{key}"

    def attempt(self, operation: str, label: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """One `request` of the client's method `operation`; `label` names the object in messages.

        Raises RetryableError, RefusedError, ConfigError.
        """
        with translated(label, self._endpoint, self._credentials):
            answer: Mapping[str, Any] = getattr(self._client, operation)(Bucket=self.name, **request)
        self._seen = True
        return answer

    def tried(self, attempt: Callable[[], T], label: str, stopped: Callable[[], bool] = lambda: False) -> T:
        """Call `attempt` within the retry policy; errors name `label`, waits end once `stopped()` is true."""
        return self.retry.run(attempt, label=label, stopped=stopped)

    def call(
        self, operation: str, label: str, *, answers: set[str] | frozenset[str] = frozenset(), **request: Any
    ) -> Mapping[str, Any]:
        """One request of the client's method `operation`, retried until it is answered; `label` names the object.

        Refusals (codes, or statuses as text) named in `answers` give {}; others raise what `explained` says.
        """
        try:
            return self.tried(partial(self.attempt, operation, label, request), label)
        except RefusedError as refused:
            # A missing bucket has the status of a missing key, and is never taken for one.
            if {refused.code, str(refused.status)} & answers and refused.code != "NoSuchBucket":
                return {}
            raise self.explained(refused, label) from None

    def explained(self, refused: RefusedError, label: str) -> DataprepError:
        """Return what a refusal means and what to fix."""
        if refused.code == "InvalidObjectState":
            return SourceError(
                f"{label}: the object is archived ({refused}). Restore it from the archive, then run again"
            )
        return explained(refused, label=label, bucket=self.name, endpoint=self._endpoint, names=self._credentials)

    def head(self, key: str) -> Mapping[str, Any] | None:
        """HeadObject's answer, None when there is no such object."""
        label, request = self.label(key), {"Key": self.key_of(key)}
        ask = partial(self.tried, partial(self.attempt, "head_object", label, request), label)
        try:
            return ask()
        except RefusedError as refused:
            # The answer to HEAD is only a status. A request whose answer has a body shows the cause (the key, the
            # bucket, the credentials).
            if refused.status != 404:
                self.call("list_objects_v2", label, Prefix=self.prefix, MaxKeys=1)
                try:
                    return ask()  # the cause may be gone: a clock is tried again, and HEAD does not name it
                except RefusedError:
                    raise self.explained(refused, label) from None
            if not self._seen:
                # Refused access is no reason to fail: keys may be allowed to read objects and not to list them.
                self.call("list_objects_v2", label, answers={"403"}, Prefix=self.prefix, MaxKeys=1)
                self._seen = True
        return None

    def require(self, key: str) -> Mapping[str, Any]:
        """HeadObject's answer; raises MissingArtifactError when there is no such object."""
        answer = self.head(key)
        if answer is None:
            raise no_object(self.label(key))
        return answer

    def existing(self, key: str) -> ObjectInfo:
        """The object; raises MissingArtifactError when there is none."""
        return self.info(key, self.require(key))

    def info(self, key: str, answer: Mapping[str, Any]) -> ObjectInfo:
        """The object that HeadObject's answer describes."""
        return ObjectInfo(
            key=key,
            bytes=answer["ContentLength"],
            version=etag_of(answer),
            sha256=recorded_sha256(answer),
            md5=plain_md5(answer),
        )

    def blocks(self, answer: Mapping[str, Any], label: str) -> Iterator[bytes]:
        """The body of a GET's answer. Raises RetryableError if it ends early."""
        body = answer["Body"]
        try:
            while True:
                with translated(label, self._endpoint, self._credentials):
                    block: bytes = body.read(_BLOCK)
                if not block:
                    return
                yield block
        finally:
            body.close()

    def pages(self, operation: str, field_name: str, label: str, **request: Any) -> Iterator[Mapping[str, Any]]:
        """The items of the listing `operation`, page by page.

        `field_name` is the answer's field with the items, `label` names the listing in messages. boto3's paginators
        were tried: they end at the first page that fails, and a listing with an empty body looks empty
        (`test_one_fault_anywhere_ends_in_the_right_bytes[list-list-…]`).

        Raises TransferError if the store does not say where the listing continues, or gives no items for too long.
        """
        empty = 0

        def attempt() -> Mapping[str, Any]:
            page = self.attempt(operation, label, request)
            # An empty body is parsed without an error, and would look like an empty listing.
            if "IsTruncated" not in page:
                raise RetryableError("the answer is not a listing")
            return page

        while True:
            try:
                page = self.tried(attempt, label)
            except RefusedError as refused:
                # Completed or aborted since it was listed: it has no parts any more.
                if operation == "list_parts" and refused.code == "NoSuchUpload":
                    return
                raise self.explained(refused, label) from None
            items = page.get(field_name, ())
            yield from items
            if not page["IsTruncated"]:
                return
            # A page may be empty, for example after many deletions; a broken proxy gives empty ones for ever.
            empty = 0 if items else empty + 1
            if empty > _EMPTY_PAGES:
                raise TransferError(f"{label}: the store returned {_EMPTY_PAGES:,} empty pages in a row without an end")
            before = dict(request)
            request |= _following(operation, page)
            if request == before:
                raise TransferError(f"{label}: the store returned an incomplete listing without a continuation token")

    def remove(self, key: str) -> None:
        """Remove an object; no error when there is none."""
        self.call("delete_object", self.label(key), answers={"NoSuchKey"}, Key=self.key_of(key))

    def remove_quietly(self, key: str) -> None:
        """Remove a wrong object; only warn if that fails, because the caller raises an error anyway."""
        try:
            self.remove(key)
        except DataprepError as error:
            logger.warning("%s: the wrong object could not be removed; remove it: %s", self.label(key), error)

    # Multipart uploads, by their keys in the bucket.

    def create_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        """The id of a new upload."""
        answer = self.call("create_multipart_upload", self.label(key), Key=self.key_of(key), Metadata=dict(metadata))
        return str(answer["UploadId"])

    def unfinished(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """The uploads whose keys in the bucket begin with `prefix`."""
        label = f"list of the unfinished uploads under s3://{self.name}/{prefix}"
        return self.pages("list_multipart_uploads", "Uploads", label, Prefix=prefix)

    def newest_part(self, name: str, upload: str) -> float:
        """When the last part of an upload arrived, in seconds since 1970; minus infinity if it has none."""
        return max((part["LastModified"].timestamp() for part in self._parts(name, upload)), default=-math.inf)

    def _parts(self, name: str, upload: str) -> Iterator[Mapping[str, Any]]:
        label = f"list of the parts of s3://{self.name}/{name}"
        return self.pages("list_parts", "Parts", label, Key=name, UploadId=upload)

    def abort(self, name: str, upload: str) -> None:
        """Abort an upload; no error if it is gone."""
        label = f"abort of an unfinished upload of s3://{self.name}/{name}"
        self.call("abort_multipart_upload", label, answers={"404"}, Key=name, UploadId=upload)

    def abort_quietly(self, name: str, upload: str) -> None:
        """Abort an upload; only warn if that fails, because a sweep will do it."""
        try:
            self.abort(name, upload)
        except DataprepError as error:
            logger.warning("%s: an unfinished upload of %s remains until the next sweep: %s", self.url, name, error)


def _stop_redirecting_bucket_heads(client: Any) -> None:
    """Keep boto3 from looking for a bucket's region forever.

    Its redirector (botocore 1.4x, `S3RegionRedirectorv2.get_bucket_region`) answers a redirect with HeadBucket, and
    would answer a redirect of that with another one, until Python's stack is full.
    """

    def mark(params: Mapping[str, Any], **_: Any) -> None:
        params["context"].setdefault("s3_redirect", {})["redirected"] = True

    # The id keeps this to one handler, however many stores share the client.
    client.meta.events.register("before-call.s3.HeadBucket", mark, unique_id="dataprep-bucket-heads")


def _following(operation: str, page: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a listing continues. Some stores leave out the markers of uploads; then the last item is used."""
    if operation == "list_objects_v2":
        token = page.get("NextContinuationToken")
        return {"ContinuationToken": token} if token else {}
    if operation == "list_parts":
        return {"PartNumberMarker": page.get("NextPartNumberMarker") or page["Parts"][-1]["PartNumber"]}
    last = (page.get("Uploads") or ({"Key": "", "UploadId": ""},))[-1]
    return {
        "KeyMarker": page.get("NextKeyMarker") or last["Key"],
        "UploadIdMarker": page.get("NextUploadIdMarker") or last["UploadId"],
    }


class _PastEndError(Exception):
    """The range begins at the object's end, or beyond it."""


def read_range(bucket: S3Bucket, info: ObjectInfo, start: int, stop: int) -> Iterator[bytes]:
    """The bytes [start, stop) of the version that `info` names, in one request, in blocks.

    Raises RetryableError for temporary failures, ConflictError if the object has another version.
    """
    try:
        answer = _open(bucket, info.key, start, stop, info.version)
    except _PastEndError:
        raise ConflictError(f"{bucket.label(info.key)}: the object became shorter") from None
    yield from bucket.blocks(answer, bucket.label(info.key))


def _open(bucket: S3Bucket, key: str, start: int, stop: int | None, version: str | None) -> Mapping[str, Any]:
    """An answer whose body is [start, stop) of the object. Raises RetryableError, or what the caller should see."""
    label = bucket.label(key)
    request: dict[str, Any] = {"Key": bucket.key_of(key)}
    if start or stop is not None:
        request["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
    if version is not None:
        request["IfMatch"] = f'"{version}"'
    try:
        answer = bucket.attempt("get_object", label, request)
    except RefusedError as refused:
        if refused.status == 412:
            raise ConflictError(f"{label}: no longer version {version}") from None
        if refused.status == 416:
            raise _PastEndError from None
        raise bucket.explained(refused, label) from None
    first, beyond, _ = _extent(answer)
    # Checked here, too, for a store that ignores If-Match.
    if version is not None and etag_of(answer) != version:
        answer["Body"].close()
        raise ConflictError(f"{label}: has version {etag_of(answer)}, not {version}")
    if first != start or (stop is not None and beyond > stop):
        answer["Body"].close()
        raise RetryableError(f"requested bytes {start}-{stop}, but the answer contains {first}-{beyond}")
    return answer


def _extent(answer: Mapping[str, Any]) -> tuple[int, int, int]:
    """First byte, byte after the last, and the object's size, from a GET's answer."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.get("ContentRange", ""))
    if found is None:
        length = int(answer.get("ContentLength", 0))
        return 0, length, length
    return int(found[1]), int(found[2]) + 1, int(found[3])


@dataclass(kw_only=True)
class Stream:
    """A read that resumes where it broke, in the version of its first answer."""

    bucket: S3Bucket
    key: str
    # The next byte to read, and the end: None until the first answer says how long the object is.
    position: int
    stop: int | None
    # From the first answer on, all further requests demand this version.
    version: str | None
    # The body of the answer at work: None before the first one, and after a break.
    source: Iterator[bytes] | None = None

    def blocks(self) -> Iterator[bytes]:
        """The bytes; see `Store.read`."""
        label = self.bucket.label(self.key)
        if self.position == self.stop:
            self._check_version()
            return
        try:
            while block := self.bucket.tried(self._next, label):
                yield block
        finally:
            self._close()

    def _next(self) -> bytes:
        """The next block, b"" at the end; raises RetryableError if the connection broke, which is then given up."""
        try:
            if self.position == self.stop:
                return b""
            if self.source is None and not self._open():
                return b""
            assert self.source is not None
            block = next(self.source, b"")
            if not block:
                raise RetryableError(f"short body: it ended at byte {self.position}")
        except RetryableError:
            self._close()
            raise
        self.position += len(block)
        return block

    def _open(self) -> bool:
        try:
            answer = _open(self.bucket, self.key, self.position, self.stop, self.version)
        except _PastEndError:
            self._check_version()
            return False
        self.version = etag_of(answer)
        _, beyond, total = _extent(answer)
        self._check_end(total)
        if self.stop is None:
            self.stop = beyond
        self.source = self.bucket.blocks(answer, self.bucket.label(self.key))
        return True

    def _check_version(self) -> None:
        """Check the version with HEAD, because an empty range cannot be requested."""
        found = self.bucket.existing(self.key)
        if self.version not in (None, found.version):
            raise ConflictError(f"{self.bucket.label(self.key)}: has version {found.version}, not {self.version}")
        self._check_end(found.bytes)

    def _check_end(self, total: int) -> None:
        wanted = max(self.position, self.stop or 0)
        if wanted > total:
            raise IntegrityError(
                f"{self.bucket.label(self.key)}: has {count_of(total, 'byte')}, but bytes up to {wanted} were requested"
            )

    def _close(self) -> None:
        close = getattr(self.source, "close", None)
        if close is not None:
            close()
        self.source = None


def etag_complaint(bucket: S3Bucket, info: ObjectInfo, path: Path) -> str:
    """Return what the object's ETag has against the bytes of `path`; "" if nothing, or if it does not prove anything.

    A plain ETag is the MD5. That of a multipart object is the MD5 of its parts' MD5s, and is compared where our own
    metadata record their size: for other objects, the length and `If-Match` on every range remain as proof.
    """
    if info.md5 is not None:
        actual = _md5_parts(path, max(info.bytes, 1))[0].hex()
    elif (step := _part_bytes(bucket, info)) is not None:
        actual = composite([digest.hex() for digest in _md5_parts(path, step)]) or ""
    else:
        return ""
    return "" if actual == info.version else f"its ETag is {info.version}, but the bytes give {actual}"


def _part_bytes(bucket: S3Bucket, info: ObjectInfo) -> int | None:
    """The size of a multipart object's parts, if it is recorded and agrees with their number."""
    # Asked again, because an ObjectInfo has no metadata; those of another version say nothing of this one.
    parts, answer = COMPOSITE.fullmatch(info.version), bucket.head(info.key)
    if parts is None or answer is None or etag_of(answer) != info.version or is_opaque(answer):
        return None
    written = answer.get("Metadata", {}).get(PART_BYTES, "")
    step = int(written) if written.isascii() and written.isdigit() else 0  # others may write it; `²` is a digit, too
    return step if step and -(-info.bytes // step) == int(parts[2]) else None


def _md5_parts(path: Path, step: int) -> list[bytes]:
    """The MD5s of a file's parts of `step` bytes; an empty file has one empty part."""
    digests: list[bytes] = []
    with path.open("rb") as stream:
        while True:
            digest, left = hashlib.md5(usedforsecurity=False), step
            while left and (block := stream.read(min(left, _BLOCK))):
                digest.update(block)
                left -= len(block)
            if left == step and digests:
                return digests
            digests.append(digest.digest())
            if left:
                return digests
