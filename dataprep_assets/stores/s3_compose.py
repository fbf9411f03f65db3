"""Copies and concatenations inside an S3 bucket, made by its server out of ranges (UploadPartCopy).

A part is copied from one source only and all parts but the last are equal (R2's rule), so the one part that crosses
each boundary between sources, and whatever fits into one part altogether, goes through the client: about 5 MiB per
boundary, more only beyond 48 GiB. The sources are pinned by their ETags; the result's size and ETag are compared with
those of its parts, and a part that is a whole source with the source's MD5. The digest of the whole is recorded where
the caller knows it; how it was cut is recorded too, so that its ETag can be checked when it is read.
"""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from dataprep_assets.errors import DataprepError, IntegrityError, TransferError
from dataprep_assets.stores.pool import map_all
from dataprep_assets.stores.retry import RetryableError
from dataprep_assets.stores.s3_api import RefusedError
from dataprep_assets.stores.s3_bucket import S3Bucket
from dataprep_assets.stores.s3_etag import DIGEST, MD5, PART_BYTES, etag_of, is_opaque
from dataprep_assets.stores.s3_read import Stream
from dataprep_assets.stores.s3_upload import Sent, SpoiltError, complete, put_whole, send_part
from dataprep_assets.stores.store import ConflictError, ObjectInfo
from dataprep_assets.stores.upload import MIN_PART_BYTES, Piece, plan_concatenation, plan_parts

T = TypeVar("T")
R = TypeVar("R")


