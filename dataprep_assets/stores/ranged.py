"""Download of one object in parallel ranges, to a file that appears only when it is complete, verified and synced.

The bytes are written to ``<target>.part``, which a kernel lock reserves for one process. An error or an interrupt
removes this file. A file left behind by a killed process is overwritten by the next download to the same target.

boto3's transfer manager, obstore and huggingface_hub are not used, because they verify only the length. s3fs left a
file of full length under the final name when the disk was full. `stores.amazon.s3` lists the measurements.

Entry points: :func:`download`, :func:`download_pinned`, :func:`digest_file`, :func:`get_partial_path`,
:func:`measure_partial_bytes` and :func:`discard_partial`.
"""

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from dataprep_assets.errors import ConfigError, CorruptSourceError, TransferError, count_of
from dataprep_assets.stores.files import fsync_directory
from dataprep_assets.stores.locks import is_same_file, lock_own_file, open_own_file, try_lock
from dataprep_assets.stores.pool import run_all
from dataprep_assets.stores.retry import RetryableError, RetryPolicy, StoppedError
from dataprep_assets.stores.store import (
    ConflictError,
    ObjectInfo,
    Progress,
    ReversibleProgress,
    build_missing_object_error,
)

# Size of a range in bytes. A failed range resumes at the byte that it reached, so smaller ranges would only cost more
# requests.
PART_BYTES = 32 * 1024 * 1024

_TRIES = 3
_RETRY = RetryPolicy()
_HASH_CHUNK = 4 * 1024 * 1024
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NOT_SUPPORTED = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.ENODEV}


def digest_file(path: Path, *, git: bool = False, stopped: Callable[[], bool] = lambda: False) -> str:
    """Return the hex digest of the file ``path``: its SHA-256, or with ``git`` its git blob id.

    A git blob id is the SHA-1 over ``blob <size>\\0`` and the bytes. Raises StoppedError once ``stopped()`` is true.
    """
    with path.open("rb") as stream:
        if git:
            size = os.fstat(stream.fileno()).st_size
            digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        else:
            digest = hashlib.sha256()
        while chunk := stream.read(_HASH_CHUNK):
            digest.update(chunk)
            if stopped():
                raise StoppedError(f"{path}: stopped while its digest was computed")
    return digest.hexdigest()


def get_partial_path(target: Path) -> Path:
    """Return the path of the file that a download to ``target`` writes."""
    return target.with_name(target.name + ".part")


def measure_partial_bytes(target: Path) -> int:
    """Return the disk space in bytes of ``target``'s partial file, which the next download to it reuses."""
    part = get_partial_path(target)
    # `st_blocks` counts units of 512 bytes on every file system. A preallocated file has all of its blocks, and a
    # sparse file only the written ones.
    return part.stat().st_blocks * 512 if part.is_file() else 0


