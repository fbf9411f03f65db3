"""Objects in a bucket of AWS S3, Cloudflare R2, MinIO, or any store that speaks S3.

**Uploads.** A file beyond one part goes up as a multipart upload, which shows nothing under its key before the one
request that completes it. Each part carries its Content-MD5 (the store refuses other bytes), its ETag is compared with
that MD5, and the finished object's ETag with the MD5 of the MD5s. A rerun finds the upload that a kill left with
ListMultipartUploads and ListParts, and sends only the parts whose size and MD5 are not those of the file; no state is
kept on this side. R2 wants all parts but the last equal: they always are.

**Compose** copies ranges on the server (UploadPartCopy). A part is copied from one source only, so with equal parts
(`equal_parts`, R2's rule) the one part that crosses each boundary between sources, and whatever fits into one part
altogether, goes through the client: about 5 MiB per boundary, more only beyond 48 GiB, counted in `client_bytes`.
AWS S3 and MinIO take uneven parts; then only sources under 5 MiB and what completes them to 5 MiB pass the client. The
sources are pinned by their ETags; the result's size and ETag are compared with those of its parts, and a part that is a
whole source with the source's MD5. The digest of the whole is known to no one before it is read.

**Conditional writes** (`if_absent`, `if_version`) need a store that knows `If-None-Match` and `If-Match` on PutObject:
AWS S3, R2 and MinIO do; OpenStack Swift refuses `If-Match` (501, a ConfigError here). A store that ignores the headers
is found out only by a second `if_absent` put of the same key, which must raise ConflictError.

**Reads** carry `If-Match`, so bytes of two versions never mix. ETags under SSE-KMS or customer keys are no MD5 and are
not taken for one; a listing does not say how an object is encrypted, so `list` gives no `md5`.

Memory of an upload: `workers` parts. Entry point: :class:`S3Store`; :mod:`dataprep_assets.stores.s3_api` makes clients.
"""

import base64
import hashlib
import logging
import math
import re
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError, MissingArtifactError, TransferError
from dataprep_assets.stores import ranged
from dataprep_assets.stores.keys import check_key
from dataprep_assets.stores.pinned import download_pinned
from dataprep_assets.stores.ranged import RetryableError, RetryPolicy
from dataprep_assets.stores.s3_api import (
    CredentialNames,
    RefusedError,
    check_client,
    endpoint_of,
    explained,
    translated,
)
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Progress, Store
from dataprep_assets.stores.upload import (
    MIN_PART_BYTES,
    Lanes,
    Part,
    PartBody,
    Piece,
    plan_concatenation,
    plan_parts,
    send_parts,
)

__all__ = ["S3Store"]

logger = logging.getLogger(__name__)

PART_BYTES = 16 * 1024 * 1024
WORKERS = 12

_RETRY = RetryPolicy()
_NAMES = CredentialNames()

