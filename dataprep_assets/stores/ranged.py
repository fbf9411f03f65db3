"""The project's only resumable ranged download.

A download writes beside its target, into ``<target>.part`` (see :mod:`dataprep_assets.stores.partial`). Two rules make
a kill at any instant harmless:

* a worker rewrites the sidecar before it takes its next part, so a kill costs at most one range per worker;
* the target's name appears only by a rename of a complete, verified, synced file.

Why it is written by hand: boto3's transfer manager, obstore and huggingface_hub start a file over in a new process
(huggingface_hub#3643), and s3fs left a full-length partial under the final name on a full disk. 1 GiB from OpenStack
Swift on loopback took 5.18 s with this download, 6.51 s with boto3's transfer manager and 7.08 s with obstore (medians
of three, verification on; `dataprep_assets_tests/tools/bench/transfers.py`).

Entry points: :func:`download` and :func:`digest_file`.
"""

import hashlib
import io
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.errors import ConfigError, CorruptSourceError
from dataprep_assets.stores.files import fsync_directory
from dataprep_assets.stores.locks import own_file
from dataprep_assets.stores.partial import (
    allocate,
    discard_partial,
    is_disk_full,
    no_space,
    owned_part,
    partial_paths,
    read_sidecar,
    remove_partial,
    sync_data,
    write_sidecar,
)
from dataprep_assets.stores.retry import RetryableError, RetryPolicy, StoppedError

# A kill costs up to one of these for each worker; smaller ones cost more requests and more writes of the sidecar.
PART_BYTES = 32 * 1024 * 1024

# How often the waiting thread checks its workers and stop events, in seconds.
_POLL_SECONDS = 0.05
# How many bytes a crash of the machine may cost; a sync for every part would cost more than the network.
_SYNC_BYTES = 1 << 30
# How long a stopped transfer waits for its workers. One that is blocked in a socket read ends later, by its read
# timeout; until then it owns only a descriptor of its own, and it never writes again once it is stopped.
_GRACE_SECONDS = 2.0
_RETRY = RetryPolicy()
_HASH_CHUNK = 4 * 1024 * 1024


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


