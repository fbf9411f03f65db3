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

from dataprep_assets.errors import DataprepError, IntegrityError, TransferError, count_of
from dataprep_assets.stores.amazon.api import RefusedError
from dataprep_assets.stores.amazon.bucket import (
    COMPOSITE,
    DIGEST,
    MD5,
    PART_BYTES,
    S3Bucket,
    Stream,
    compute_composite_etag,
    find_md5,
    is_opaque,
    read_etag,
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

# A store that refuses a completion with one of these codes has lost the upload, or parts that it had accepted.
_LOST = {"NoSuchUpload", "InvalidPart", "InvalidPartOrder", "EntityTooSmall", "InvalidRequest"}


class SpoiledUploadError(Exception):
    """An upload that cannot succeed, because its parts are missing or wrong. A new upload may succeed."""


@dataclass(frozen=True, kw_only=True)
class SentPart:
    """A part that the store has received. `md5` is None if its ETag is not an MD5."""

    number: int
    etag: str
    md5: str | None


def put_whole(
    bucket: S3Bucket,
    key: str,
    view: memoryview,
    metadata: Mapping[str, str],
    condition: Mapping[str, str],
    content_type: str | None = None,
) -> ObjectInfo:
    """Write `view` as the object `key` with PutObject, and verify its MD5.

    `metadata` is stored with the object. `condition` contains parameters such as IfMatch. If it is not met, the
    RefusedError is passed on to the caller. Without `content_type`, the store chooses a type.

    Raises TransferError if the store repeatedly confirms the write but does not have the object.
    """
    name, label = bucket.build_key(key), bucket.label(key)
    digest = hashlib.md5(view, usedforsecurity=False)

    def attempt() -> Mapping[str, Any]:
        request = {
            "Key": name,
            "Body": PartBody(view),
            "ContentMD5": _encode_base64(digest),
            "Metadata": dict(metadata),
            **condition,
            **({} if content_type is None else {"ContentType": content_type}),
        }
        response = bucket.attempt("put_object", label, request)
        _check_md5(response, digest.hexdigest())
        # Verify the write with HEAD, because a store may confirm it without keeping the object.
        head_response = bucket.head(key)
        # Compare ETags only after an unconditional write, because after a conditional write another writer may already
        # have replaced the object.
        if head_response is None or (read_etag(head_response) != read_etag(response) and not condition):
            raise RetryableError("the store confirmed the write, but the object is missing")
        return response

    try:
        response = bucket.run_with_retries(attempt, label)
    except RefusedError as error:
        # Also treat 404 as an unmet condition, because some stores answer an unmet If-Match with 404 if there is no
        # object to match.
        unmet = error.status == 412 or (error.status == 404 and error.code != "NoSuchBucket")
        if condition and unmet:
            raise
        raise bucket.explain(error, label) from None
    return ObjectInfo(
        key=key, bytes=len(view), version=read_etag(response), sha256=metadata.get(DIGEST), md5=find_md5(response)
    )


def send_part(
    bucket: S3Bucket,
    key: str,
    upload: str,
    number: int,
    view: memoryview,
    *,
    stop: threading.Event,
) -> SentPart:
    """Send `view` as part `number` (from 1) of the upload with the id `upload`, and verify its MD5.

    `stop` ends the retries. Raises SpoiledUploadError if the upload no longer exists.
    """
    digest = hashlib.md5(view, usedforsecurity=False)
    label = f"{bucket.label(key)}, part {number}"

    def attempt() -> SentPart:
        request = {
            "Key": bucket.build_key(key),
            "UploadId": upload,
            "PartNumber": number,
            "Body": PartBody(view),
            "ContentMD5": _encode_base64(digest),
        }
        response = bucket.attempt("upload_part", label, request)
        _check_md5(response, digest.hexdigest())
        return SentPart(number=number, etag=read_etag(response), md5=find_md5(response))

    try:
        return bucket.run_with_retries(attempt, label, stop.is_set)
    except RefusedError as error:
        if error.code == "NoSuchUpload":
            raise SpoiledUploadError("the store dropped the upload while it was in progress") from None
        raise bucket.explain(error, label) from None


def _check_md5(response: Mapping[str, Any], expected_md5: str) -> None:
    md5 = find_md5(response)
    if md5 != expected_md5 and not is_opaque(response):
        raise RetryableError(f"the store has MD5 {md5}, but {expected_md5} was sent")


def complete_upload(
    bucket: S3Bucket, key: str, upload: str, sent_parts: Sequence[SentPart], size: int, sha256: str | None
) -> ObjectInfo:
    """Complete the upload with the id `upload` and return its object.

    `sent_parts` are its parts in order, `size` is their total size in bytes, and `sha256` (hex) is the digest in the
    metadata. Raises SpoiledUploadError if the object differs from the sent bytes.
    """
    label = bucket.label(key)
    parts = [{"PartNumber": part.number, "ETag": f'"{part.etag}"'} for part in sent_parts]
    request = {"Key": bucket.build_key(key), "UploadId": upload, "MultipartUpload": {"Parts": parts}}
    completed_etag = lost_code = ""
    try:
        completed_etag = read_etag(
            bucket.run_with_retries(partial(bucket.attempt, "complete_multipart_upload", label, request), label)
        )
    except RefusedError as error:
        if error.code not in _LOST:
            raise bucket.explain(error, label) from None
        lost_code = error.code
    # Check the object, because the response may have been lost after the completion, and the object may differ from
    # the parts.
    head_response = bucket.head(key)
    expected_etag = compute_composite_etag([part.md5 for part in sent_parts])
    if lost_code:
        if head_response is not None and _has_succeeded(
            head_response, size=size, expected_digest=expected_etag, sha256=sha256
        ):
            return bucket.info(key, head_response)
        raise SpoiledUploadError(f"the store has lost the upload or parts of it ({lost_code})")
    defect = _find_difference(head_response, size=size, expected_digest=expected_etag, sha256=sha256)
    if not defect and head_response is not None:
        return bucket.info(key, head_response)
    # Remove only this completion's object, because another writer may have written the same key since then.
    if head_response is not None and read_etag(head_response) == completed_etag:
        bucket.remove_quietly(key)
    raise SpoiledUploadError(f"the finished object is wrong: {defect}")


def _has_succeeded(response: Mapping[str, Any], *, size: int, expected_digest: str | None, sha256: str | None) -> bool:
    """Return whether an unconfirmed completion succeeded: whether the object is the sent one, not an older one."""
    stored_sha256 = response.get("Metadata", {}).get(DIGEST)
    is_same = read_etag(response) == expected_digest if sha256 is None else stored_sha256 == sha256
    return is_same and not _find_difference(response, size=size, expected_digest=expected_digest, sha256=sha256)


def _describe(info: ObjectInfo) -> str:
    return f"{count_of(info.bytes, 'byte')}, MD5 {info.md5} and sha256 {info.sha256}"


def _find_difference(
    response: Mapping[str, Any] | None, *, size: int, expected_digest: str | None, sha256: str | None
) -> str:
    if response is None:
        return "the object does not exist"
    if response["ContentLength"] != size:
        return f"it has {response['ContentLength']} bytes, but {size} were sent"
    etag = read_etag(response)
    if (
        expected_digest is not None
        and COMPOSITE.fullmatch(etag)
        and not is_opaque(response)
        and etag != expected_digest
    ):
        return f"its ETag is {etag}, but the sent bytes give {expected_digest}"
    stored_sha256 = response.get("Metadata", {}).get(DIGEST)
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
    defect = ""
    for _ in range(2):
        reversible_progress = ReversibleProgress(progress)
        try:
            return _send_file_once(
                bucket, path, key, parts, sha256=sha256, workers=workers, progress=reversible_progress
            )
        except SpoiledUploadError as error:
            defect = str(error)
            reversible_progress.revert_progress()
    raise TransferError(
        f"{bucket.label(key)}: {defect}, twice in a row. The partial upload was discarded. Try again later"
    )


def _send_file_once(
    bucket: S3Bucket,
    path: Path,
    key: str,
    parts: Sequence[UploadPart],
    *,
    sha256: str,
    workers: int,
    progress: ReversibleProgress,
) -> ObjectInfo:
    upload = bucket.create_upload(key, {DIGEST: sha256})
    stop = threading.Event()

    def send(part: UploadPart, view: memoryview) -> SentPart:
        sent_part = send_part(bucket, key, upload, part.number, view, stop=stop)
        progress(part.bytes)
        return sent_part

    try:
        sent_parts = send_parts(path, parts, send, sha256=sha256, lanes=workers, label=bucket.label(key), stop=stop)
        return complete_upload(bucket, key, upload, sent_parts, parts[-1].stop, sha256)
    except BaseException:
        # Abort even on KeyboardInterrupt, because the parts would otherwise remain, and be billed, until a sweep.
        bucket.abort_quietly(bucket.build_key(key), upload)
        raise


def _encode_base64(digest: Any) -> str:
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
        # Leave out empty sources, because they add nothing. If all sources are empty, keep the first one.
        sources = [source for source in objects if source.bytes] or objects[:1]
        # Copy a single source only if no other digest must be recorded, because a copy keeps the source's metadata.
        if len(sources) == 1 and (sha256 is None or sha256 == sources[0].sha256):
            return self.copy(sources[0].key, key)
        parts = plan_concatenation([source.bytes for source in sources])
        if len(parts) <= 1:
            data = b"".join(self._read_piece(sources, piece) for pieces in parts for piece in pieces)
            digest = hashlib.sha256(data).hexdigest()
            if sha256 not in (None, digest):
                raise IntegrityError(
                    f"{self._bucket.label(key)}: the joined object has sha256 {digest}, not {sha256}. Run the command "
                    "again"
                )
            return put_whole(self._bucket, key, memoryview(data), {DIGEST: digest}, {})
        return self._assemble(sources, parts, key, {} if sha256 is None else {DIGEST: sha256})

    def copy(self, source: str, key: str) -> ObjectInfo:
        """Copy an object and its metadata; see `Store.copy`."""
        response = self._bucket.require(source)
        source_info = self._bucket.info(source, response)
        if source_info.bytes <= self._copy_bytes:
            return self._copy_whole(source_info, key)
        ranges = plan_parts(source_info.bytes, part_bytes=self._copy_bytes)
        parts = [(Piece(0, part.start, part.stop),) for part in ranges]
        # Pass the metadata, because an upload in parts does not copy metadata, unlike CopyObject.
        return self._assemble([source_info], parts, key, dict(response.get("Metadata", {})))

    def _assemble(
        self,
        sources: Sequence[ObjectInfo],
        parts: Sequence[tuple[Piece, ...]],
        key: str,
        metadata: Mapping[str, str],
    ) -> ObjectInfo:
        """Create an object from pieces of other objects, in at most two attempts."""
        lengths = [sum(piece.bytes for piece in pieces) for pieces in parts]
        # Drop the source's part size, because the result may have different parts.
        metadata = {name: value for name, value in metadata.items() if name != PART_BYTES} | _build_part_metadata(
            lengths
        )
        defect = ""
        for _ in range(2):
            upload = self._bucket.create_upload(key, metadata)
            stop = threading.Event()
            work = partial(self._assemble_part, sources, key, upload, stop)
            try:
                sent_parts = map_all(work, [*enumerate(parts, 1)], self._workers, stop)
                return complete_upload(self._bucket, key, upload, sent_parts, sum(lengths), metadata.get(DIGEST))
            except SpoiledUploadError as error:
                defect = str(error)
                self._bucket.abort_quietly(self._bucket.build_key(key), upload)
            except BaseException:
                # Abort, because no later run resumes a composition, and its parts would remain, and be billed, until a
                # sweep.
                self._bucket.abort_quietly(self._bucket.build_key(key), upload)
                raise
        raise TransferError(
            f"{self._bucket.label(key)}: {defect}, twice in a row. The partial upload was discarded. Try again later"
        )

    def _assemble_part(
        self,
        sources: Sequence[ObjectInfo],
        key: str,
        upload: str,
        stop: threading.Event,
        numbered: tuple[int, tuple[Piece, ...]],
    ) -> SentPart:
        number, pieces = numbered
        if len(pieces) == 1 and _is_copyable(sources[pieces[0].source], pieces[0]):
            return self._copy_part(sources[pieces[0].source], pieces[0], key, upload, number, stop)
        data = b"".join(self._read_piece(sources, piece) for piece in pieces)
        return send_part(self._bucket, key, upload, number, memoryview(data), stop=stop)

    def _read_piece(self, sources: Sequence[ObjectInfo], piece: Piece) -> bytes:
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
                # Read the bytes twice, because the store has no MD5 of them to compare with.
                good = data == read()
            if not good:
                raise RetryableError(f"bytes {piece.start}-{piece.stop - 1} arrived damaged")
            return data

        return self._bucket.run_with_retries(attempt, self._bucket.label(source.key))

    def _copy_part(
        self, source: ObjectInfo, piece: Piece, key: str, upload: str, number: int, stop: threading.Event
    ) -> SentPart:
        label = f"{self._bucket.label(key)}, part {number} from {self._bucket.label(source.key)}"
        is_whole = piece.bytes == source.bytes
        request: dict[str, Any] = {
            "Key": self._bucket.build_key(key),
            "UploadId": upload,
            "PartNumber": number,
            **self._copy_source(source),
        }
        if not is_whole:
            request["CopySourceRange"] = f"bytes={piece.start}-{piece.stop - 1}"

        def attempt() -> SentPart:
            response = self._bucket.attempt("upload_part_copy", label, request)
            etag = read_etag(response.get("CopyPartResult", {}))
            if not etag:
                raise RetryableError("the response has no part")
            md5 = etag if MD5.fullmatch(etag) and not is_opaque(response) else None
            if is_whole and md5 and source.md5 and md5 != source.md5:
                raise RetryableError(f"the copied part has MD5 {md5}, but its source has {source.md5}")
            return SentPart(number=number, etag=etag, md5=md5)

        try:
            return self._bucket.run_with_retries(attempt, label, stop.is_set)
        except RefusedError as error:
            if error.code == "NoSuchUpload":
                raise SpoiledUploadError("the store dropped the upload while it was in progress") from None
            raise self._source_changed(error, source, label) from None

    def _copy_whole(self, source: ObjectInfo, key: str) -> ObjectInfo:
        label = f"copy of {self._bucket.label(source.key)} to {key}"
        request = {"Key": self._bucket.build_key(key), **self._copy_source(source)}
        copy_info: ObjectInfo | None = None
        for _ in range(2):
            try:
                self._bucket.run_with_retries(partial(self._bucket.attempt, "copy_object", label, request), label)
            except RefusedError as error:
                raise self._source_changed(error, source, label) from None
            response = self._bucket.head(key)
            copy_info = None if response is None else self._bucket.info(key, response)
            if (
                copy_info is not None
                and (copy_info.bytes, copy_info.sha256) == (source.bytes, source.sha256)
                and (copy_info.md5 == source.md5 or None in (copy_info.md5, source.md5))
            ):
                return copy_info
        difference = (
            "the copy is missing"
            if copy_info is None
            else f"the copy has {_describe(copy_info)}, but the source has {_describe(source)}"
        )
        raise TransferError(f"{label}: {difference}. Remove the copy, then run the command again")

    def _copy_source(self, source: ObjectInfo) -> dict[str, Any]:
        return {
            "CopySource": {"Bucket": self._bucket.name, "Key": self._bucket.build_key(source.key)},
            "CopySourceIfMatch": f'"{source.version}"',
        }

    def _source_changed(self, error: RefusedError, source: ObjectInfo, label: str) -> DataprepError:
        if error.status == 412 or error.code == "NoSuchKey":
            return ConflictError(
                f"{label}: {self._bucket.label(source.key)} was replaced or removed during the copy. Run the command "
                "again"
            )
        return self._bucket.explain(error, label)


def _build_part_metadata(lengths: Sequence[int]) -> dict[str, str]:
    """Return metadata with the part size if all parts but the last are equal and the last is not longer; else {}."""
    equal = all(length == lengths[0] for length in lengths[:-1]) and lengths[-1] <= lengths[0]
    return {PART_BYTES: str(lengths[0])} if equal else {}


def _is_copyable(source: ObjectInfo, piece: Piece) -> bool:
    # AWS copies ranges only from sources larger than 5 MiB.
    return piece.bytes == source.bytes or source.bytes > MIN_PART_BYTES
