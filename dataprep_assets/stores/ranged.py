"""Download one object in parallel ranges to a file that appears only when it is complete, verified and synced.

The bytes are written to ``<target>.part``, which a kernel lock keeps for one process. After an error or an interrupt
nothing stays; what a kill left is overwritten by the next download of the same target.

Why boto3's transfer manager, obstore and huggingface_hub are not used: they trust the length alone, and s3fs left a
full-length file under the final name on a full disk. `stores.s3` has the measurements.

Entry points: :func:`download`, :func:`download_pinned`, :func:`digest_file`, :func:`partial_path`, :func:`held_bytes`
and :func:`discard_partial`.
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
from dataprep_assets.stores.locks import is_same_file, own_file, owned_file, try_lock
from dataprep_assets.stores.pool import run_all
from dataprep_assets.stores.retry import RetryableError, RetryPolicy, StoppedError
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Progress, ReversibleProgress, no_object

# A failed range is fetched again from the byte it reached; smaller ones only cost more requests.
PART_BYTES = 32 * 1024 * 1024

_TRIES = 3
_RETRY = RetryPolicy()
_HASH_CHUNK = 4 * 1024 * 1024
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NOT_SUPPORTED = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.ENODEV}


def digest_file(path: Path, *, git: bool = False, stopped: Callable[[], bool] = lambda: False) -> str:
    """Hex digest of the file ``path``: SHA-256, or with ``git`` its git blob id.

    That is the SHA-1 over ``blob <size>\\0`` and the bytes. Raises StoppedError once ``stopped()`` is true.
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


def partial_path(target: Path) -> Path:
    """Return the file that a download of ``target`` writes."""
    return target.with_name(target.name + ".part")


def held_bytes(target: Path) -> int:
    """Return the disk space that the partial file of ``target`` has, which its next download uses."""
    part = partial_path(target)
    # st_blocks counts 512 bytes on every file system; a preallocated file has all its blocks, a sparse one few.
    return part.stat().st_blocks * 512 if part.is_file() else 0


def discard_partial(target: Path) -> None:
    """Remove the partial file of ``target``, unless a download of it is under way in some process."""
    part = partial_path(target)
    try:
        descriptor = own_file(part, os.O_RDWR)
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
    """`fetch` the version that `head` finds; if that raises ConflictError, discard its bytes and ask again.

    Returns the object with its SHA-256, which `fetch` returns.

    `label` names the object in messages; `progress` gets the number of bytes fetched, negative if they are discarded.

    Raises MissingArtifactError when there is no object, TransferError when it was replaced in every one of 3 tries.
    """
    for _ in range(_TRIES):
        info = head()
        if info is None:
            raise no_object(label)
        given = ReversibleProgress(progress)
        try:
            return replace(info, sha256=fetch(info, given))
        except ConflictError:
            given.take_back()
    raise TransferError(f"{label}: replaced during each of {_TRIES} downloads. Run again when its writer has finished")


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
    """Fetch ``size`` bytes to ``target`` in parallel ranges; returns their SHA-256.

    ``read_range(start, end)`` yields the bytes of the half-open range [start, end) and raises :class:`RetryableError`
    for failures worth another try; any other error ends the transfer at once. It is called from ``workers`` threads.
    ``label`` names the object in messages, ``part_bytes`` is the length of a range, ``retry`` says how often each range
    is tried. ``sha256`` (hex) and ``git_sha1`` (a git blob id) are verified when given. ``verify`` may check more: it
    gets the complete file, not yet under its name, and its SHA-256, and returns a complaint or "". ``progress`` gets
    the number of bytes written (negative for discarded ones), one call at a time; an exception of it ends the
    transfer. ``stop`` ends it early from another thread.

    Raises TransferError (budget spent, disk full, stopped) and CorruptSourceError (wrong digest twice).
    Raises ConfigError for a negative size, or parts or workers below 1.
    """
    if size < 0 or part_bytes < 1 or workers < 1:
        raise ConfigError(f"{label}: size={size}, part_bytes={part_bytes}, workers={workers} cannot be downloaded")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = partial_path(target)
    stopped = stop.is_set if stop is not None else lambda: False
    with owned_file(part, label, stopped) as (descriptor, waited):
        try:
            if waited and (digest := _already_there(target, size, sha256, git_sha1)) is not None:
                # This `.part` was made by the wait for the lock: the other owner's went with its rename.
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
            digest = transfer.fetch_verified(sha256, git_sha1, verify)
            os.fsync(descriptor)
            os.replace(part, target)
        except BaseException:
            # Also on KeyboardInterrupt: nothing takes up these bytes again.
            part.unlink(missing_ok=True)
            raise
        # After the fsync, and before the end: no crash leaves the name without its bytes.
        fsync_directory(target.parent)
        return digest


