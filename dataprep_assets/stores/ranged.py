"""Owns the project's one resumable ranged download, and the retry policy that every network call shares.

A download writes beside its target: ``<target>.part`` (preallocated) holds the bytes, ``<target>.part.json`` (the
sidecar) says which parts are on disk. Four rules make a kill at any instant harmless:

* the sidecar names a part only when its bytes are written. Those that are synced as well (every gibibyte) are believed
  always, the others only within the boot that wrote them: a kill loses none of them, a crashed machine may;
* a worker rewrites the sidecar before it takes its next part, so a kill costs at most one range per worker;
* the target's name appears only by a rename of a complete, verified, synced file;
* one process at a time owns a ``.part`` (a kernel lock, which a killed owner cannot leave behind).

Entry points: :func:`download`, :class:`RetryPolicy`, :class:`RetryableError` (which ``read_range`` callables raise),
:func:`parse_retry_after`, :func:`discard_partial` and :func:`digest_file`.
"""

import email.utils
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import random
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from dataprep_assets.errors import ConfigError, CorruptSourceError, TransferError
from dataprep_assets.stores.files import boot_id, fsync_directory

__all__ = [
    "PART_BYTES",
    "RetryPolicy",
    "RetryableError",
    "StoppedError",
    "digest_file",
    "discard_partial",
    "download",
    "map_all",
    "parse_retry_after",
    "partial_paths",
    "run_all",
]

T = TypeVar("T")
R = TypeVar("R")

PART_BYTES = 32 * 1024 * 1024

# How often a waiting thread looks at its stop events, in seconds.
_POLL_SECONDS = 0.05
# How many bytes a crash of the machine may cost; a sync for every part would cost more than the network.
_SYNC_BYTES = 1 << 30
# How long a stopped transfer waits for its workers. One that is blocked in a socket read ends later, by its read
# timeout; until then it owns only a descriptor of its own, and it never writes again once it is stopped.
_GRACE_SECONDS = 2.0
# How long a second process waits for the first one to finish the same file.
_LOCK_SECONDS = 3600.0
_HASH_CHUNK = 4 * 1024 * 1024

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NOT_SUPPORTED = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.ENODEV}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


