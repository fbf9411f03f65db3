"""Reads from an S3 bucket: ranges of one version, streams that resume where they broke, and what an ETag proves.

Every request carries `If-Match`, so bytes of two versions never mix.
"""

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dataprep_assets.errors import IntegrityError
from dataprep_assets.stores.retry import RetryableError
from dataprep_assets.stores.s3_api import RefusedError
from dataprep_assets.stores.s3_bucket import S3Bucket
from dataprep_assets.stores.s3_etag import COMPOSITE, PART_BYTES, etag_of, is_opaque
from dataprep_assets.stores.store import ConflictError, ObjectInfo

__all__ = ["Cut", "EtagCheck", "Stream", "cut_of", "read_range"]

logger = logging.getLogger(__name__)

_BLOCK = 1024 * 1024


class _PastEndError(Exception):
    """The range begins at the object's end, or beyond it."""


def read_range(bucket: S3Bucket, info: ObjectInfo, start: int, stop: int) -> Iterator[bytes]:
    """The bytes [start, stop) of the version that `info` names, in one request, in blocks.

    Raises RetryableError for temporary failures, ConflictError if the object has another version.
    """
    try:
        answer = _open(bucket, info.key, start, stop, info.version)
    except _PastEndError:
        raise ConflictError(f"{bucket.label(info.key)}: it is shorter than it was") from None
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
            raise ConflictError(f"{label}: it is not version {version} any more") from None
        if refused.status == 416:
            raise _PastEndError from None
        raise bucket.explained(refused, label) from None
    first, beyond, _ = _extent(answer)
    if version is not None and etag_of(answer) != version:
        answer["Body"].close()
        raise ConflictError(f"{label}: it is version {etag_of(answer)}, not {version}")
    if first != start or (stop is not None and beyond > stop):
        answer["Body"].close()
        raise RetryableError(f"bytes {start}-{stop} were asked for, {first}-{beyond} are in the answer")
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
    position: int
    stop: int | None
    version: str | None
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
                raise RetryableError(f"short body, ended at byte {self.position}")
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
            raise ConflictError(f"{self.bucket.label(self.key)}: it is version {found.version}, not {self.version}")
        self._check_end(found.bytes)

    def _check_end(self, total: int) -> None:
        wanted = max(self.position, self.stop or 0)
        if wanted > total:
            raise IntegrityError(
                f"{self.bucket.label(self.key)}: it has {total} bytes, bytes up to {wanted} were asked for"
            )

    def _close(self) -> None:
        close = getattr(self.source, "close", None)
        if close is not None:
            close()
        self.source = None


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a multipart object was cut: all parts but the last have `part_bytes`.

    `recorded`: our own metadata says so. Otherwise it is inferred from the first part, and others may differ from it.
    """

    part_bytes: int
    recorded: bool


def cut_of(bucket: S3Bucket, info: ObjectInfo) -> Cut | None:
    """How a multipart object was cut, if that can be known and all its parts can have the same length."""
    found = COMPOSITE.fullmatch(info.version)
    if found is None or not info.bytes:
        return None
    label = bucket.label(info.key)
    request = {"Key": bucket.key_of(info.key), "PartNumber": 1, "IfMatch": f'"{info.version}"'}
    try:
        answer = bucket.tried(partial(bucket.attempt, "head_object", label, request), label)
    except RefusedError:
        return None
    if is_opaque(answer):
        return None
    written = answer.get("Metadata", {}).get(PART_BYTES, "")
    recorded = int(written) if written.isascii() and written.isdigit() else 0
    # A store without `partNumber` returns the length of the whole; another length contradicts a copied record.
    told = int(answer.get("ContentLength") or 0)
    if told not in (recorded, info.bytes):
        recorded = 0
    for step in (recorded, told):
        if step and -(-info.bytes // step) == int(found[2]):
            return Cut(part_bytes=step, recorded=step == recorded)
    return None


@dataclass(kw_only=True)
class EtagCheck:
    """Compares a fetched file with what the object's ETag says of it.

    A plain ETag is the MD5. That of a multipart object is the MD5 of its parts' MD5s. If our own metadata records their
    size, a difference is damage. Otherwise all parts are assumed to have the first one's size: if the digest differs
    twice and the bytes were the same both times, the parts were uneven, and only length and `If-Match` on every range
    remain as proof.
    """

    bucket: S3Bucket
    info: ObjectInfo
    last: str | None = None

    def __call__(self, path: Path, sha256: str) -> str:
        """A complaint, or "" if there is none."""
        if self.info.md5 is not None:
            actual = _md5_parts(path, max(self.info.bytes, 1))[0].hex()
            return "" if actual == self.info.md5 else self._complaint(actual)
        cut = cut_of(self.bucket, self.info)
        if cut is None:
            return ""
        actual = hashlib.md5(b"".join(_md5_parts(path, cut.part_bytes)), usedforsecurity=False).hexdigest()
        if actual == self.info.version.partition("-")[0]:
            return ""
        same_again, self.last = self.last == sha256, sha256
        if same_again and not cut.recorded:
            logger.warning("%s: its ETag could not be verified; its parts are uneven", self.bucket.label(self.info.key))
            return ""
        return self._complaint(actual)

    def _complaint(self, actual: str) -> str:
        return f"its ETag is {self.info.version}, the bytes have MD5 {actual}"


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