@dataclass(kw_only=True)
class _Transfer:
    """One file under way: its ranges, and the digest of those that are written without a gap."""

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
    # Indices of the written ranges, and the digest of the first `digested` of them, which `digest_lock` guards.
    written: set[int] = field(default_factory=set)
    digested: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    digest_lock: threading.Lock = field(default_factory=threading.Lock)
    progress_lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch_verified(
        self, sha256: str | None, git_sha1: str | None, verify: Callable[[Path, str], str] | None
    ) -> str:
        """Fetch and verify; if the digest is wrong, fetch everything once more. Returns the SHA-256."""
        complaint = ""
        for _ in range(2):
            digest = self._fetch()
            complaint = _mismatch(self.part, digest, sha256, git_sha1)
            if not complaint and verify is not None:
                complaint = verify(self.part, digest)
            if not complaint:
                return digest
            # Which range is wrong cannot be known from one digest of the whole, so no range is kept.
            self._report(-self.size)
        raise CorruptSourceError(
            f"{self.label}: {complaint}, twice in a row. The source (or a proxy) serves wrong bytes of the right "
            "length. The download was discarded"
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
        reached = start
        label = f"{self.label}, bytes {start}-{end - 1}"

        def attempt() -> None:
            # A retry continues at the byte that the last attempt reached: the whole file's digest covers both.
            nonlocal reached
            body = self.read_range(reached, end)
            try:
                for chunk in body:
                    if self._is_stopped():
                        raise StoppedError(f"{label}: stopped before completion")
                    if reached + len(chunk) > end:
                        # Which of the bytes are the right ones is not known: the range begins anew.
                        self._report(start - reached)
                        reached = start
                        raise RetryableError("the body is longer than the range")
                    self._write(chunk, reached)
                    reached += len(chunk)
                    self._report(len(chunk))
            finally:
                # A generator holds its connection; close it here rather than whenever it is collected.
                close = getattr(body, "close", None)
                if close is not None:
                    close()
            if reached < end:
                raise RetryableError(f"short body: it ended at byte {reached}")

        self.retry.run(attempt, label=label, stopped=self._is_stopped)
        self.written.add(index)
        if self.digest_lock.acquire(blocking=False):  # the holder digests this range as well, or the end does
            try:
                self._digest_written()
            finally:
                self.digest_lock.release()

    def _digest_written(self) -> None:
        """Digest the written ranges that follow those already digested, while others arrive."""
        while self.digested in self.written:
            position, left = self.digested * self.part_bytes, self.part_bytes
            while left and (block := os.pread(self.descriptor, min(left, _HASH_CHUNK), position)):
                self.digest.update(block)
                position += len(block)
                left -= len(block)
            self.digested += 1

    def _write(self, chunk: bytes, offset: int) -> None:
        # pwrite, because workers write to one file at places of their own; a call may take less than it was given.
        view = memoryview(chunk)
        while view:
            try:
                written = os.pwrite(self.descriptor, view, offset)
            except OSError as error:
                if error.errno in _NO_SPACE:
                    raise _no_space(self.part, self.size, self.label) from error
                raise
            view = view[written:]
            offset += written

    def _report(self, count: int) -> None:
        if self.progress is not None and count:
            with self.progress_lock:
                self.progress(count)


def _mismatch(path: Path, digest: str, sha256: str | None, git_sha1: str | None) -> str:
    if sha256 is not None and digest != sha256.lower():
        return f"expected sha256 {sha256.lower()}, got {digest}"
    # Of the hub's files only small ones have no SHA-256, so a second pass over them costs little.
    if git_sha1 is not None and (actual := digest_file(path, git=True)) != git_sha1.lower():
        return f"expected git blob sha1 {git_sha1.lower()}, got {actual}"
    return ""


def _already_there(target: Path, size: int, sha256: str | None, git_sha1: str | None) -> str | None:
    """The SHA-256 of a target that the previous owner of the ``.part`` completed, if it is provably the one wanted."""
    if (sha256 is None and git_sha1 is None) or not target.is_file() or target.stat().st_size != size:
        return None
    digest = digest_file(target)
    return None if _mismatch(target, digest, sha256, git_sha1) else digest


def _allocate(descriptor: int, size: int, part: Path, label: str) -> None:
    """Give the open ``part`` its full ``size`` (bytes), with its blocks where the file system can.

    A full disk then shows up now, as TransferError with ``label``, the bytes needed and the bytes free.
    """
    # What a kill left is overwritten; a smaller object would keep its last bytes.
    if os.fstat(descriptor).st_size > size:
        os.ftruncate(descriptor, size)
    if size == 0:
        return
    held = os.fstat(descriptor).st_blocks * 512
    # Checked first, because a failing allocation may fill the disk for everybody for a moment.
    if size - held > shutil.disk_usage(part.parent).free:
        raise _no_space(part, size - held, label)
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(descriptor, size)
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno in _NO_SPACE:
            # Measured after giving back the blocks that the failed call may have taken.
            os.ftruncate(descriptor, 0)
            raise _no_space(part, size, label) from error
        # Without preallocation the file only gets its length; a disk that fills up then shows in a later write.
        if error.errno not in _NOT_SUPPORTED:
            raise
        os.ftruncate(descriptor, size)


def _no_space(part: Path, size: int, label: str) -> TransferError:
    """The error of ``label`` that ``part`` needs ``size`` bytes, and how many its disk has."""
    free = shutil.disk_usage(part.parent).free
    return TransferError(
        f"{label}: the disk of {part.parent} is full: {count_of(size, 'byte is', 'bytes are')} needed, {free} are "
        "free. Free space there or choose a different folder, then run again"
    )