# AWS S3 and R2 copy at most this in one request.
_COPY_BYTES = 5 * 1024 * 1024 * 1024
_BLOCK = 1024 * 1024
_SMALLEST_RANGE, _RANGES = 8 * 1024 * 1024, 64
_MD5 = re.compile(r"[0-9a-f]{32}")
_COMPOSITE = re.compile(r"([0-9a-f]{32})-([1-9][0-9]{0,4})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# Metadata of our objects: the digest of the content, and which conditional write made it.
_DIGEST, _WRITE = "sha256", "dataprep-write"

# A store that says one of these of a completion does not have the parts that it took.
_LOST = {"NoSuchUpload", "InvalidPart", "InvalidPartOrder", "EntityTooSmall", "InvalidRequest"}


class _PastEndError(Exception):
    """The range begins at the object's end, or beyond it."""


class _SpoiltError(Exception):
    """An upload that cannot end well: its parts are gone or wrong. Another one may."""


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """A part that the store has. `md5` is None where its ETag is none."""

    number: int
    etag: str
    md5: str | None


class S3Store(Store):
    """The objects of a bucket below `prefix`. `client` is a low-level boto3 client as `s3_client` makes them.

    `part_bytes` (at least 5 MiB) is the size of an upload's parts, enlarged for files beyond 10,000 of them, and what
    is sent in one request; `range_bytes` the largest of a download's ranges; `workers` how many of either are under way
    at once. `equal_parts` keeps R2's rule in `compose`. `client_bytes` counts what `compose` sent through the client.
    `copy_bytes` is the most that one CopyObject may copy. `credentials` names the variables that messages speak of.
    """

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str = "",
        *,
        retry: RetryPolicy = _RETRY,
        part_bytes: int = PART_BYTES,
        range_bytes: int = ranged.PART_BYTES,
        workers: int = WORKERS,
        equal_parts: bool = True,
        copy_bytes: int = _COPY_BYTES,
        credentials: CredentialNames = _NAMES,
    ) -> None:
        if not bucket or "/" in bucket:
            raise ConfigError(f"bucket {bucket!r} is no name of a bucket; give it without s3:// and without a path")
        if workers < 1 or range_bytes < 1 or copy_bytes < MIN_PART_BYTES:
            raise ConfigError(
                f"s3://{bucket}: workers={workers} and range_bytes={range_bytes} must be positive, "
                f"copy_bytes={copy_bytes} at least 5 MiB"
            )
        plan_parts(0, part_bytes=part_bytes)
        check_client(client)
        prefix = prefix.strip("/")
        self._prefix = f"{check_key(prefix)}/" if prefix else ""
        self._client = client
        self._bucket = bucket
        self._retry = retry
        self._part_bytes = part_bytes
        self._range_bytes = range_bytes
        self._workers = workers
        self._equal_parts = equal_parts
        self._copy_bytes = copy_bytes
        self._credentials = credentials
        self._endpoint = endpoint_of(client)
        self._bucket_seen = False
        self._lock = threading.Lock()
        self.client_bytes = 0

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def head(self, key: str) -> ObjectInfo | None:
        answer = self._head(key)
        return None if answer is None else self._info(key, answer)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        label = f"list of s3://{self._bucket}/{self._prefix}{prefix}"
        last = b""
        for item in self._pages("list_objects_v2", "Contents", label, Prefix=self._prefix + prefix):
            name = item["Key"].encode()
            if name <= last:
                raise TransferError(f"{label}: the store does not list in the order of keys, or lists a key twice")
            last = name
            key = item["Key"].removeprefix(self._prefix)
            # Consoles make empty objects that end in a slash, to show a folder.
            if key and not key.endswith("/"):
                yield ObjectInfo(key=key, bytes=item["Size"], version=item["ETag"].strip('"'))

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        if start < 0 or (stop is not None and stop < start):
            raise ConfigError(f"{self._label(key)}: the range [{start}, {stop}) is none")
        self._name(key)
        return _Stream(store=self, key=key, position=start, stop=stop, version=version).blocks()

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> ObjectInfo:
        label = self._label(key)
        if if_absent and if_version is not None:
            raise ConfigError(f"{label}: if_absent and if_version exclude each other")
        metadata = {_DIGEST: hashlib.sha256(data).hexdigest()}
        if not if_absent and if_version is None:
            return self._put_whole(key, memoryview(data), metadata, {})
        # An answer can be lost after the write was done; the next try then meets its own object.
        metadata[_WRITE] = secrets.token_hex(16)
        condition = {"IfNoneMatch": "*"} if if_absent else {"IfMatch": f'"{if_version}"'}
        try:
            return self._put_whole(key, memoryview(data), metadata, condition)
        except RefusedError:
            found = self._head(key)
            if found is not None and found.get("Metadata", {}).get(_WRITE) == metadata[_WRITE]:
                self._check_md5(_plain_md5(found), hashlib.md5(data, usedforsecurity=False).hexdigest(), label)
                return self._info(key, found)
            wanted = "no object" if if_absent else f"version {if_version}"
            there = "none" if found is None else f"version {_etag(found)}"
            raise ConflictError(f"{label}: {wanted} was expected there, it is {there}") from None

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        size, sha256 = path.stat().st_size, sha256.lower()
        if size <= self._part_bytes:
            data = path.read_bytes()
            if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
                raise IntegrityError(
                    f"{self._label(key)}: the bytes of {path} do not have sha256 {sha256}. The file changed, or its "
                    "record is of other bytes; build it again. Nothing was published"
                )
            info = self._put_whole(key, memoryview(data), {_DIGEST: sha256}, {})
            if progress is not None and size:
                progress(size)
            return info
        complaint = ""
        for resume in (True, False):
            upload = _Upload(store=self, path=path, key=key, size=size, sha256=sha256, progress=progress)
            try:
                return upload.run(resume=resume)
            except _SpoiltError as error:
                complaint = str(error)
                upload.take_back()
        raise TransferError(f"{self._label(key)}: {complaint}, twice in a row. Nothing of it was kept; run again later")

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        digest = ""

        def fetch(info: ObjectInfo, report: Progress) -> None:
            nonlocal digest
            wanted = sha256 or info.sha256
            digest = ranged.download(
                lambda start, stop: self._range(info, start, stop),
                size=info.bytes,
                target=target,
                sha256=wanted,
                verify=None if wanted else _EtagCheck(store=self, info=info),
                etag=info.version,
                label=self._label(key),
                part_bytes=self._step(info.bytes),
                workers=self._workers,
                retry=self._retry,
                progress=report,
            )

        info = download_pinned(lambda: self.head(key), fetch, label=self._label(key), progress=progress)
        return replace(info, sha256=digest)

    def compose(self, keys: Sequence[str], key: str) -> ObjectInfo:
        if not keys:
            raise ConfigError(f"{self._label(key)}: compose needs at least one source")
        if len(keys) == 1:
            return self.copy(keys[0], key)
        sources = [source for source in self._each(self._existing, keys) if source.bytes]
        if len(sources) == 1:
            return self.copy(sources[0].key, key)
        parts = plan_concatenation([source.bytes for source in sources], equal_parts=self._equal_parts)
        if len(parts) <= 1:
            return self.put(key, b"".join(self._piece(sources, piece) for pieces in parts for piece in pieces))
        return self._assemble(sources, parts, key, {})

    def copy(self, source: str, key: str) -> ObjectInfo:
        found = self._existing(source)
        # The same cut as the source's gives the same ETag.
        step = self._first_part_bytes(found) or (self._copy_bytes if found.bytes > self._copy_bytes else None)
        if step is None:
            return self._copy_whole(found, key)
        metadata = dict(self._require(source).get("Metadata", {}))
        edges = [*range(0, found.bytes, step), found.bytes]
        return self._assemble([found], [(Piece(0, start, stop),) for start, stop in pairwise(edges)], key, metadata)

    def delete(self, key: str) -> None:
        self._call("delete_object", self._label(key), answers={"NoSuchKey"}, Key=self._name(key))

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 0.0) -> int:
        # Some stores round the time of an upload up: without a wish for an age there is nothing to compare.
        latest = datetime.now(UTC).timestamp() - older_than_seconds if older_than_seconds else math.inf
        swept = 0
        for upload in self._unfinished(self._prefix + prefix):
            if upload["Initiated"].timestamp() <= latest:
                self._abort(upload["Key"], upload["UploadId"])
                swept += 1
        return swept

    # What the parts of this module share.

    def _name(self, key: str) -> str:
        return check_key(self._prefix + check_key(key))

    def _label(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def _attempt(self, operation: str, label: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """One request. Raises RetryableError, RefusedError, ConfigError."""
        with translated(label, self._endpoint, self._credentials):
            answer: Mapping[str, Any] = getattr(self._client, operation)(Bucket=self._bucket, **request)
        self._bucket_seen = True
        return answer

    def _call(
        self, operation: str, label: str, *, answers: set[str] | frozenset[str] = frozenset(), **request: Any
    ) -> Mapping[str, Any]:
        """One request until it is answered; {} for the refusals (codes, or statuses as text) named in `answers`."""
        try:
            answer: Mapping[str, Any] = self._tried(partial(self._attempt, operation, label, request), label)
            return answer
        except RefusedError as refused:
            if {refused.code, str(refused.status)} & answers and refused.code != "NoSuchBucket":
                return {}
            raise self._explained(refused, label) from None

    def _tried(self, attempt: Callable[[], Any], label: str, stopped: Callable[[], bool] = lambda: False) -> Any:
        return self._retry.run(attempt, label=label, stopped=stopped)

    def _explained(self, refused: RefusedError, label: str) -> DataprepError:
        return explained(refused, label=label, bucket=self._bucket, endpoint=self._endpoint, names=self._credentials)

    def _head(self, key: str) -> Mapping[str, Any] | None:
        label, request = self._label(key), {"Key": self._name(key)}
        try:
            answer: Mapping[str, Any] = self._tried(partial(self._attempt, "head_object", label, request), label)
            return answer
        except RefusedError as refused:
            # A HEAD's answer is a status and no more. Whose fault it is (the key's, the bucket's, the credentials'),
            # a request whose answer has a body tells.
            if refused.status != 404:
                self._call("list_objects_v2", label, Prefix=self._prefix, MaxKeys=1)
                raise self._explained(refused, label) from None
            if not self._bucket_seen:
                self._call("list_objects_v2", label, answers={"403"}, Prefix=self._prefix, MaxKeys=1)
                self._bucket_seen = True
        return None

    def _require(self, key: str) -> Mapping[str, Any]:
        answer = self._head(key)
        if answer is None:
            raise MissingArtifactError(
                f"{self._label(key)}: there is no such object. Build or upload it, or correct the key"
            )
        return answer

    def _existing(self, key: str) -> ObjectInfo:
        return self._info(key, self._require(key))

    def _info(self, key: str, answer: Mapping[str, Any]) -> ObjectInfo:
        sha256 = answer.get("Metadata", {}).get(_DIGEST, "")
        return ObjectInfo(
            key=key,
            bytes=answer["ContentLength"],
            version=_etag(answer),
            sha256=sha256 if _SHA256.fullmatch(sha256) else None,
            md5=_plain_md5(answer),
        )

    def _pages(self, operation: str, field_name: str, label: str, **request: Any) -> Iterator[Mapping[str, Any]]:
        """The items of a listing of any kind, page by page."""

        def attempt() -> Mapping[str, Any]:
            page = self._attempt(operation, label, request)
            # An empty body is parsed without complaint, and would be a listing of nothing.
            if "IsTruncated" not in page:
                raise RetryableError("the answer is no listing")
            return page

        while True:
            try:
                page = self._tried(attempt, label)
            except RefusedError as refused:
                if operation == "list_parts" and refused.code == "NoSuchUpload":
                    return
                raise self._explained(refused, label) from None
            yield from page.get(field_name, ())
            if not page["IsTruncated"]:
                return
            before = dict(request)
            request |= _following(operation, page)
            if request == before:
                raise TransferError(f"{label}: the store says that there is more and does not say where it goes on")

    def _unfinished(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        label = f"list of the unfinished uploads below s3://{self._bucket}/{prefix}"
        return self._pages("list_multipart_uploads", "Uploads", label, Prefix=prefix)

    def _abort(self, name: str, upload: str) -> None:
        label = f"end of an unfinished upload of s3://{self._bucket}/{name}"
        self._call("abort_multipart_upload", label, answers={"404"}, Key=name, UploadId=upload)

    def _abort_quietly(self, name: str, upload: str) -> None:
        try:
            self._abort(name, upload)
        except DataprepError as error:
            logger.warning("%s: an unfinished upload of %s remains until it is swept: %s", self.url, name, error)

    def _put_whole(
        self, key: str, view: memoryview, metadata: Mapping[str, str], condition: Mapping[str, str]
    ) -> ObjectInfo:
        """PutObject, verified. RefusedError is left to the caller where there is a `condition` that was not met."""
        name, label = self._name(key), self._label(key)
        digest = hashlib.md5(view, usedforsecurity=False)

        def attempt() -> Mapping[str, Any]:
            request = {
                "Key": name,
                "Body": PartBody(view),
                "ContentMD5": _base64(digest),
                "Metadata": dict(metadata),
                **condition,
            }
            answer = self._attempt("put_object", label, request)
            md5 = _plain_md5(answer)
            if md5 != digest.hexdigest() and not _is_opaque(answer):
                raise RetryableError(f"the store has MD5 {md5}, {digest.hexdigest()} was sent")
            found = self._head(key)
            # Of a conditional write the next writer may be there already.
            if found is None or (_etag(found) != _etag(answer) and not condition):
                raise RetryableError("the store acknowledged it and has it not")
            return answer

        try:
            answer = self._tried(attempt, label)
        except RefusedError as refused:
            # A store may say of If-Match that there is nothing to match.
            unmet = refused.status == 412 or (refused.status == 404 and refused.code != "NoSuchBucket")
            if condition and unmet:
                raise
            raise self._explained(refused, label) from None
        return ObjectInfo(
            key=key, bytes=len(view), version=_etag(answer), sha256=metadata.get(_DIGEST), md5=_plain_md5(answer)
        )

    def _check_md5(self, actual: str | None, expected: str, label: str) -> None:
        if actual is not None and actual != expected:
            raise TransferError(f"{label}: the store has an object of MD5 {actual}, {expected} was sent. Remove it")

    def _send_part(
        self, name: str, upload: str, number: int, view: memoryview, label: str, lanes: Lanes, stop: threading.Event
    ) -> _Sent:
        digest = hashlib.md5(view, usedforsecurity=False)
        label = f"{label}, part {number}"

        def attempt() -> _Sent:
            request = {
                "Key": name,
                "UploadId": upload,
                "PartNumber": number,
                "Body": PartBody(view),
                "ContentMD5": _base64(digest),
            }
            with lanes.one():
                answer = self._attempt("upload_part", label, request)
            md5 = _plain_md5(answer)
            if md5 != digest.hexdigest() and not _is_opaque(answer):
                raise RetryableError(f"the store has MD5 {md5}, {digest.hexdigest()} was sent")
            return _Sent(number=number, etag=_etag(answer), md5=md5)

        try:
            sent: _Sent = self._tried(attempt, label, stop.is_set)
        except RefusedError as refused:
            if refused.code == "NoSuchUpload":
                raise _SpoiltError("the store gave the upload up while it was under way") from None
            raise self._explained(refused, label) from None
        return sent

    def _complete(self, key: str, upload: str, sent: Sequence[_Sent], size: int, sha256: str | None) -> ObjectInfo:
        """Complete an upload; its object, if it is what was sent. Raises _SpoiltError when it is not."""
        name, label = self._name(key), self._label(key)
        parts = [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in sent]
        request = {"Key": name, "UploadId": upload, "MultipartUpload": {"Parts": parts}}
        made = lost = ""
        try:
            made = _etag(self._tried(partial(self._attempt, "complete_multipart_upload", label, request), label))
        except RefusedError as refused:
            if refused.code not in _LOST:
                raise self._explained(refused, label) from None
            lost = refused.code
        # An answer can be lost after the upload was completed, and an object can be other than what was sent: look.
        found = self._head(key)
        expected = _composite(sent)
        if lost:
            if found is not None and _is_proven(found, size=size, expected=expected, sha256=sha256):
                return self._info(key, found)
            raise _SpoiltError(f"the store has lost the upload or parts of it ({lost})")
        complaint = _complaint(found, size=size, expected=expected, sha256=sha256)
        if not complaint and found is not None:
            return self._info(key, found)
        if found is not None and _etag(found) == made:
            self._remove_quietly(key)
        raise _SpoiltError(f"the finished object is wrong: {complaint}")

    def _remove_quietly(self, key: str) -> None:
        try:
            self.delete(key)
        except DataprepError as error:
            logger.warning("%s: the wrong object remains, remove it: %s", self._label(key), error)

    def _create(self, key: str, metadata: Mapping[str, str]) -> str:
        answer = self._call("create_multipart_upload", self._label(key), Key=self._name(key), Metadata=dict(metadata))
        return str(answer["UploadId"])

    def _each(self, do: Callable[[Any], Any], items: Sequence[Any]) -> Any:
        """`do` for all items, several at a time; the results in the order of the items."""
        results: dict[int, Any] = {}
        stop = threading.Event()

        def one(numbered: tuple[int, Any]) -> None:
            if not stop.is_set():
                results[numbered[0]] = do(numbered[1])

        ranged.run_all(one, [*enumerate(items)], self._workers, stop)
        return [results[index] for index in range(len(items))]

    def _assemble(
        self,
        sources: Sequence[ObjectInfo],
        parts: Sequence[tuple[Piece, ...]],
        key: str,
        metadata: Mapping[str, str],
    ) -> ObjectInfo:
        """A new object of pieces of others."""
        size = sum(piece.bytes for pieces in parts for piece in pieces)
        complaint = ""
        for _ in range(2):
            upload = self._create(key, metadata)
            lanes, stop = Lanes(self._workers), threading.Event()
            work = partial(self._assemble_part, sources, key, upload, lanes, stop)
            try:
                sent = self._each(work, [*enumerate(parts, 1)])
                return self._complete(key, upload, sent, size, metadata.get(_DIGEST))
            except _SpoiltError as error:
                complaint = str(error)
                self._abort_quietly(self._name(key), upload)
            except BaseException:
                self._abort_quietly(self._name(key), upload)
                raise
        raise TransferError(f"{self._label(key)}: {complaint}, twice in a row. Nothing of it was kept; run again later")

    def _assemble_part(
        self,
        sources: Sequence[ObjectInfo],
        key: str,
        upload: str,
        lanes: Lanes,
        stop: threading.Event,
        numbered: tuple[int, tuple[Piece, ...]],
    ) -> _Sent:
        number, pieces = numbered
        if len(pieces) == 1 and _is_copyable(sources[pieces[0].source], pieces[0]):
            return self._copy_part(sources[pieces[0].source], pieces[0], key, upload, number)
        data = b"".join(self._piece(sources, piece) for piece in pieces)
        return self._send_part(self._name(key), upload, number, memoryview(data), self._label(key), lanes, stop)

    def _piece(self, sources: Sequence[ObjectInfo], piece: Piece) -> bytes:
        """The bytes of a piece, for the client to send. They get a new digest then, so they are made sure of here."""
        source = sources[piece.source]

        def read() -> bytes:
            return b"".join(self.read(source.key, piece.start, piece.stop, version=source.version))

        def attempt() -> bytes:
            data = read()
            if source.md5 is not None and piece.bytes == source.bytes:
                good = hashlib.md5(data, usedforsecurity=False).hexdigest() == source.md5
            else:
                # There is no digest of a range: two readings must agree.
                good = data == read()
            if not good:
                raise RetryableError(f"bytes {piece.start}-{piece.stop - 1} came damaged")
            return data

        data: bytes = self._tried(attempt, self._label(source.key))
        with self._lock:
            self.client_bytes += len(data)
        return data

    def _copy_part(self, source: ObjectInfo, piece: Piece, key: str, upload: str, number: int) -> _Sent:
        label = f"{self._label(key)}, part {number} from {self._label(source.key)}"
        whole = piece.bytes == source.bytes
        request: dict[str, Any] = {
            "Key": self._name(key),
            "UploadId": upload,
            "PartNumber": number,
            **self._copy_source(source),
        }
        if not whole:
            request["CopySourceRange"] = f"bytes={piece.start}-{piece.stop - 1}"

        def attempt() -> _Sent:
            answer = self._attempt("upload_part_copy", label, request)
            etag = _etag(answer.get("CopyPartResult", {}))
            if not etag:
                raise RetryableError("the answer names no part")
            md5 = etag if _MD5.fullmatch(etag) and not _is_opaque(answer) else None
            if whole and md5 and source.md5 and md5 != source.md5:
                raise RetryableError(f"the copied part has MD5 {md5}, its source {source.md5}")
            return _Sent(number=number, etag=etag, md5=md5)

        try:
            sent: _Sent = self._tried(attempt, label)
        except RefusedError as refused:
            if refused.code == "NoSuchUpload":
                raise _SpoiltError("the store gave the upload up while it was under way") from None
            raise self._source_changed(refused, source, label) from None
        return sent

    def _copy_whole(self, source: ObjectInfo, key: str) -> ObjectInfo:
        label = f"copy of {self._label(source.key)} to {key}"
        request = {"Key": self._name(key), **self._copy_source(source)}
        found: ObjectInfo | None = None
        for _ in range(2):
            try:
                self._tried(partial(self._attempt, "copy_object", label, request), label)
            except RefusedError as refused:
                raise self._source_changed(refused, source, label) from None
            found = self.head(key)
            if (
                found is not None
                and (found.bytes, found.sha256) == (source.bytes, source.sha256)
                and (found.md5 == source.md5 or None in (found.md5, source.md5))
            ):
                return found
        raise TransferError(f"{label}: the copy is {found}, the source {source}. Remove the copy, then run again")

    def _copy_source(self, source: ObjectInfo) -> dict[str, Any]:
        return {
            "CopySource": {"Bucket": self._bucket, "Key": self._name(source.key)},
            "CopySourceIfMatch": f'"{source.version}"',
        }

    def _source_changed(self, refused: RefusedError, source: ObjectInfo, label: str) -> DataprepError:
        if refused.status == 412 or refused.code == "NoSuchKey":
            return ConflictError(f"{label}: {self._label(source.key)} was replaced or removed meanwhile. Run again")
        return self._explained(refused, label)

    def _step(self, size: int) -> int:
        """The size of a download's ranges: small enough that all workers have some, a function of the size alone."""
        return min(self._range_bytes, max(_SMALLEST_RANGE, -(-size // _RANGES)))

    def _first_part_bytes(self, info: ObjectInfo) -> int | None:
        """The size of the parts of a multipart object, where the store tells it and they can all be as long."""
        found = _COMPOSITE.fullmatch(info.version)
        if found is None or not info.bytes:
            return None
        request = {"Key": self._name(info.key), "PartNumber": 1, "IfMatch": f'"{info.version}"'}
        try:
            answer = self._tried(
                partial(self._attempt, "head_object", self._label(info.key), request), self._label(info.key)
            )
        except RefusedError:
            return None
        if _is_opaque(answer):
            return None
        step = int(answer.get("ContentLength") or 0)
        return step if step and -(-info.bytes // step) == int(found[2]) else None

    def _range(self, info: ObjectInfo, start: int, stop: int) -> Iterator[bytes]:
        """The bytes [start, stop) of one version, in one request."""
        try:
            answer = self._open(info.key, start, stop, info.version)
        except _PastEndError:
            raise ConflictError(f"{self._label(info.key)}: it is shorter than it was") from None
        yield from self._blocks(answer, self._label(info.key))

    def _open(self, key: str, start: int, stop: int | None, version: str | None) -> Mapping[str, Any]:
        """An answer whose body is [start, stop) of the object. Raises RetryableError, or what the caller should see."""
        label = self._label(key)
        request: dict[str, Any] = {"Key": self._name(key)}
        if start or stop is not None:
            request["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        if version is not None:
            request["IfMatch"] = f'"{version}"'
        try:
            answer = self._attempt("get_object", label, request)
        except RefusedError as refused:
            if refused.status == 412:
                raise ConflictError(f"{label}: it is not version {version} any more") from None
            if refused.status == 416:
                raise _PastEndError from None
            raise self._explained(refused, label) from None
        first, beyond, _ = _extent(answer)
        if version is not None and _etag(answer) != version:
            answer["Body"].close()
            raise ConflictError(f"{label}: it is version {_etag(answer)}, not {version}")
        if first != start or (stop is not None and beyond > stop):
            answer["Body"].close()
            raise RetryableError(f"bytes {start}-{stop} were asked for, {first}-{beyond} are in the answer")
        return answer

    def _blocks(self, answer: Mapping[str, Any], label: str) -> Iterator[bytes]:
        """The body of an answer. Raises RetryableError where it ends early."""
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


@dataclass(kw_only=True)
class _Upload:
    """One file on its way up in parts."""

    store: S3Store
    path: Path
    key: str
    size: int
    sha256: str
    progress: Progress | None
    given: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, *, resume: bool) -> ObjectInfo:
        """Send, complete, verify. Raises _SpoiltError where a new upload may do better; this one is aborted then."""
        store, label = self.store, self.store._label(self.key)
        name = store._name(self.key)
        parts = plan_parts(self.size, part_bytes=store._part_bytes)
        upload, there = self._left_over(name, parts, keep=resume)
        if upload is None:
            upload = store._create(self.key, {_DIGEST: self.sha256})
        lanes, stop = Lanes(store._workers), threading.Event()

        def send(part: Part, view: memoryview) -> _Sent:
            sent = self._already_there(part, view, there)
            if sent is None:
                sent = store._send_part(name, upload, part.number, view, label, lanes, stop)
            self.report(part.bytes)
            return sent

        try:
            sent = send_parts(self.path, parts, send, sha256=self.sha256, lanes=store._workers, label=label, stop=stop)
            return store._complete(self.key, upload, sent, self.size, self.sha256)
        except (_SpoiltError, IntegrityError):
            store._abort_quietly(name, upload)
            raise

    def _left_over(
        self, name: str, parts: Sequence[Part], *, keep: bool
    ) -> tuple[str | None, dict[int, tuple[int, str]]]:
        """The latest unfinished upload of this key whose parts fit, with them; all others are aborted."""
        chosen: str | None = None
        there: dict[int, tuple[int, str]] = {}
        uploads = [upload for upload in self.store._unfinished(name) if upload["Key"] == name]
        for upload in sorted(uploads, key=lambda upload: (upload["Initiated"], upload["UploadId"]), reverse=True):
            found = self._parts_of(name, upload["UploadId"]) if keep and chosen is None else {}
            lengths = {part.number: part.bytes for part in parts}
            if found and all(lengths.get(number) == size for number, (size, _) in found.items()):
                chosen, there = upload["UploadId"], found
            else:
                self.store._abort_quietly(name, upload["UploadId"])
        return chosen, there

    def _parts_of(self, name: str, upload: str) -> dict[int, tuple[int, str]]:
        label = f"list of the parts of s3://{self.store._bucket}/{name}"
        listed = self.store._pages("list_parts", "Parts", label, Key=name, UploadId=upload)
        return {part["PartNumber"]: (part["Size"], part["ETag"].strip('"')) for part in listed}

    def _already_there(self, part: Part, view: memoryview, there: Mapping[int, tuple[int, str]]) -> _Sent | None:
        size, etag = there.get(part.number, (-1, ""))
        if size != part.bytes or hashlib.md5(view, usedforsecurity=False).hexdigest() != etag:
            return None
        return _Sent(number=part.number, etag=etag, md5=etag)

    def report(self, count: int) -> None:
        with self.lock:
            self.given += count
            if self.progress is not None and count:
                self.progress(count)

    def take_back(self) -> None:
        self.report(-self.given)


@dataclass(kw_only=True)
class _Stream:
    """A read that goes on where it broke, in the version that its first answer had."""

    store: S3Store
    key: str
    position: int
    stop: int | None
    version: str | None
    source: Iterator[bytes] | None = None

    def blocks(self) -> Iterator[bytes]:
        label = self.store._label(self.key)
        if self.position == self.stop:
            self._check_version()
            return
        try:
            while block := self.store._tried(self._next, label):
                yield block
        finally:
            self._close()

    def _next(self) -> bytes:
        """The next block, b"" at the end; RetryableError where the connection broke, which is then given up."""
        try:
            if self.position == self.stop:
                return b""
            if self.source is None and not self._open():
                return b""
            assert self.source is not None
            block = next(self.source, b"")
            if not block:
                raise RetryableError(f"short body, ended at byte {self.position}")
        except RetryableError:
            self._close()
            raise
        self.position += len(block)
        return block

    def _open(self) -> bool:
        store, label = self.store, self.store._label(self.key)
        try:
            answer = store._open(self.key, self.position, self.stop, self.version)
        except _PastEndError:
            self._check_version()
            return False
        self.version = _etag(answer)
        _, beyond, total = _extent(answer)
        self._check_end(total)
        if self.stop is None:
            self.stop = beyond
        self.source = store._blocks(answer, label)
        return True

    def _check_version(self) -> None:
        """Of nothing no range can be asked for: the object is looked at instead."""
        found = self.store._existing(self.key)
        if self.version not in (None, found.version):
            raise ConflictError(f"{self.store._label(self.key)}: it is version {found.version}, not {self.version}")
        self._check_end(found.bytes)

    def _check_end(self, total: int) -> None:
        wanted = max(self.position, self.stop or 0)
        if wanted > total:
            raise IntegrityError(
                f"{self.store._label(self.key)}: it has {total} bytes, bytes up to {wanted} were asked for"
            )

    def _close(self) -> None:
        close = getattr(self.source, "close", None)
        if close is not None:
            close()
        self.source = None


@dataclass(kw_only=True)
class _EtagCheck:
    """Compares a fetched file with what the object's ETag says of it.

    A plain ETag is the MD5. One of a multipart object is the MD5 of its parts' MD5s, and their size is known where the
    store tells that of the first and all can be as long. They need not be: when the digest differs twice and the bytes
    were the same both times, the parts were uneven, and length and `If-Match` on every range are all there is.
    """

    store: S3Store
    info: ObjectInfo
    last: str | None = None

    def __call__(self, path: Path, sha256: str) -> str:
        """A complaint, or "" if there is none."""
        size = self.info.bytes
        composite = _COMPOSITE.fullmatch(self.info.version)
        if self.info.md5 is not None:
            expected, step = self.info.md5, max(size, 1)
        elif composite is not None and (step_found := self.store._first_part_bytes(self.info)):
            expected, step = composite[1], step_found
        else:
            return ""
        digests = _md5_parts(path, step)
        joined = digests[0] if self.info.md5 else hashlib.md5(b"".join(digests), usedforsecurity=False).digest()
        if joined.hex() == expected:
            return ""
        same_again, self.last = self.last == sha256, sha256
        if composite is not None and same_again:
            logger.warning("%s: its ETag could not be verified; its parts are uneven", self.store._label(self.info.key))
            return ""
        return f"its ETag is {self.info.version}, the bytes have MD5 {joined.hex()}"


def _md5_parts(path: Path, step: int) -> list[bytes]:
    """The MD5s of a file's parts of `step` bytes; of an empty file that of nothing."""
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


def _following(operation: str, page: Mapping[str, Any]) -> dict[str, Any]:
    """Where a listing goes on. Stores leave the markers of uploads out; the last item then says it."""
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


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _is_opaque(answer: Mapping[str, Any]) -> bool:
    """Whether its ETag has the form of a digest and is none: KMS and customer keys."""
    return str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in answer


def _plain_md5(answer: Mapping[str, Any]) -> str | None:
    etag = _etag(answer)
    return etag if _MD5.fullmatch(etag) and not _is_opaque(answer) else None


def _composite(sent: Sequence[_Sent]) -> str | None:
    """The ETag of an object of these parts; None where an ETag of theirs is no digest."""
    if any(part.md5 is None for part in sent):
        return None
    digests = b"".join(bytes.fromhex(part.md5 or "") for part in sent)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(sent)}"


def _is_proven(found: Mapping[str, Any], *, size: int, expected: str | None, sha256: str | None) -> bool:
    """Whether the object is what was sent, and not an older one, although its completion was not answered."""
    recorded = found.get("Metadata", {}).get(_DIGEST)
    same = _etag(found) == expected if sha256 is None else recorded == sha256
    return same and not _complaint(found, size=size, expected=expected, sha256=sha256)


def _complaint(found: Mapping[str, Any] | None, *, size: int, expected: str | None, sha256: str | None) -> str:
    if found is None:
        return "it is not there"
    if found["ContentLength"] != size:
        return f"{found['ContentLength']} bytes, {size} were sent"
    etag = _etag(found)
    if expected is not None and _COMPOSITE.fullmatch(etag) and not _is_opaque(found) and etag != expected:
        return f"its ETag is {etag}, that of what was sent {expected}"
    recorded = found.get("Metadata", {}).get(_DIGEST)
    if sha256 is not None and recorded != sha256:
        return f"sha256 {recorded} is recorded with it, {sha256} was to be"
    return ""


def _is_copyable(source: ObjectInfo, piece: Piece) -> bool:
    # AWS copies a range only from a source of more than 5 MiB.
    return piece.bytes == source.bytes or source.bytes > MIN_PART_BYTES


def _extent(answer: Mapping[str, Any]) -> tuple[int, int, int]:
    """First byte, byte behind the last, and the object's size, of a GET's answer."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.get("ContentRange", ""))
    if found is None:
        length = int(answer.get("ContentLength", 0))
        return 0, length, length
    return int(found[1]), int(found[2]) + 1, int(found[3])


def _base64(digest: Any) -> str:
    return base64.b64encode(digest.digest()).decode()