def discard_partial(target: Path) -> None:
    """Remove the partial file of ``target``, unless a process is downloading to it."""
    part = get_partial_path(target)
    try:
        descriptor = open_own_file(part, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        if try_lock(descriptor, required=False) and is_same_file(descriptor, part):
            part.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def download_pinned(
    head: Callable[[], ObjectInfo | None],
    fetch: Callable[[ObjectInfo, Progress], str],
    *,
    label: str,
    progress: Progress | None,
) -> ObjectInfo:
    """Call `fetch` with the version that `head` finds, and return the object with the SHA-256 that `fetch` returns.

    If `fetch` raises ConflictError, its bytes are discarded and the new version is fetched. `label` names the object in
    messages. `progress` receives the number of downloaded bytes, which is negative for discarded bytes.

    Raises MissingArtifactError if the object does not exist, and TransferError if it was replaced during each of 3
    downloads.
    """
    for _ in range(_TRIES):
        info = head()
        if info is None:
            raise build_missing_object_error(label)
        reversible_progress = ReversibleProgress(progress)
        try:
            return replace(info, sha256=fetch(info, reversible_progress))
        except ConflictError:
            reversible_progress.revert_progress()
    raise TransferError(
        f"{label}: replaced during each of {_TRIES} downloads. Run the command again when its writer has finished"
    )


def download(
    read_range: Callable[[int, int], Iterator[bytes]],
    *,
    size: int,
    target: Path,
    sha256: str | None,
    git_sha1: str | None = None,
    verify: Callable[[Path, str], str] | None = None,
    label: str,
    part_bytes: int = PART_BYTES,
    workers: int = 4,
    retry: RetryPolicy = _RETRY,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> str:
    """Download ``size`` bytes to ``target`` in parallel ranges, and return their SHA-256.

    Args:
        read_range: Called with (start, end) on ``workers`` threads; yields the bytes of [start, end). Raises
            :class:`RetryableError` for failures that may be temporary. Any other error ends the transfer immediately.
        size: Size of the object in bytes.
        target: Path of the finished file.
        sha256: Expected SHA-256 (hex), if known.
        git_sha1: Expected git blob id, if known.
        verify: Additional check of the complete file before it is renamed. Called with its path and SHA-256; returns
            an error message, or "".
        label: Name of the object in messages.
        part_bytes: Length of a range in bytes.
        workers: Number of parallel ranges.
        retry: Retry policy of each range.
        progress: Receives the number of written bytes (negative for discarded ones), one call at a time. An exception
            it raises ends the transfer.
        stop: Ends the transfer early when it is set by another thread.

    Raises TransferError (attempts used up, disk full, stopped) and CorruptSourceError (wrong digest twice).
    Raises ConfigError for a negative size, or for parts or workers below 1.
    """
    if size < 0 or part_bytes < 1 or workers < 1:
        raise ConfigError(
            f"{label}: size ({size}) must be at least 0, and part_bytes ({part_bytes}) and workers ({workers}) at "
            "least 1"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    part = get_partial_path(target)
    stopped = stop.is_set if stop is not None else lambda: False
    with lock_own_file(part, label, stopped) as (descriptor, has_waited):
        try:
            if has_waited and (digest := _find_completed(target, size, sha256, git_sha1)) is not None:
                # Remove this `.part`, which is new: the other process has renamed its own to `target`, so locking
                # created another `.part`.
                part.unlink()
                return digest
            transfer = _Transfer(
                read_range=read_range,
                size=size,
                part=part,
                descriptor=descriptor,
                label=label,
                part_bytes=part_bytes,
                workers=workers,
                retry=retry,
                progress=progress,
                outer_stopped=stopped,
            )
            _allocate(descriptor, size, part, label)
            digest = transfer.fetch_verified_file(sha256, git_sha1, verify)
            os.fsync(descriptor)
            os.replace(part, target)
        except BaseException:
            # Remove the file even on KeyboardInterrupt, because no later download resumes from these bytes.
            part.unlink(missing_ok=True)
            raise
        # Sync the folder after the file and before returning, so that a crash cannot leave the name without its bytes.
        fsync_directory(target.parent)
        return digest


@dataclass(kw_only=True)
class _Transfer:
    """A download in progress: its ranges, and the digest of the written ranges up to the first gap."""

    read_range: Callable[[int, int], Iterator[bytes]]
    size: int
    part: Path
    descriptor: int
    label: str
    part_bytes: int
    workers: int
    retry: RetryPolicy
    progress: Progress | None
    outer_stopped: Callable[[], bool]
    over: threading.Event = field(default_factory=threading.Event)
    # `written` has the indices of the written ranges. `digest_lock` guards the digest of the first `digested` ranges.
    written: set[int] = field(default_factory=set)
    digested: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    digest_lock: threading.Lock = field(default_factory=threading.Lock)
    progress_lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch_verified_file(
        self, sha256: str | None, git_sha1: str | None, verify: Callable[[Path, str], str] | None
    ) -> str:
        """Download and verify the file, at most twice, and return its SHA-256."""
        defect = ""
        for _ in range(2):
            digest = self._fetch()
            defect = _describe_mismatch(self.part, digest, sha256, git_sha1)
            if not defect and verify is not None:
                defect = verify(self.part, digest)
            if not defect:
                return digest
            # Discard all ranges, because a digest of the whole file does not show which range is wrong.
            self._report(-self.size)
        raise CorruptSourceError(
            f"{self.label}: {defect}, twice in a row. The source or a proxy serves wrong bytes. The download was "
            "discarded. Check the source and any proxy"
        )

    def _fetch(self) -> str:
        self.over, self.written = threading.Event(), set()
        self.digest, self.digested = hashlib.sha256(), 0
        run_all(self._fetch_range, range(-(-self.size // self.part_bytes)), self.workers, self.over)
        self._digest_written()
        return self.digest.hexdigest()

    def _is_stopped(self) -> bool:
        return self.over.is_set() or self.outer_stopped()

    def _fetch_range(self, index: int) -> None:
        start = index * self.part_bytes
        end = min(start + self.part_bytes, self.size)
        position = start
        label = f"{self.label}, bytes {start}-{end - 1}"

        def attempt() -> None:
            # Keep the position for a retry, which resumes at the byte that this attempt reaches. This is safe, because
            # the file's digest covers the bytes of all attempts.
            nonlocal position
            body = self.read_range(position, end)
            try:
                for chunk in body:
                    if self._is_stopped():
                        raise StoppedError(f"{label}: stopped before completion")
                    if position + len(chunk) > end:
                        # Restart the range from its beginning, because any of its bytes may be the surplus ones.
                        self._report(start - position)
                        position = start
                        raise RetryableError("the response is longer than the requested range")
                    self._write(chunk, position)
                    position += len(chunk)
                    self._report(len(chunk))
            finally:
                # Close the generator, because otherwise it holds its connection until it is garbage-collected.
                close = getattr(body, "close", None)
                if close is not None:
                    close()
            if position < end:
                raise RetryableError(f"incomplete response: ended at byte {position}")

        self.retry.run(attempt, label=label, stopped=self._is_stopped)
        self.written.add(index)
        # Do not wait for the lock, because its holder or the end of `_fetch` digests this range.
        if self.digest_lock.acquire(blocking=False):
            try:
                self._digest_written()
            finally:
                self.digest_lock.release()

    def _digest_written(self) -> None:
        """Digest the written ranges that directly follow the digested ones, while other ranges are downloaded."""
        while self.digested in self.written:
            position, remaining = self.digested * self.part_bytes, self.part_bytes
            while remaining and (block := os.pread(self.descriptor, min(remaining, _HASH_CHUNK), position)):
                self.digest.update(block)
                position += len(block)
                remaining -= len(block)
            self.digested += 1

    def _write(self, chunk: bytes, offset: int) -> None:
        # Use pwrite, because workers write to different offsets of one file. A call may write fewer bytes than passed.
        view = memoryview(chunk)
        while view:
            try:
                count = os.pwrite(self.descriptor, view, offset)
            except OSError as error:
                if error.errno in _NO_SPACE:
                    raise _build_no_space_error(self.part, self.size, self.label) from error
                raise
            view = view[count:]
            offset += count

    def _report(self, count: int) -> None:
        if self.progress is not None and count:
            with self.progress_lock:
                self.progress(count)


def _describe_mismatch(path: Path, digest: str, sha256: str | None, git_sha1: str | None) -> str:
    if sha256 is not None and digest != sha256.lower():
        return f"expected sha256 {sha256.lower()}, but found {digest}"
    # Read the file again for the git id. This is cheap, because on the Hugging Face Hub only small files have no
    # SHA-256.
    if git_sha1 is not None and (actual := digest_file(path, git=True)) != git_sha1.lower():
        return f"expected git blob sha1 {git_sha1.lower()}, but found {actual}"
    return ""


def _find_completed(target: Path, size: int, sha256: str | None, git_sha1: str | None) -> str | None:
    """Return the SHA-256 of ``target`` if another process has completed it with the expected digest, else None."""
    if (sha256 is None and git_sha1 is None) or not target.is_file() or target.stat().st_size != size:
        return None
    digest = digest_file(target)
    return None if _describe_mismatch(target, digest, sha256, git_sha1) else digest


def _allocate(descriptor: int, size: int, part: Path, label: str) -> None:
    """Set the open ``part`` to its full ``size`` (bytes), and reserve the space if the file system supports that.

    A full disk is thus reported before the download, as TransferError with ``label`` and the needed and free bytes.
    """
    # Truncate a larger file left by a killed process, because its last bytes would remain after the new ones.
    if os.fstat(descriptor).st_size > size:
        os.ftruncate(descriptor, size)
    if size == 0:
        return
    allocated_bytes = os.fstat(descriptor).st_blocks * 512
    # Check free space first, because a failing allocation may briefly fill the disk for all processes.
    if size - allocated_bytes > shutil.disk_usage(part.parent).free:
        raise _build_no_space_error(part, size - allocated_bytes, label)
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(descriptor, size)
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in _NO_SPACE:
            # Release the blocks that the failed call may have allocated, because the free space is measured next.
            os.ftruncate(descriptor, 0)
            raise _build_no_space_error(part, size, label) from error
        # If the file system cannot preallocate, only set the length; a later write then reports a full disk.
        if error.errno not in _NOT_SUPPORTED:
            raise
        os.ftruncate(descriptor, size)


def _build_no_space_error(part: Path, size: int, label: str) -> TransferError:
    """Return the error that ``part`` needs ``size`` bytes, with the disk's free space; ``label`` names the object."""
    free = shutil.disk_usage(part.parent).free
    return TransferError(
        f"{label}: the disk of {part.parent} is full: {count_of(size, 'byte is', 'bytes are')} needed, {free} are "
        "free. Free space there or choose a different folder, then run the command again"
    )
