"""Writes to an S3 bucket: whole objects, files in parts, and server-side copies and concatenations.

Each body has a Content-MD5, which is compared with the response's ETag. The finished object's ETag is compared with the
ETags of its parts.

A concatenation consists of copied ranges (UploadPartCopy). The server copies a part from a single source, and all parts
except the last must be equal (R2's rule). So the part that crosses a boundary between sources is sent by the client, as
is any result that fits into one part. This is about 5 MiB per boundary, and more only beyond 48 GiB.

The sources are pinned by their ETags. The result's size and ETag are compared with its parts, and the MD5 of a part
that is a whole source with the source's MD5. The metadata record the SHA-256 of the result, if the caller knows it, and
the part size, so that the ETag can be verified on reads.

Entry points: :func:`put_whole`, :func:`send_file`, :class:`Composer`.
"""

import base64
import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dataprep_assets.errors import DataprepError, IntegrityError, TransferError
from dataprep_assets.stores.amazon.api import RefusedError
from dataprep_assets.stores.amazon.bucket import (
    COMPOSITE,
    DIGEST,
    MD5,
    PART_BYTES,
    S3Bucket,
    Stream,
    composite,
    etag_of,
    is_opaque,
    plain_md5,
)
from dataprep_assets.stores.pool import map_all
from dataprep_assets.stores.retry import RetryableError
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Progress, ReversibleProgress
from dataprep_assets.stores.upload import (
    MIN_PART_BYTES,
    PartBody,
    Piece,
    UploadPart,
    plan_concatenation,
    plan_parts,
    send_parts,
)

# A store that refuses a completion with one of these codes has lost parts that it had accepted.
_LOST = {"NoSuchUpload", "InvalidPart", "InvalidPartOrder", "EntityTooSmall", "InvalidRequest"}