def download(
    read_range: Callable[[int, int], Iterator[bytes]],
    *,
    size: int,
    target: Path,
    sha256: str | None,
    git_sha1: str | None = None,
    verify: Callable[[Path, str], str] | None = None,
    etag: str | None = None,
    label: str,
    part_bytes: int = PART_BYTES,
    workers: int = 4,
    retry: RetryPolicy = _RETRY,
    progress: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> str:
    """Fetch ``size`` bytes to ``target`` in parallel ranges, resuming what an earlier run left; returns their SHA-256.

    ``read_range(start, end)`` yields the bytes of the half-open range [start, end) and raises :class:`RetryableError`
    for failures worth another try; any other error ends the transfer at once. It is called from ``workers`` threads.
    ``label`` names the object in messages, ``part_bytes`` is the length of a range, ``retry`` says how often each range
    is tried. ``sha256`` (hex) and ``git_sha1`` (a git blob id) are verified when given. ``verify`` may check more: it
    gets the complete file, not yet under its name, and its SHA-256, and returns a complaint or "". ``etag`` names the
    version of the object: parts of another version are never resumed. ``progress`` gets the number of bytes newly known
    to be on disk (resumed ones included, negative for discarded ones), one call at a time; an exception of it ends
    the transfer. ``stop`` ends it early from another thread.

    Raises TransferError (budget spent, disk full, stopped) and CorruptSourceError (wrong digest twice). After an error
    or an interrupt the finished parts stay for the next run; if there are none, nothing stays.
    Raises ConfigError for a negative size, or parts or workers below 1.
    """
    if size < 0 or part_bytes < 1 or workers < 1:
        raise ConfigError(f"{label}: size={size}, part_bytes={part_bytes}, workers={workers} cannot be downloaded")
    target.parent.mkdir(parents=True, exist_ok=True)
    part, sidecar = partial_paths(target)
    stopped = stop.is_set if stop is not None else lambda: False
    with owned_part(part, label, stopped) as (descriptor, waited):
        if waited and (digest := _already_there(target, size, sha256, git_sha1)) is not None:
            # This `.part` was made by the wait for the lock: the other owner's went with its rename.
            remove_partial(target)
            return digest
        # A `.part` of another length is not the one that the sidecar speaks of; one that was just made is empty.
        finished = read_sidecar(sidecar, size, etag, part_bytes) if os.fstat(descriptor).st_size == size else set()
        if not finished:
            # A sidecar of other bytes must be gone before this run writes its first one.
            sidecar.unlink(missing_ok=True)
        else:
            sync_data(descriptor)  # bytes of an earlier run count as synced from here on
        transfer = _Transfer(
            read_range=read_range,
            size=size,
            part=part,
            sidecar=sidecar,
            etag=etag,
            label=label,
            part_bytes=part_bytes,
            workers=workers,
            retry=retry,
            progress=progress,
            outer_stopped=stopped,
            mode=stat.S_IMODE(os.fstat(descriptor).st_mode),
            finished=finished,
            synced=set(finished),
        )
        try:
            allocate(descriptor, size, part, label)
            digest = _fetch_verified(transfer, sha256=sha256, git_sha1=git_sha1, verify=verify)
            os.fsync(descriptor)
        except BaseException:
            # Also on KeyboardInterrupt: a preallocated file without a finished part is of no use.
            if not transfer.finished:
                remove_partial(target)
            raise
        # After the fsync, and before that of the folder: no crash leaves the name without its bytes.
        os.replace(part, target)
        fsync_directory(target.parent)
        # The lock went along with the rename: a process that waited for it may own a new `.part` and sidecar by now.
        discard_partial(target)
        return digest


@dataclass(kw_only=True)
class _Transfer:
    """One file under way: the parts that are done, and the threads that fetch the others."""

    read_range: Callable[[int, int], Iterator[bytes]]
    size: int
    part: Path
    sidecar: Path
    etag: str | None
    label: str
    part_bytes: int
    workers: int
    retry: RetryPolicy
    progress: Callable[[int], None] | None
    outer_stopped: Callable[[], bool]
    # Permissions of the `.part`, which its sidecar gets.
    mode: int
    # Indices of the parts whose bytes are written, and of those that are synced too; guarded by `lock`, as is the
    # sidecar that repeats them.
    finished: set[int]
    synced: set[int] = field(default_factory=set)
    # Bytes that all workers finished since the last sync; whoever reaches `_SYNC_BYTES` syncs for all of them.
    unsynced_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self) -> str:
        """Fetch every part that is not finished; returns the SHA-256 of the whole file.

        Raises the first worker's error after all workers were stopped. The digest is computed while parts arrive.
        """
        count = -(-self.size // self.part_bytes)
        todo = deque(index for index in range(count) if index not in self.finished)
        over = threading.Event()
        failures: list[BaseException] = []
        # Daemons: a worker that is blocked in a socket read must not keep the process from ending.
        threads = [
            threading.Thread(target=self._work, args=(todo, over, failures), name=f"ranged-{n}", daemon=True)
            for n in range(min(self.workers, len(todo)))
        ]
        digest, digested = hashlib.sha256(), 0
        # Unbuffered: a buffer would hold bytes from before their part arrived.
        with self.part.open("rb", buffering=0) as stream:
            try:
                for thread in threads:
                    thread.start()
                while alive := [thread for thread in threads if thread.is_alive()]:
                    if over.is_set() or self.outer_stopped():
                        break
                    if digested in self.finished:
                        self._digest_part(digest, stream)
                        digested += 1
                    else:
                        alive[0].join(_POLL_SECONDS)  # a sleep that ends early with this worker
            finally:
                over.set()
                deadline = time.monotonic() + _GRACE_SECONDS
                for thread in threads:
                    # An interrupt may come before all of them are started, and join refuses one that was not.
                    if thread.ident is not None:
                        thread.join(max(0.0, deadline - time.monotonic()))
            if failures:
                raise failures[0]
            for _ in range(digested, count):
                # Workers that see a stop between two parts leave no error: the stop itself has to be asked for.
                self._check_running()
                self._digest_part(digest, stream)
        self._check_running()
        return digest.hexdigest()

    def _digest_part(self, digest: "hashlib._Hash", stream: io.FileIO) -> None:
        """Add the next part of the file to its digest."""
        left = self.part_bytes
        while left and (block := stream.read(min(left, _HASH_CHUNK))):
            digest.update(block)
            left -= len(block)

    def _check_running(self) -> None:
        if self.outer_stopped():
            raise StoppedError(f"{self.label}: stopped before it was complete; run again to resume")

    def _work(self, todo: deque[int], over: threading.Event, failures: list[BaseException]) -> None:
        try:
            # A descriptor of its own: one shared with the main thread could be closed, and its number reused, under a
            # worker that outlives its grace.
            descriptor = own_file(self.part, os.O_WRONLY)
            try:
                while todo and not over.is_set():
                    try:
                        index = todo.popleft()
                    except IndexError:  # another worker took the last one since
                        return
                    self._fetch_part(index, descriptor, lambda: over.is_set() or self.outer_stopped())
            finally:
                os.close(descriptor)
        # Also StoppedError: `progress` may end the transfer with it. Carried to the thread that called download().
        except BaseException as error:
            failures.append(error)
            over.set()

    def _fetch_part(self, index: int, descriptor: int, stopped: Callable[[], bool]) -> None:
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
                    if stopped():
                        raise StoppedError(f"{label}: stopped; run again to resume")
                    if reached + len(chunk) > end:
                        # Which of the bytes are the right ones is not known: the range begins anew.
                        self.report(start - reached)
                        reached = start
                        raise RetryableError("the body is longer than the range")
                    self._write(descriptor, chunk, reached)
                    reached += len(chunk)
                    self.report(len(chunk))
            finally:
                # A generator holds its connection; close it here rather than whenever it is collected.
                close = getattr(body, "close", None)
                if close is not None:
                    close()
            if reached < end:
                raise RetryableError(f"short body, ended at byte {reached}")

        self.retry.run(attempt, label=label, stopped=stopped)
        with self.lock:
            if stopped():
                # After a stop the caller may already have started again, and owns the sidecar.
                raise StoppedError(f"{label}: stopped; run again to resume")
            self.finished.add(index)
            self._write_sidecar()
            self.unsynced_bytes += end - start
            if self.unsynced_bytes < _SYNC_BYTES:
                return
            written, self.unsynced_bytes = set(self.finished), 0
        # Outside the lock, so that others go on: what they finish meanwhile is not in `written`.
        sync_data(descriptor)
        with self.lock:
            if not stopped():
                self.synced |= written
                self._write_sidecar()

    def _write(self, descriptor: int, chunk: bytes, offset: int) -> None:
        # pwrite, because workers write to one file at places of their own; a call may take less than it was given.
        view = memoryview(chunk)
        while view:
            try:
                written = os.pwrite(descriptor, view, offset)
            except OSError as error:
                if is_disk_full(error):
                    raise no_space(self.part, self.size, self.label) from error
                raise
            view = view[written:]
            offset += written

    def report(self, count: int) -> None:
        if self.progress is not None and count:
            with self.lock:
                self.progress(count)

    def _write_sidecar(self) -> None:
        write_sidecar(
            self.sidecar,
            self.size,
            self.etag,
            self.part_bytes,
            finished=self.finished,
            synced=self.synced,
            mode=self.mode,
        )

    def finished_bytes(self) -> int:
        return sum(min(self.part_bytes, self.size - index * self.part_bytes) for index in self.finished)

    def forget(self) -> None:
        """Discard every byte fetched so far."""
        self.report(-self.finished_bytes())
        self.finished.clear()
        self.synced.clear()
        self.sidecar.unlink(missing_ok=True)


def _fetch_verified(
    transfer: _Transfer,
    *,
    sha256: str | None,
    git_sha1: str | None,
    verify: Callable[[Path, str], str] | None,
) -> str:
    """Fetch and verify; if the digest is wrong, fetch everything once more. Returns the SHA-256."""
    transfer.report(transfer.finished_bytes())
    complaint = ""
    for _ in range(2):
        digest = transfer.fetch()
        complaint = _mismatch(transfer.part, digest, sha256, git_sha1)
        if not complaint and verify is not None:
            complaint = verify(transfer.part, digest)
        if not complaint:
            return digest
        # Which part is wrong cannot be known from one digest of the whole, so no part is kept.
        transfer.forget()
    raise CorruptSourceError(
        f"{transfer.label}: {complaint}, twice in a row. The source (or a proxy on the way) serves wrong bytes of the "
        "right length; nothing was kept"
    )


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