class RetryableError(Exception):
    """A failure that another try may cure.

    ``cause`` is said to the reader when the budget is spent; ``retry_after`` is the server's own wish in seconds, from
    :func:`parse_retry_after`.
    """

    def __init__(self, cause: str, retry_after: float | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.retry_after = retry_after


class StoppedError(TransferError):
    """The transfer was told to stop; another error, or the caller, says why."""


def parse_retry_after(value: str | None, *, now: float | None = None) -> float | None:
    """Seconds to wait for a ``Retry-After`` header (RFC 9110, 10.2.3: delay-seconds or HTTP-date); None if unreadable.

    ``now`` is seconds since the epoch. A date in the past gives 0.
    """
    if value is None or not value.strip():
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            when = email.utils.parsedate_to_datetime(value)
        except ValueError:
            return None
        seconds = when.timestamp() - (time.time() if now is None else now)
    if not math.isfinite(seconds):
        return None
    return max(0.0, seconds)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently a network call is tried again.

    ``attempts`` counts the first try. The wait doubles from ``base_seconds`` up to ``max_seconds`` and is jittered over
    its upper half. A server's Retry-After is obeyed even beyond ``max_seconds``; one beyond ``max_retry_after`` ends
    the call at once, because a transfer that sleeps for hours looks like one that hangs. ``sleep`` replaces the wait
    (for tests); by default a wait ends early when the transfer is stopped.
    """

    attempts: int = 8
    base_seconds: float = 0.5
    max_seconds: float = 60.0
    max_retry_after: float = 900.0
    sleep: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError(f"RetryPolicy attempts={self.attempts}: at least 1 is needed")
        if self.base_seconds < 0 or self.max_seconds < self.base_seconds:
            raise ConfigError(
                f"RetryPolicy base_seconds={self.base_seconds}, max_seconds={self.max_seconds}: "
                "0 <= base_seconds <= max_seconds is needed"
            )

    def delay(self, failures: int, retry_after: float | None) -> float:
        """Seconds to wait after the ``failures``-th failure in a row (counted from 1)."""
        # The exponent is capped because 2.0**1024 overflows and no ceiling needs more than 2**64.
        ceiling = min(self.max_seconds, self.base_seconds * 2.0 ** min(failures - 1, 64))
        if retry_after is None:
            return random.uniform(ceiling / 2, ceiling)
        # Never earlier than asked; spread out, because every worker was told the same moment.
        return retry_after + random.uniform(0, self.base_seconds)

    def run(self, attempt: Callable[[], T], *, label: str, stopped: Callable[[], bool] = lambda: False) -> T:
        """``attempt()`` until it returns, while it raises :class:`RetryableError` and the budget lasts.

        Raises TransferError with the label, the last cause and the attempts made. Any other error passes through.
        """
        for failures in range(1, self.attempts + 1):
            try:
                return attempt()
            except RetryableError as error:
                last = error
            if failures == self.attempts:
                break
            if last.retry_after is not None and last.retry_after > self.max_retry_after:
                raise TransferError(
                    f"{label}: {last.cause}; the server asks to wait {last.retry_after:.0f} s, more than the "
                    f"{self.max_retry_after:.0f} s allowed (attempt {failures} of {self.attempts}). Run again later"
                ) from last
            self._wait(self.delay(failures, last.retry_after), stopped)
            if stopped():
                raise StoppedError(f"{label}: stopped after {last.cause}; run again to resume") from last
        raise TransferError(f"{label}: {last.cause} (gave up after {self.attempts} attempts)") from last

    def _wait(self, seconds: float, stopped: Callable[[], bool]) -> None:
        if self.sleep is not None:
            self.sleep(seconds)
        else:
            until = time.monotonic() + seconds
            while not stopped() and (left := until - time.monotonic()) > 0:
                time.sleep(min(left, _POLL_SECONDS))


def partial_paths(target: Path) -> tuple[Path, Path]:
    """The ``.part`` and the sidecar that a download of ``target`` uses."""
    return target.with_name(target.name + ".part"), target.with_name(target.name + ".part.json")


def discard_partial(target: Path) -> None:
    """Remove what an interrupted download of ``target`` left, unless a download of it is under way in some process.

    Call it when the target itself is good.
    """
    part, sidecar = partial_paths(target)
    if not any(path.exists() for path in (part, sidecar, _sidecar_draft(sidecar))):
        return
    # Under the lock of a `.part`, made if there is none: the sidecar belongs to whoever holds it.
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if _try_lock(descriptor) and _is_same_file(descriptor, part):
            _remove_partial(target)
    finally:
        os.close(descriptor)


def _remove_partial(target: Path) -> None:
    """Remove the sidecar and the ``.part``, which the caller has locked; in that order, for a kill in between."""
    part, sidecar = partial_paths(target)
    for path in (sidecar, _sidecar_draft(sidecar), part):
        path.unlink(missing_ok=True)


def digest_file(path: Path, *, git: bool = False, stopped: Callable[[], bool] = lambda: False) -> str:
    """Hex digest of a file: SHA-256, or with ``git`` its git blob id (SHA-1 over ``blob <size>\\0`` and the bytes)."""
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
    retry: RetryPolicy = RetryPolicy(),
    progress: Callable[[int], None] | None = None,
    stop: threading.Event | None = None,
) -> str:
    """Fetch ``size`` bytes to ``target`` in parallel ranges, resuming what an earlier run left; returns their SHA-256.

    ``read_range(start, end)`` yields the bytes of the half-open range [start, end) and raises :class:`RetryableError`
    for failures worth another try; any other error ends the transfer at once. It is called from ``workers`` threads.
    ``sha256`` (hex) and ``git_sha1`` (a git blob id) are verified when given, and what ``verify`` says: it gets the
    complete file, not yet under its name, and its SHA-256, and returns a complaint or "". ``etag`` names the version of
    the object: parts of another version are never resumed. ``progress`` gets the number of bytes newly known to be on
    disk (resumed ones included, negative when bytes are given up), one call at a time; what it raises ends the
    transfer. ``stop`` ends it early from another thread.

    Raises TransferError (budget spent, disk full, stopped) and CorruptSourceError (wrong digest twice). After an error
    or an interrupt the finished parts stay for the next run; if there are none, nothing stays.
    """
    if size < 0 or part_bytes < 1 or workers < 1:
        raise ConfigError(f"{label}: size={size}, part_bytes={part_bytes}, workers={workers} cannot be downloaded")
    target.parent.mkdir(parents=True, exist_ok=True)
    part, sidecar = partial_paths(target)
    stopped = stop.is_set if stop is not None else lambda: False
    with _owned_part(part, label, stopped) as (descriptor, waited):
        if waited and (digest := _already_there(target, size, sha256, git_sha1)) is not None:
            _remove_partial(target)
            return digest
        finished = _read_sidecar(sidecar, size, etag, part_bytes) if os.fstat(descriptor).st_size == size else set()
        if not finished:
            # A sidecar that speaks of other bytes must be gone before this run writes its first one.
            sidecar.unlink(missing_ok=True)
        else:
            _sync_data(descriptor)  # what an earlier run left counts as synced from here on
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
            finished=finished,
            synced=set(finished),
        )
        try:
            _allocate(descriptor, size, part, label)
            digest = _fetch_verified(transfer, sha256=sha256, git_sha1=git_sha1, verify=verify)
            os.fsync(descriptor)
        except BaseException:
            # Also on KeyboardInterrupt: a preallocated file without a single finished part is only debris.
            if not transfer.finished:
                _remove_partial(target)
            raise
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
    # Indexes of the parts whose bytes are written, and of those that are synced too; guarded by `lock`, as is the
    # sidecar that repeats them.
    finished: set[int]
    synced: set[int] = field(default_factory=set)
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
                        alive[0].join(_POLL_SECONDS)
            finally:
                over.set()
                deadline = time.monotonic() + _GRACE_SECONDS
                for thread in threads:
                    if thread.ident is not None:
                        thread.join(max(0.0, deadline - time.monotonic()))
            if failures:
                raise failures[0]
            for _ in range(digested, count):
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
            descriptor = os.open(self.part, os.O_WRONLY | os.O_CLOEXEC)
            try:
                while todo and not over.is_set():
                    try:
                        index = todo.popleft()
                    except IndexError:
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
            # A retry goes on from the byte that the last attempt reached: the whole file's digest covers both.
            nonlocal reached
            body = self.read_range(reached, end)
            try:
                for chunk in body:
                    if stopped():
                        raise StoppedError(f"{label}: stopped; run again to resume")
                    if reached + len(chunk) > end:
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
        _sync_data(descriptor)
        with self.lock:
            if not stopped():
                self.synced |= written
                self._write_sidecar()

    def _write(self, descriptor: int, chunk: bytes, offset: int) -> None:
        view = memoryview(chunk)
        while view:
            try:
                written = os.pwrite(descriptor, view, offset)
            except OSError as error:
                if error.errno in _NO_SPACE:
                    raise _no_space(self.part, self.size, self.label) from error
                raise
            view = view[written:]
            offset += written

    def report(self, count: int) -> None:
        if self.progress is not None and count:
            with self.lock:
                self.progress(count)

    def _write_sidecar(self) -> None:
        state = {
            "size": self.size,
            "etag": self.etag,
            "part_bytes": self.part_bytes,
            "finished": sorted(self.finished),
            "synced": sorted(self.synced),
            "boot": boot_id(),
        }
        draft = _sidecar_draft(self.sidecar)
        with draft.open("w", encoding="utf-8") as stream:
            json.dump(state, stream)
        os.replace(draft, self.sidecar)

    def finished_bytes(self) -> int:
        return sum(min(self.part_bytes, self.size - index * self.part_bytes) for index in self.finished)

    def forget(self) -> None:
        """Give up every byte fetched so far."""
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
    """Fetch, verify, and on a wrong digest fetch everything once more; returns the SHA-256."""
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
    if git_sha1 is not None and (actual := digest_file(path, git=True)) != git_sha1.lower():
        return f"expected git blob sha1 {git_sha1.lower()}, got {actual}"
    return ""


def _already_there(target: Path, size: int, sha256: str | None, git_sha1: str | None) -> str | None:
    """The SHA-256 of a target that the previous owner of the ``.part`` completed, if it is provably the one wanted."""
    if (sha256 is None and git_sha1 is None) or not target.is_file() or target.stat().st_size != size:
        return None
    digest = digest_file(target)
    return None if _mismatch(target, digest, sha256, git_sha1) else digest


@contextmanager
def _owned_part(part: Path, label: str, stopped: Callable[[], bool]) -> Iterator[tuple[int, bool]]:
    """The open, locked ``.part``, and whether another process had it first."""
    deadline = time.monotonic() + _LOCK_SECONDS
    waited = False
    while True:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            # The previous owner may have renamed or removed the file between our open and our lock.
            if _try_lock(descriptor) and _is_same_file(descriptor, part):
                yield descriptor, waited
                return
        finally:
            os.close(descriptor)
        waited = True
        if stopped():
            raise StoppedError(f"{label}: stopped while another process writes {part}")
        if time.monotonic() > deadline:
            raise TransferError(f"{label}: another process is still writing {part} after {_LOCK_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Some network file systems have no locks. The digest still decides what gets the target's name.
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _read_sidecar(sidecar: Path, size: int, etag: str | None, part_bytes: int) -> set[int]:
    """The finished parts of the same object cut the same way; empty when anything differs or cannot be read."""
    try:
        state = json.loads(sidecar.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return set()
    if not isinstance(state, dict) or not isinstance(state.get("finished"), list):
        return set()
    if (state.get("size"), state.get("etag"), state.get("part_bytes")) != (size, etag, part_bytes):
        return set()
    parts = range(-(-size // part_bytes))
    same_boot = boot_id() is not None and state.get("boot") == boot_id()
    believed = state["finished"] if same_boot else state.get("synced", [])
    finished = {index for index in believed if isinstance(index, int)}
    return finished if all(index in parts for index in finished) else set()


def _allocate(descriptor: int, size: int, part: Path, label: str) -> None:
    """Give the file its full size, with its blocks where the file system can: a full disk then shows up now."""
    if os.fstat(descriptor).st_size > size:
        os.ftruncate(descriptor, size)
    if size == 0:
        return
    held = os.fstat(descriptor).st_blocks * 512
    # Asked first, because an allocation that fails may fill the disk under everybody else for a moment.
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
        if error.errno not in _NOT_SUPPORTED:
            raise
        os.ftruncate(descriptor, size)


def _no_space(part: Path, size: int, label: str) -> TransferError:
    free = shutil.disk_usage(part.parent).free
    return TransferError(
        f"{label}: the disk of {part.parent} is full: {size} bytes are needed, {free} are free. "
        "Free space there or choose another directory, then run again"
    )


def _sidecar_draft(sidecar: Path) -> Path:
    # One fixed name, so that a draft which a kill left behind is overwritten rather than added to.
    return sidecar.with_name(sidecar.name + ".new")


def _sync_data(descriptor: int) -> None:
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def run_all(fetch: Callable[[T], None], items: Sequence[T], at_once: int, stop: threading.Event) -> None:
    """``fetch`` every item on ``at_once`` threads; the first error (or an interrupt) stops the others and is raised.

    ``stop`` is what the fetches of this group watch; it is set when the group ends, for whatever reason. Once it is
    set, no further item is begun.
    """

    def guarded(item: T) -> None:
        if stop.is_set():
            return
        try:
            fetch(item)
        except BaseException:
            # Here and not by the thread that waits: until that one runs, the others would begin more items.
            stop.set()
            raise

    pool = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="transfer")
    futures: list[Future[None]] = []
    try:
        futures = [pool.submit(guarded, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    errors = [error for future in futures if not future.cancelled() and (error := future.exception()) is not None]
    # Files that were stopped because of another one complain too; the reader needs the cause.
    causes = [error for error in errors if not isinstance(error, StoppedError)]
    for error in causes or errors:
        raise error


def map_all(do: Callable[[T], R], items: Sequence[T], at_once: int) -> list[R]:
    """``do`` for every item by `run_all`; the results in the order of the items."""
    results: dict[int, R] = {}

    def one(numbered: tuple[int, T]) -> None:
        results[numbered[0]] = do(numbered[1])

    run_all(one, [*enumerate(items)], at_once, threading.Event())
    return [results[index] for index in range(len(items))]
