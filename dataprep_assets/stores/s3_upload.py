"""Writes to an S3 bucket: whole objects, and files in parts.

Each body carries its Content-MD5, each answer's ETag is compared with it, and the finished object's ETag with that of
its parts.
"""

import base64
import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dataprep_assets.errors import TransferError
from dataprep_assets.stores.retry import RetryableError
from dataprep_assets.stores.s3_api import RefusedError
from dataprep_assets.stores.s3_bucket import S3Bucket
from dataprep_assets.stores.s3_etag import COMPOSITE, DIGEST, composite, etag_of, is_opaque, plain_md5
from dataprep_assets.stores.store import ObjectInfo, Progress, ReversibleProgress
from dataprep_assets.stores.upload import PartBody, UploadPart, plan_parts, send_parts

# A store that answers a completion with one of these has lost parts that it had accepted.
_LOST = {"NoSuchUpload", "InvalidPart", "InvalidPartOrder", "EntityTooSmall", "InvalidRequest"}


class SpoiltError(Exception):
    """An upload that cannot succeed, because its parts are gone or wrong. A new one may."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A part that the store has. `md5` is None if its ETag is not an MD5."""

    number: int
    etag: str
    md5: str | None


def put_whole(
    bucket: S3Bucket, key: str, view: memoryview, metadata: Mapping[str, str], condition: Mapping[str, str]
) -> ObjectInfo:
    """Write `view` as the object `key` with PutObject, verified by MD5.

    `metadata` is kept with the object. `condition` holds parameters such as IfMatch; if it is not met, RefusedError
    is left to the caller.

    Raises RetryableError if the store acknowledged the write and does not have the object.
    """
    name, label = bucket.key_of(key), bucket.label(key)
    digest = hashlib.md5(view, usedforsecurity=False)

    def attempt() -> Mapping[str, Any]:
        request = {
            "Key": name,
            "Body": PartBody(view),
            "ContentMD5": _base64(digest),
            "Metadata": dict(metadata),
            **condition,
        }
        answer = bucket.attempt("put_object", label, request)
        _check_md5(answer, digest.hexdigest())
        # Read back: a store may acknowledge what it does not keep.
        found = bucket.head(key)
        # After a conditional write the next writer may already have replaced the object.
        if found is None or (etag_of(found) != etag_of(answer) and not condition):
            raise RetryableError("the store acknowledged the write and does not have the object")
        return answer

    try:
        answer = bucket.tried(attempt, label)
    except RefusedError as refused:
        # A store may say of If-Match that there is nothing to match.
        unmet = refused.status == 412 or (refused.status == 404 and refused.code != "NoSuchBucket")
        if condition and unmet:
            raise
        raise bucket.explained(refused, label) from None
    return ObjectInfo(
        key=key, bytes=len(view), version=etag_of(answer), sha256=metadata.get(DIGEST), md5=plain_md5(answer)
    )


def send_part(
    bucket: S3Bucket,
    key: str,
    upload: str,
    number: int,
    view: memoryview,
    *,
    stop: threading.Event,
) -> Sent:
    """Send `view` as part `number` (from 1) of the upload with the id `upload`, verified by MD5.

    `stop` ends the retries. Raises SpoiltError when the upload is gone.
    """
    digest = hashlib.md5(view, usedforsecurity=False)
    label = f"{bucket.label(key)}, part {number}"

    def attempt() -> Sent:
        request = {
            "Key": bucket.key_of(key),
            "UploadId": upload,
            "PartNumber": number,
            "Body": PartBody(view),
            "ContentMD5": _base64(digest),
        }
        answer = bucket.attempt("upload_part", label, request)
        _check_md5(answer, digest.hexdigest())
        return Sent(number=number, etag=etag_of(answer), md5=plain_md5(answer))

    try:
        return bucket.tried(attempt, label, stop.is_set)
    except RefusedError as refused:
        if refused.code == "NoSuchUpload":
            raise SpoiltError("the store dropped the upload while it was in progress") from None
        raise bucket.explained(refused, label) from None


def _check_md5(answer: Mapping[str, Any], expected: str) -> None:
    md5 = plain_md5(answer)
    if md5 != expected and not is_opaque(answer):
        raise RetryableError(f"the store has MD5 {md5}, {expected} was sent")


