"""Reads from a GCS bucket: ranges of one generation, and streams that resume where they broke.

Every request after the first names the generation, so bytes of two versions never mix.
"""

from collections.abc import Iterator
from typing import Any

from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError
from dataprep_assets.stores.gcs_api import NoObjectError, Range, RangeBeyondEndError, network
from dataprep_assets.stores.gcs_bucket import GcsBucket
from dataprep_assets.stores.retry import RetryableError
from dataprep_assets.stores.store import ConflictError, ObjectInfo, no_object

__all__ = ["Stream", "generation_of", "read_range"]


def read_range(bucket: GcsBucket, info: ObjectInfo, start: int, stop: int) -> Iterator[bytes]:
    """The bytes [start, stop) of the version that `info` names in this bucket, in one request, in blocks.

    Raises RetryableError for temporary failures, ConflictError if that version is gone.
    """
    try:
        with bucket.api.media(bucket.name_of(info.key), start, stop, int(info.version)) as answer:
            yield from answer.blocks
    except (NoObjectError, RangeBeyondEndError):
        raise _version_gone(bucket.label(info.key), info.version) from None


class Stream:
    """A range read in blocks; after a failure it resumes at the byte that was reached.

    Without `stop` it ends with the object; without `generation` its first answer decides which version is read.
    """

    def __init__(self, bucket: GcsBucket, key: str, start: int, stop: int | None, generation: int | None) -> None:
        self._bucket, self._name, self._label = bucket, bucket.name_of(key), bucket.label(key)
        self._position, self._stop, self._generation = start, stop, generation
        self._answer: Any = None
        self._blocks: Iterator[bytes] = iter(())

    def blocks(self) -> Iterator[bytes]:
        """The bytes; see `Store.read`."""
        try:
            if self._position == self._stop:
                self._check_empty()
            while self._stop is None or self._position < self._stop:
                label = f"{self._label}, byte {self._position}"
                block = self._bucket.tried(self._next, label)
                if not block:
                    return
                self._position += len(block)
                yield block
        finally:
            self._close()

    def _next(self) -> bytes:
        """The next block; empty where the object ends and `stop` was not given."""
        try:
            if self._answer is None and not self._open():
                return b""
            block = self._pull()
            if not block:
                raise RetryableError(f"short body, ended at byte {self._position}")
            if self._position + len(block) > (self._stop or 0):
                raise RetryableError("the body is longer than the range")
            return block
        except BaseException:
            self._close()
            raise

    def _pull(self) -> bytes:
        with network():
            return next(self._blocks, b"")

    def _open(self) -> bool:
        """Ask for the rest of the range; False when the object ends where it begins."""
        answer = self._bucket.api.media(self._name, self._position, self._stop, self._generation)
        try:
            opened: Range = answer.__enter__()
        except (NoObjectError, ConflictError):
            raise self._gone() from None
        except RangeBeyondEndError:
            self._check_empty()
            return False
        self._answer, self._blocks = answer, opened.blocks
        self._generation = opened.generation
        self._set_stop(opened.total)
        return True

    def _check_empty(self) -> None:
        """Check an empty range against the object itself, because a request for no bytes would not describe it."""
        found = self._bucket.get(self._name)
        if found is None:
            raise self._gone()
        if self._generation is not None and found.generation != self._generation:
            raise ConflictError(f"{self._label}: expected version {self._generation}, found {found.generation}")
        if self._position > found.bytes:
            raise self._too_short(found.bytes, self._stop or self._position)
        self._set_stop(found.bytes)

    def _set_stop(self, total: int) -> None:
        if self._stop is None:
            self._stop = total
        elif self._stop > total:
            raise self._too_short(total, self._stop)

    def _too_short(self, total: int, wanted: int) -> IntegrityError:
        return IntegrityError(f"{self._label}: the object has {total} bytes, bytes up to {wanted} were requested")

    def _gone(self) -> DataprepError:
        if self._generation is not None and self._bucket.get(self._name) is not None:
            return _version_gone(self._label, self._generation)
        return no_object(self._label)

    def _close(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.__exit__(None, None, None)


def _version_gone(label: str, version: object) -> ConflictError:
    return ConflictError(f"{label}: version {version} does not exist any more")


def generation_of(version: str) -> int:
    """The generation that an `ObjectInfo.version` of GCS stands for; raises ConfigError for anything else."""
    if not (version.isascii() and version.isdigit()):
        raise ConfigError(f"{version!r} is not a version of a GCS object; use the `version` of an ObjectInfo")
    return int(version)