class SpoiltError(Exception):
    """An upload that cannot succeed, because its parts are missing or wrong. A new upload may succeed."""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A part that the store has received. `md5` is None if its ETag is not an MD5."""

    number: int
    etag: str
    md5: str | None


def put_whole(
    bucket: S3Bucket, key: str, view: memoryview, metadata: Mapping[str, str], condition: Mapping[str, str]
) -> ObjectInfo:
    """Write `view` as the object `key` with PutObject, and verify its MD5.

    `metadata` is stored with the object. `condition` contains parameters such as IfMatch. If it is not met, the
    RefusedError is passed on to the caller.

    Raises TransferError if the store repeatedly confirms the write but does not have the object.
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
        # Verify the write with HEAD, because a store may confirm it without keeping the object.
        head_answer = bucket.head(key)
        # After a conditional write another writer may already have replaced the object.
        if head_answer is None or (etag_of(head_answer) != etag_of(answer) and not condition):
            raise RetryableError("the store confirmed the write, but the object is missing")
        return answer

    try:
        answer = bucket.tried(attempt, label)
    except RefusedError as refused:
        # Some stores answer an unmet If-Match with 404, because there is no object to match.
        unmet = refused.status == 412 or (refused.status == 404 and refused.code != "NoSuchBucket")
        if condition and unmet:
            raise
        raise bucket.explain(refused, label) from None
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
    """Send `view` as part `number` (from 1) of the upload with the id `upload`, and verify its MD5.

    `stop` ends the retries. Raises SpoiltError if the upload no longer exists.
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
        raise bucket.explain(refused, label) from None


def _check_md5(answer: Mapping[str, Any], expected: str) -> None:
    md5 = plain_md5(answer)
    if md5 != expected and not is_opaque(answer):
        raise RetryableError(f"the store has MD5 {md5}, but {expected} was sent")


def complete(
    bucket: S3Bucket, key: str, upload: str, sent: Sequence[Sent], size: int, sha256: str | None
) -> ObjectInfo:
    """Complete the upload with the id `upload` and return its object.

    `sent` are its parts in order, `size` is their total size in bytes, and `sha256` (hex) is the digest in the
    metadata. Raises SpoiltError if the object differs from the sent bytes.
    """
    label = bucket.label(key)
    parts = [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in sent]
    request = {"Key": bucket.key_of(key), "UploadId": upload, "MultipartUpload": {"Parts": parts}}
    completed_etag = lost_code = ""
    try:
        completed_etag = etag_of(
            bucket.tried(partial(bucket.attempt, "complete_multipart_upload", label, request), label)
        )
    except RefusedError as refused:
        if refused.code not in _LOST:
            raise bucket.explain(refused, label) from None
        lost_code = refused.code
    # Check the object, because the response can be lost after the completion and the object can differ from the parts.
    head_answer = bucket.head(key)
    expected_etag = composite([part.md5 for part in sent])
    if lost_code:
        if head_answer is not None and _is_proven(head_answer, size=size, expected=expected_etag, sha256=sha256):
            return bucket.info(key, head_answer)
        raise SpoiltError(f"the store has lost the upload or parts of it ({lost_code})")
    complaint = _complaint(head_answer, size=size, expected=expected_etag, sha256=sha256)
    if not complaint and head_answer is not None:
        return bucket.info(key, head_answer)
    # Only this completion's object is removed, because another writer may have written the same key since.
    if head_answer is not None and etag_of(head_answer) == completed_etag:
        bucket.remove_quietly(key)
    raise SpoiltError(f"the finished object is wrong: {complaint}")


def _is_proven(found: Mapping[str, Any], *, size: int, expected: str | None, sha256: str | None) -> bool:
    """Return whether an unconfirmed completion succeeded, that is, the object is the sent one and not an older one."""
    stored_sha256 = found.get("Metadata", {}).get(DIGEST)
    is_same = etag_of(found) == expected if sha256 is None else stored_sha256 == sha256
    return is_same and not _complaint(found, size=size, expected=expected, sha256=sha256)


def _complaint(found: Mapping[str, Any] | None, *, size: int, expected: str | None, sha256: str | None) -> str:
    if found is None:
        return "the object does not exist"
    if found["ContentLength"] != size:
        return f"it has {found['ContentLength']} bytes, but {size} were sent"
    etag = etag_of(found)
    if expected is not None and COMPOSITE.fullmatch(etag) and not is_opaque(found) and etag != expected:
        return f"its ETag is {etag}, but the sent bytes give {expected}"
    stored_sha256 = found.get("Metadata", {}).get(DIGEST)
    if sha256 is not None and stored_sha256 != sha256:
        return f"its recorded sha256 is {stored_sha256}, not {sha256}"
    return ""


def send_file(
    bucket: S3Bucket, path: Path, key: str, *, sha256: str, part_bytes: int, workers: int, progress: Progress | None
) -> ObjectInfo:
    """Send the file `path` in parts of `part_bytes` on `workers` threads, complete the upload and verify it.

    Raises IntegrityError if the file does not have `sha256`, and TransferError. Any error aborts the upload. A sweep
    removes the uploads of killed processes.
    """
    parts = plan_parts(path.stat().st_size, part_bytes=part_bytes)
    complaint = ""
    for _ in range(2):
        reversible_progress = ReversibleProgress(progress)
        try:
            return _send_file_once(bucket, path, key, parts, sha256=sha256, workers=workers, given=reversible_progress)
        except SpoiltError as error:
            complaint = str(error)
            reversible_progress.take_back()
    raise TransferError(
        f"{bucket.label(key)}: {complaint}, twice in a row. The partial upload was discarded. Try again later"
    )


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
        # Abort on KeyboardInterrupt as well, because the parts would otherwise remain, and be billed, until a sweep.
        bucket.abort_quietly(bucket.key_of(key), upload)
        raise


def _base64(digest: Any) -> str:
    return base64.b64encode(digest.digest()).decode()


class Composer:
    """Server-side copies and concatenations of a bucket's objects."""

    def __init__(self, bucket: S3Bucket, *, workers: int, copy_bytes: int) -> None:
        self._bucket = bucket
        self._workers = workers
        self._copy_bytes = copy_bytes

    def compose(self, keys: Sequence[str], key: str, sha256: str | None) -> ObjectInfo:
        """Concatenate the objects `keys` into `key` and record `sha256`, if known; see `Store.compose`.

        Raises IntegrityError if all bytes pass through the client and their SHA-256 is different.
        """
        objects = map_all(self._bucket.require_object, keys, self._workers)
        # Empty sources add nothing. If all sources are empty, the first one is copied.
        sources = [source for source in objects if source.bytes] or objects[:1]
        # A copy keeps the source's metadata, so it is possible only if the source has the digest to record.
        if len(sources) == 1 and (sha256 is None or sha256 == sources[0].sha256):
            return self.copy(sources[0].key, key)
        parts = plan_concatenation([source.bytes for source in sources])
        if len(parts) <= 1:
            data = b"".join(self._piece(sources, piece) for pieces in parts for piece in pieces)
            digest = hashlib.sha256(data).hexdigest()
            if sha256 not in (None, digest):
                raise IntegrityError(
                    f"{self._bucket.label(key)}: the joined object has sha256 {digest}, not {sha256}. Run again"
                )
            return put_whole(self._bucket, key, memoryview(data), {DIGEST: digest}, {})
        return self._assemble(sources, parts, key, {} if sha256 is None else {DIGEST: sha256})

    def copy(self, source: str, key: str) -> ObjectInfo:
        """Copy an object and its metadata; see `Store.copy`."""
        answer = self._bucket.require(source)
        source_info = self._bucket.info(source, answer)
        if source_info.bytes <= self._copy_bytes:
            return self._copy_whole(source_info, key)
        ranges = plan_parts(source_info.bytes, part_bytes=self._copy_bytes)
        parts = [(Piece(0, part.start, part.stop),) for part in ranges]
        # CopyObject copies the metadata itself, while an upload in parts must receive it.
        return self._assemble([source_info], parts, key, dict(answer.get("Metadata", {})))

    def _assemble(
        self,
        sources: Sequence[ObjectInfo],
        parts: Sequence[tuple[Piece, ...]],
        key: str,
        metadata: Mapping[str, str],
    ) -> ObjectInfo:
        """Create an object from pieces of others; try at most twice."""
        lengths = [sum(piece.bytes for piece in pieces) for pieces in parts]
        # The source's part size is dropped, because the result may have different parts.
        metadata = {name: value for name, value in metadata.items() if name != PART_BYTES} | _cut_metadata(lengths)
        complaint = ""
        for _ in range(2):
            upload = self._bucket.create_upload(key, metadata)
            stop = threading.Event()
            work = partial(self._assemble_part, sources, key, upload, stop)
            try:
                sent_parts = map_all(work, [*enumerate(parts, 1)], self._workers, stop)
                return complete(self._bucket, key, upload, sent_parts, sum(lengths), metadata.get(DIGEST))
            except SpoiltError as error:
                complaint = str(error)
                self._bucket.abort_quietly(self._bucket.key_of(key), upload)
            except BaseException:
                # No later run resumes a composition, so its parts would remain, and be billed, until a sweep.
                self._bucket.abort_quietly(self._bucket.key_of(key), upload)
                raise
        raise TransferError(
            f"{self._bucket.label(key)}: {complaint}, twice in a row. The partial upload was discarded. Try again later"
        )

    def _assemble_part(
        self,
        sources: Sequence[ObjectInfo],
        key: str,
        upload: str,
        stop: threading.Event,
        numbered: tuple[int, tuple[Piece, ...]],
    ) -> Sent:
        number, pieces = numbered
        if len(pieces) == 1 and _is_copyable(sources[pieces[0].source], pieces[0]):
            return self._copy_part(sources[pieces[0].source], pieces[0], key, upload, number, stop)
        data = b"".join(self._piece(sources, piece) for piece in pieces)
        return send_part(self._bucket, key, upload, number, memoryview(data), stop=stop)

    def _piece(self, sources: Sequence[ObjectInfo], piece: Piece) -> bytes:
        """Read the bytes of a piece for the client to send.

        The bytes are verified here, because sending computes a new digest.
        """
        source = sources[piece.source]

        def read() -> bytes:
            stream = Stream(
                bucket=self._bucket,
                key=source.key,
                position=piece.start,
                stop=piece.stop,
                version=source.version,
            )
            return b"".join(stream.blocks())

        def attempt() -> bytes:
            data = read()
            if source.md5 is not None and piece.bytes == source.bytes:
                good = hashlib.md5(data, usedforsecurity=False).hexdigest() == source.md5
            else:
                # A range has no digest, so two reads must agree.
                good = data == read()
            if not good:
                raise RetryableError(f"bytes {piece.start}-{piece.stop - 1} arrived damaged")
            return data

        return self._bucket.tried(attempt, self._bucket.label(source.key))

    def _copy_part(
        self, source: ObjectInfo, piece: Piece, key: str, upload: str, number: int, stop: threading.Event
    ) -> Sent:
        label = f"{self._bucket.label(key)}, part {number} from {self._bucket.label(source.key)}"
        is_whole = piece.bytes == source.bytes
        request: dict[str, Any] = {
            "Key": self._bucket.key_of(key),
            "UploadId": upload,
            "PartNumber": number,
            **self._copy_source(source),
        }
        if not is_whole:
            request["CopySourceRange"] = f"bytes={piece.start}-{piece.stop - 1}"

        def attempt() -> Sent:
            answer = self._bucket.attempt("upload_part_copy", label, request)
            etag = etag_of(answer.get("CopyPartResult", {}))
            if not etag:
                raise RetryableError("the answer has no part")
            md5 = etag if MD5.fullmatch(etag) and not is_opaque(answer) else None
            if is_whole and md5 and source.md5 and md5 != source.md5:
                raise RetryableError(f"the copied part has MD5 {md5}, but its source has {source.md5}")
            return Sent(number=number, etag=etag, md5=md5)

        try:
            return self._bucket.tried(attempt, label, stop.is_set)
        except RefusedError as refused:
            if refused.code == "NoSuchUpload":
                raise SpoiltError("the store dropped the upload while it was in progress") from None
            raise self._source_changed(refused, source, label) from None

    def _copy_whole(self, source: ObjectInfo, key: str) -> ObjectInfo:
        label = f"copy of {self._bucket.label(source.key)} to {key}"
        request = {"Key": self._bucket.key_of(key), **self._copy_source(source)}
        copy_info: ObjectInfo | None = None
        for _ in range(2):
            try:
                self._bucket.tried(partial(self._bucket.attempt, "copy_object", label, request), label)
            except RefusedError as refused:
                raise self._source_changed(refused, source, label) from None
            answer = self._bucket.head(key)
            copy_info = None if answer is None else self._bucket.info(key, answer)
            if (
                copy_info is not None
                and (copy_info.bytes, copy_info.sha256) == (source.bytes, source.sha256)
                and (copy_info.md5 == source.md5 or None in (copy_info.md5, source.md5))
            ):
                return copy_info
        raise TransferError(
            f"{label}: the copy is {copy_info}, but the source is {source}. Remove the copy, then run again"
        )

    def _copy_source(self, source: ObjectInfo) -> dict[str, Any]:
        return {
            "CopySource": {"Bucket": self._bucket.name, "Key": self._bucket.key_of(source.key)},
            "CopySourceIfMatch": f'"{source.version}"',
        }

    def _source_changed(self, refused: RefusedError, source: ObjectInfo, label: str) -> DataprepError:
        if refused.status == 412 or refused.code == "NoSuchKey":
            return ConflictError(
                f"{label}: {self._bucket.label(source.key)} was replaced or removed during the copy. Run again"
            )
        return self._bucket.explain(refused, label)


def _cut_metadata(lengths: Sequence[int]) -> dict[str, str]:
    """Return metadata with the part size, if all parts except the last are equal and the last is not longer."""
    equal = all(length == lengths[0] for length in lengths[:-1]) and lengths[-1] <= lengths[0]
    return {PART_BYTES: str(lengths[0])} if equal else {}


def _is_copyable(source: ObjectInfo, piece: Piece) -> bool:
    # AWS copies ranges only from sources larger than 5 MiB.
    return piece.bytes == source.bytes or source.bytes > MIN_PART_BYTES