class Composer:
    """Makes objects of a bucket from others in it."""

    def __init__(self, bucket: S3Bucket, *, workers: int, copy_bytes: int) -> None:
        self._bucket = bucket
        self._workers = workers
        self._copy_bytes = copy_bytes

    def compose(self, keys: Sequence[str], key: str, sha256: str | None) -> ObjectInfo:
        """Concatenate the objects `keys` into `key`, with `sha256` if it is known; see `Store.compose`.

        Raises IntegrityError if all bytes pass through the client and do not have this SHA-256.
        """
        found = map_all(self._bucket.existing, keys, self._workers)
        # Empty sources add nothing; if all are, one of them stands for the result.
        sources = [source for source in found if source.bytes] or found[:1]
        # A copy keeps the source's metadata: it will do only if the digest to record is the one recorded there.
        if len(sources) == 1 and (sha256 is None or sha256 == sources[0].sha256):
            return self.copy(sources[0].key, key)
        parts = plan_concatenation([source.bytes for source in sources])
        if len(parts) <= 1:
            data = b"".join(self._piece(sources, piece) for pieces in parts for piece in pieces)
            digest = hashlib.sha256(data).hexdigest()
            if sha256 not in (None, digest):
                raise IntegrityError(
                    f"{self._bucket.label(key)}: joined, it has sha256 {digest}, not {sha256}. Run again"
                )
            return put_whole(self._bucket, key, memoryview(data), {DIGEST: digest}, {})
        return self._assemble(sources, parts, key, {} if sha256 is None else {DIGEST: sha256})

    def copy(self, source: str, key: str) -> ObjectInfo:
        """Copy an object, its metadata too; see `Store.copy`."""
        answer = self._bucket.require(source)
        found = self._bucket.info(source, answer)
        if found.bytes <= self._copy_bytes:
            return self._copy_whole(found, key)
        cut = plan_parts(found.bytes, part_bytes=self._copy_bytes)
        parts = [(Piece(0, part.start, part.stop),) for part in cut]
        # CopyObject takes the metadata along by itself; an upload in parts has to be given them.
        return self._assemble([found], parts, key, dict(answer.get("Metadata", {})))

    def _assemble(
        self,
        sources: Sequence[ObjectInfo],
        parts: Sequence[tuple[Piece, ...]],
        key: str,
        metadata: Mapping[str, str],
    ) -> ObjectInfo:
        """Make a new object from pieces of others."""
        lengths = [sum(piece.bytes for piece in pieces) for pieces in parts]
        # The source may have been cut in another way than the result is.
        metadata = {name: value for name, value in metadata.items() if name != PART_BYTES} | _cut_metadata(lengths)
        complaint = ""
        for _ in range(2):
            upload = self._bucket.create_upload(key, metadata)
            stop = threading.Event()
            work = partial(self._assemble_part, sources, key, upload, stop)
            try:
                sent = map_all(work, [*enumerate(parts, 1)], self._workers, stop)
                return complete(self._bucket, key, upload, sent, sum(lengths), metadata.get(DIGEST))
            except SpoiltError as error:
                complaint = str(error)
                self._bucket.abort_quietly(self._bucket.key_of(key), upload)
            except BaseException:
                # Nobody takes up a composition again, as an upload is: its parts would stay, and cost, until a sweep.
                self._bucket.abort_quietly(self._bucket.key_of(key), upload)
                raise
        raise TransferError(
            f"{self._bucket.label(key)}: {complaint}, twice in a row. Nothing of it was kept; run again later"
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
        """The bytes of a piece, for the client to send.

        Sending computes a new digest, so the bytes are verified here.
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
                # There is no digest of a range, so two reads must agree.
                good = data == read()
            if not good:
                raise RetryableError(f"bytes {piece.start}-{piece.stop - 1} arrived damaged")
            return data

        return self._bucket.tried(attempt, self._bucket.label(source.key))

    def _copy_part(
        self, source: ObjectInfo, piece: Piece, key: str, upload: str, number: int, stop: threading.Event
    ) -> Sent:
        label = f"{self._bucket.label(key)}, part {number} from {self._bucket.label(source.key)}"
        whole = piece.bytes == source.bytes
        request: dict[str, Any] = {
            "Key": self._bucket.key_of(key),
            "UploadId": upload,
            "PartNumber": number,
            **self._copy_source(source),
        }
        if not whole:
            request["CopySourceRange"] = f"bytes={piece.start}-{piece.stop - 1}"

        def attempt() -> Sent:
            answer = self._bucket.attempt("upload_part_copy", label, request)
            etag = etag_of(answer.get("CopyPartResult", {}))
            if not etag:
                raise RetryableError("the answer names no part")
            md5 = etag if MD5.fullmatch(etag) and not is_opaque(answer) else None
            if whole and md5 and source.md5 and md5 != source.md5:
                raise RetryableError(f"the copied part has MD5 {md5}, its source {source.md5}")
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
        found: ObjectInfo | None = None
        for _ in range(2):
            try:
                self._bucket.tried(partial(self._bucket.attempt, "copy_object", label, request), label)
            except RefusedError as refused:
                raise self._source_changed(refused, source, label) from None
            answer = self._bucket.head(key)
            found = None if answer is None else self._bucket.info(key, answer)
            if (
                found is not None
                and (found.bytes, found.sha256) == (source.bytes, source.sha256)
                and (found.md5 == source.md5 or None in (found.md5, source.md5))
            ):
                return found
        raise TransferError(f"{label}: the copy is {found}, the source {source}. Remove the copy, then run again")

    def _copy_source(self, source: ObjectInfo) -> dict[str, Any]:
        return {
            "CopySource": {"Bucket": self._bucket.name, "Key": self._bucket.key_of(source.key)},
            "CopySourceIfMatch": f'"{source.version}"',
        }

    def _source_changed(self, refused: RefusedError, source: ObjectInfo, label: str) -> DataprepError:
        if refused.status == 412 or refused.code == "NoSuchKey":
            return ConflictError(
                f"{label}: {self._bucket.label(source.key)} was replaced or removed meanwhile. Run again"
            )
        return self._bucket.explained(refused, label)


def _cut_metadata(lengths: Sequence[int]) -> dict[str, str]:
    """Metadata that records the part size, if all parts but the last are equal and the last is not longer."""
    equal = all(length == lengths[0] for length in lengths[:-1]) and lengths[-1] <= lengths[0]
    return {PART_BYTES: str(lengths[0])} if equal else {}


def _is_copyable(source: ObjectInfo, piece: Piece) -> bool:
    # AWS copies a range only from a source of more than 5 MiB.
    return piece.bytes == source.bytes or source.bytes > MIN_PART_BYTES
