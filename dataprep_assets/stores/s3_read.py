"""Reads from an S3 bucket: ranges of one version, streams that resume where they broke, and what an ETag proves.

Every request carries `If-Match`, so bytes of two versions never mix.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.errors import IntegrityError
from dataprep_assets.stores.retry import RetryableError
from dataprep_assets.stores.s3_api import RefusedError
from dataprep_assets.stores.s3_bucket import S3Bucket
from dataprep_assets.stores.s3_etag import COMPOSITE, PART_BYTES, composite, etag_of, is_opaque
from dataprep_assets.stores.store import ConflictError, ObjectInfo

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
    # Checked here, too, for a store that ignores If-Match.
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


def etag_complaint(bucket: S3Bucket, info: ObjectInfo, path: Path) -> str:
    """What the object's ETag has against the bytes of `path`; "" if nothing, or if it does not prove anything.

    A plain ETag is the MD5. That of a multipart object is the MD5 of its parts' MD5s, and is compared where our own
    metadata record their size: for other objects, the length and `If-Match` on every range remain as proof.
    """
    if info.md5 is not None:
        actual = _md5_parts(path, max(info.bytes, 1))[0].hex()
    elif (step := _part_bytes(bucket, info)) is not None:
        actual = composite([digest.hex() for digest in _md5_parts(path, step)]) or ""
    else:
        return ""
    return "" if actual == info.version else f"its ETag is {info.version}, that of the bytes {actual}"


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