def complete(
    bucket: S3Bucket, key: str, upload: str, sent: Sequence[Sent], size: int, sha256: str | None
) -> ObjectInfo:
    """Complete the upload with the id `upload`; its object, if it is what was sent.

    `sent` are its parts in order, `size` their bytes, `sha256` (hex) what is recorded in the metadata. Raises
    SpoiltError when the object is not what was sent.
    """
    label = bucket.label(key)
    parts = [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in sent]
    request = {"Key": bucket.key_of(key), "UploadId": upload, "MultipartUpload": {"Parts": parts}}
    made = lost = ""
    try:
        made = etag_of(bucket.tried(partial(bucket.attempt, "complete_multipart_upload", label, request), label))
    except RefusedError as refused:
        if refused.code not in _LOST:
            raise bucket.explained(refused, label) from None
        lost = refused.code
    # The answer can be lost after the upload was completed, and the object can differ from what was sent: check.
    found = bucket.head(key)
    expected = composite([part.md5 for part in sent])
    if lost:
        if found is not None and _is_proven(found, size=size, expected=expected, sha256=sha256):
            return bucket.info(key, found)
        raise SpoiltError(f"the store has lost the upload or parts of it ({lost})")
    complaint = _complaint(found, size=size, expected=expected, sha256=sha256)
    if not complaint and found is not None:
        return bucket.info(key, found)
    # Only what this completion made: another writer's object under the same key is not ours to remove.
    if found is not None and etag_of(found) == made:
        bucket.remove_quietly(key)
    raise SpoiltError(f"the finished object is wrong: {complaint}")


def _is_proven(found: Mapping[str, Any], *, size: int, expected: str | None, sha256: str | None) -> bool:
    """Whether the object is what was sent, and not an older one, although its completion was not answered."""
    recorded = found.get("Metadata", {}).get(DIGEST)
    same = etag_of(found) == expected if sha256 is None else recorded == sha256
    return same and not _complaint(found, size=size, expected=expected, sha256=sha256)


def _complaint(found: Mapping[str, Any] | None, *, size: int, expected: str | None, sha256: str | None) -> str:
    if found is None:
        return "it does not exist"
    if found["ContentLength"] != size:
        return f"{found['ContentLength']} bytes, {size} were sent"
    etag = etag_of(found)
    if expected is not None and COMPOSITE.fullmatch(etag) and not is_opaque(found) and etag != expected:
        return f"its ETag is {etag}, that of what was sent {expected}"
    recorded = found.get("Metadata", {}).get(DIGEST)
    if sha256 is not None and recorded != sha256:
        return f"sha256 {recorded} is recorded with it, {sha256} was to be"
    return ""


def send_file(
    bucket: S3Bucket, path: Path, key: str, *, sha256: str, part_bytes: int, workers: int, progress: Progress | None
) -> ObjectInfo:
    """Send the file `path` in parts of `part_bytes` on `workers` threads, complete the upload and verify it.

    Raises IntegrityError if the file does not have `sha256`, TransferError. Any error aborts the upload; what a kill
    leaves is swept.
    """
    parts = plan_parts(path.stat().st_size, part_bytes=part_bytes)
    complaint = ""
    for _ in range(2):
        given = ReversibleProgress(progress)
        try:
            return _send_file_once(bucket, path, key, parts, sha256=sha256, workers=workers, given=given)
        except SpoiltError as error:
            complaint = str(error)
            given.take_back()
    raise TransferError(f"{bucket.label(key)}: {complaint}, twice in a row. Nothing of it was kept; run again later")


def _send_file_once(
    bucket: S3Bucket,
    path: Path,
    key: str,
    parts: Sequence[UploadPart],
    *,
    sha256: str,
    workers: int,
    given: ReversibleProgress,
) -> ObjectInfo:
    upload = bucket.create_upload(key, {DIGEST: sha256})
    stop = threading.Event()

    def send(part: UploadPart, view: memoryview) -> Sent:
        sent = send_part(bucket, key, upload, part.number, view, stop=stop)
        given(part.bytes)
        return sent

    try:
        sent = send_parts(path, parts, send, sha256=sha256, lanes=workers, label=bucket.label(key), stop=stop)
        return complete(bucket, key, upload, sent, parts[-1].stop, sha256)
    except BaseException:
        # Also on KeyboardInterrupt: its parts would stay, and cost, until a sweep.
        bucket.abort_quietly(bucket.key_of(key), upload)
        raise


def _base64(digest: Any) -> str:
    return base64.b64encode(digest.digest()).decode()
