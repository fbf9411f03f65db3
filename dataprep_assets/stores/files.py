"""Local files: links and concatenations made by the kernel, digests, and modes that only their owner can read.

Entry points: `concatenate`, `create`, `create_durably`, `regular`, `fsync_directory`, `fsync_path`, `boot_id`,
`version_of`, `while_unchanged`; `sha256_file`, `digest_value`, `SourceDigests`; `private_files`, `closed_folder`;
`check_headroom`, `expanded`.
"""

import errno
import hashlib
import hmac
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from dataprep_assets.bounds import alive
from dataprep_assets.errors import ConfigError, CorruptSourceError, FormatError, SourceError, count_of
from dataprep_assets.stores.locks import own_file

T = TypeVar("T")


def check_headroom(path: Path, needed_bytes: int, headroom: float = 0.2) -> None:
    """Raise SourceError unless the disk of ``path`` has ``needed_bytes`` free and ``headroom`` (a fraction) on top."""
    if needed_bytes <= 0:
        return
    folder = path.absolute()
    # It may have to be made yet; the nearest folder that is there is on the same disk.
    while not folder.exists():
        folder = folder.parent
    wanted = needed_bytes + int(needed_bytes * headroom)
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise SourceError(
            f"{path}: not enough free space: {count_of(needed_bytes, 'byte is', 'bytes are')} to be downloaded, "
            f"which needs {wanted} with {headroom:.0%} headroom, but {free} are free. Free "
            f"{count_of(wanted - free, 'byte')}, choose a larger disk (cache_dir or HF_HUB_CACHE), or download fewer "
            "files. Nothing was downloaded"
        )


# The SHA-256 of source files, computed while they are read, and the keyed digests that replace it for sensitive data:


@dataclass(frozen=True)
class SourceDigests:
    """The digests of source files in keys, receipts, listings and messages of a dataset. Picklable.

    They are SHA-256. For sensitive data they are HMAC-SHA256 of that under `key`, because a plain digest would tell
    anybody with a copy of a file that the file is among the sources.
    """

    key: bytes | None = field(default=None, repr=False)

    def digest_of(self, sha256: str) -> str:
        """The digest of a file with this SHA-256 (hex): 64 hex digits."""
        if self.key is None:
            return sha256
        # the word is that of the first sources with keyed digests; another one would rebuild all notes
        return hmac.digest(self.key, b"dataprep_assets/cohort_file\0" + sha256.encode(), "sha256").hex()


PLAIN = SourceDigests()
"""Plain SHA-256, for data that are not sensitive."""


def require_digest(label: str, actual: str, expected: str, listing: str) -> None:
    """Raise CorruptSourceError if the bytes read from a file are not those that its snapshot lists.

    Args:
        label: The file's name in messages.
        actual: SHA-256 of the bytes read.
        expected: SHA-256 in the snapshot.
        listing: The asset to materialize again if the file was meant to change.
    """
    if actual != expected:
        raise CorruptSourceError(
            f"{label}: the bytes read have sha256 {actual}, but its snapshot has {expected}. The file changed or is "
            f"damaged. Materialize {listing} again"
        )


# Files that only their owner can read: those of a sensitive dataset.
#
# Everything that this project, a library or Dagster writes inside of `private_files` is private: folders 0700,
# files 0600. This uses the process's umask, because a mode that is set after a file was created comes too late, and
# libraries create files by themselves. Modes that are set explicitly are never wider than what the umask left
# (`file_placement`, `integrity.verified_copies`).

OTHERS = 0o077
"""The permissions of the group and of everybody else."""

# The umask is one for the whole process, and is read by setting it: two threads at once would restore each other's.
_lock = threading.Lock()
_entered: list[int] = []
"""The umask before each active `private_files`; the last one to leave restores the first."""


@contextmanager
def private_files(wanted: bool = True) -> Iterator[None]:
    """Create files and folders that only their owner can read, in all threads of this process; no-op unless `wanted`.

    Processes started meanwhile inherit it. While a thread is inside, files of other threads are private too.
    """
    if not wanted:
        yield
        return
    with _lock:
        # The private mask is set to read the one before, because other threads may make files in between.
        before = os.umask(OTHERS)
        os.umask(OTHERS | before)
        # Inside of another one the mask before is the private one: the very first is what comes back in the end.
        _entered.append(_entered[0] if _entered else before)
    try:
        yield
    finally:
        with _lock:
            before = _entered.pop()
            if not _entered:
                os.umask(before)


def privately(items: Iterable[T], wanted: bool = True) -> Iterator[T]:
    """Yield the same items, each produced inside of `private_files`; the consumer is outside of it."""
    iterator = iter(items)
    while True:
        with private_files(wanted):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


def are_private() -> bool:
    """Return whether files written now are private."""
    return bool(_entered)


def current_umask() -> int:
    """Return the umask of this process."""
    with _lock:
        # the private mask is set to read it, because other threads may write files in between
        mask = os.umask(OTHERS)
        os.umask(mask)
        return mask


def closed_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter, whatever the umask, with its parents; restrict an existing folder.

    Existing parents stay as they are. For processes that are not the project's own, whose umask must not be changed.
    Raises ConfigError for a folder of another user, whom no mode keeps out.
    """
    # One by one: `mkdir(parents=True)` gives the mode to the last folder only.
    for parent in reversed(folder.parents):
        parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    # root could close it all the same, but its owner can open it again.
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{folder}: belongs to another user, or the file system changes the owner of new files (as NFS with "
            "root_squash does). Sensitive data needs a folder of its own user. Use a different folder"
        )
    if found.st_mode & OTHERS:
        folder.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)


def open_to_others(root: Path) -> Iterator[tuple[Path, int]]:
    """Paths at or below `root` that anybody but the owner can read, write or enter, with their permissions.

    Links are not followed, but `root` may be one. Files that disappear meanwhile are left out.
    """
    root = root.resolve()
    try:
        kind = root.lstat()
    except FileNotFoundError:
        return
    if kind.st_mode & OTHERS:
        yield root, stat.S_IMODE(kind.st_mode)
    for folder, folders, names in os.walk(root):
        for name in (*folders, *names):
            path = Path(folder, name)
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue
            # the mode of a link is 0777 on Linux, and means nothing
            if not stat.S_ISLNK(mode) and mode & OTHERS:
                yield path, stat.S_IMODE(mode)


def within_closed_folder(path: Path) -> bool:
    """Return whether others cannot reach what `path` leads to, because it or a folder above it is restricted to its
    owner."""
    path = path.resolve()
    return any(not folder.stat().st_mode & OTHERS for folder in (path, *path.parents) if folder.is_dir())


# Digests of files and of values.
#
# Everything that identifies content goes through here, so that the same content has the same digest in every
# process and on every machine: files by SHA-256 of their bytes, values by SHA-256 of canonical JSON.

_BLOCK = 1 << 18
"""Bytes read at once: a buffer that stays in the CPU's cache, and is cheap to clear."""


def sha256_file(
    path: Path, start: int = 0, stop: int | None = None, opener: Callable[[str, int], int] | None = None
) -> str:
    """SHA-256 (hex) of the bytes `[start, stop)` of the file `path`; of all of it by default.

    `opener` opens it, as in `open`.
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0, opener=opener) as file:
        file.seek(start)
        left = (stop if stop is not None else 1 << 62) - start
        # most artifacts have small files, for which clearing a large buffer would take longer than the digest
        there = os.fstat(file.fileno()).st_size - start
        view = memoryview(bytearray(max(1, min(_BLOCK, there))))
        while left > 0 and (count := file.readinto(view[: min(left, len(view))])):
            digest.update(view[:count])
            # a digest of terabytes takes as long as a stall that is ended: say that this process gets on (`bounds`)
            alive()
            left -= count
    return digest.hexdigest()


def canonical_json(value: Any) -> bytes:
    """The canonical JSON of a value: sorted keys, no spaces, UTF-8, no NaN.

    Raises TypeError or ValueError for values that cannot be written so.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_value(value: Any) -> str:
    """SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


# One system call moves at most this many bytes; Linux itself stops just below 2 GiB.
_CALL_BYTES = 1 << 30

# A way to move bytes: (source, target, position in source, count) -> bytes moved, at the position of the target.
_Mover = Callable[[int, int, int, int], int]

# Errors that mean that the kernel or file system cannot do it this way; another way may work.
_UNSUPPORTED = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})

# Errors of refused hard links: other file system, no permission or support, too many links, protected_hardlinks.
_UNLINKABLE = _UNSUPPORTED | {errno.EPERM, errno.EMLINK, errno.EACCES}

# Most results that are kept, and the age in nanoseconds (0.1 s) from which on a file's time can be relied on.
_KEPT, _SETTLED_NS = 20_000, 100_000_000


@lru_cache(maxsize=1)
def boot_id() -> str | None:
    """Identifies the current boot of the machine; None if the system has no such id.

    Data that were written but not synced survive the end of any process, but not a crash of the machine: state that
    names its boot can be trusted without the cost of syncing it.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


def version_of(path: str) -> str | None:
    """A text that changes when a file is replaced, without reading it; None if it is not there.

    The path is a text, because this is asked of thousands of files: making a Path of each takes longer than the answer.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    return f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


def while_unchanged(read: Callable[[str], T]) -> Callable[[str], T]:
    """`read`, which keeps what it returned for a path as long as the file there is the same, for thousands of files.

    A run of a thousand shards asks for the same small files a dozen times. A file that changed a moment ago is read
    again each time: clocks of file systems are too coarse to tell a second change. Callers do not change what they get.
    """
    kept: dict[str, tuple[tuple[int, int, int], T]] = {}

    def reading(path: str) -> T:
        # Before it is read: of a file that changes in between, the next call finds another version than the one kept.
        status = os.stat(path)
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        before = kept.get(path)
        if before is not None and before[0] == version:
            return before[1]
        value = read(path)
        if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
            if len(kept) >= _KEPT:
                kept.clear()
            kept[path] = (version, value)
        return value

    return reading


def fsync_directory(path: Path) -> None:
    """Make the directory's entries durable."""
    fsync_path(path, os.O_DIRECTORY)


def fsync_path(path: Path, flags: int) -> None:
    """Make a file's content or a directory's entries durable; `flags` of `os.open` say what the path may be."""
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def regular(path: str, flags: int) -> int:
    """An opener (of `open`) of regular files alone: not of a link, which may lead anywhere, nor of a FIFO, which waits.

    Raises OSError for anything else.
    """
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return handle


@contextmanager
def create(path: Path) -> Iterator[BinaryIO]:
    """Open ``path`` as a new file for writing and reading back; remove it again if the block raises.

    Raises FileExistsError if the file exists: truncating it would also truncate every artifact hard-linked to it.
    """
    with open(path, "x+b") as handle:
        try:
            yield cast(BinaryIO, handle)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


@contextmanager
def create_durably(path: Path) -> Iterator[BinaryIO]:
    """Open a draft that is synced and renamed to ``path`` when the block ends, and removed if the block raises.

    So a file of that name is always complete. An existing file is replaced.
    """
    draft = path.with_name(f"{path.name}.draft")
    try:
        with open(draft, "w+b", opener=own_file) as handle:
            yield cast(BinaryIO, handle)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def concatenate(parts: Sequence[Path], target: Path) -> int:
    """Join files into the new file ``target``, in the order given, without bytes passing through Python.

    A single part is hard-linked if the file system can; then both names are one inode, and must not be written in place
    any more. Otherwise the space is reserved first (so that a full disk fails early) and the kernel copies:
    ``copy_file_range``, else ``sendfile``, else plain reads and writes. Works for any headerless format.

    Returns the size of ``target`` in bytes. Raises FileExistsError when ``target`` exists; raises FormatError when a
    part changes size while it is being copied, in which case ``target`` is removed.
    """
    if len(parts) == 1 and _link(parts[0], target):
        return target.stat().st_size
    sizes = [part.stat().st_size for part in parts]
    with create(target) as handle:
        _reserve(handle.fileno(), sum(sizes))
        for part, size in zip(parts, sizes, strict=True):
            _append(part, size, handle.fileno())
    return sum(sizes)


def _link(part: Path, target: Path) -> bool:
    try:
        # link(2) does not follow symbolic links, and a link to the link would dangle when its directory moves.
        os.link(os.path.realpath(part), target)
    except OSError as error:
        if error.errno in _UNLINKABLE:
            return False
        raise
    return True


def _reserve(target: int, size: int) -> None:
    # posix_fallocate refuses a length of zero, and is not on every platform.
    if size == 0 or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(target, 0, size)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def _append(part: Path, size: int, target: int) -> None:
    with open(part, "rb", buffering=0) as handle:
        source = handle.fileno()
        position = 0
        # A way that fails or stops early leaves `position` exact, so the next way continues from there.
        for move in (_by_copy_file_range, _by_sendfile, _by_read_write):
            position += _move_all(move, source, target, position, size)
            if position == size:
                break
        # A longer file means that another process is writing, and the copy may end within a token.
        if position != size or os.fstat(source).st_size != size:
            raise FormatError(
                f"{part}: had {count_of(size, 'byte')} when the copy began, but has {os.fstat(source).st_size} now "
                f"({position} copied), so another process writes to it"
            )


def _move_all(move: _Mover, source: int, target: int, start: int, size: int) -> int:
    """Move bytes ``start`` to ``size`` of ``source`` to the position of ``target``; the bytes that could be moved."""
    position = start
    while position < size:
        try:
            moved = move(source, target, position, min(size - position, _CALL_BYTES))
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                break
            raise
        # Zero is the end of the file, but copy_file_range also gives it on file systems that it cannot read.
        if moved == 0:
            break
        position += moved
    return position - start


def _by_copy_file_range(source: int, target: int, position: int, count: int) -> int:
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, "copy_file_range is not available on this platform")
    return os.copy_file_range(source, target, count, offset_src=position)


def _by_sendfile(source: int, target: int, position: int, count: int) -> int:
    return os.sendfile(target, source, position, count)


def _by_read_write(source: int, target: int, position: int, count: int) -> int:
    # A bounded block, and os.write may take less than it was given.
    return os.write(target, os.pread(source, min(count, 1 << 20), position))


def expanded(path: str | Path, name: str = "") -> Path:
    """The path with a home folder for `~`; ConfigError, beginning with `name`, for one that no file can have."""
    where = f"{name}: " if name else ""
    if "\0" in str(path):
        raise ConfigError(f"{where}{str(path)!r}: a path cannot contain NUL")
    try:
        expanded_path = Path(path).expanduser()
        # only tried: the system would be asked for it in these bytes
        os.fsencode(expanded_path)
    except RuntimeError:
        raise ConfigError(
            f"{where}{str(path)!r}: the home folder of `{Path(path).parts[0]}` is unknown. Write the full path, or "
            f"`./{path}` for a folder of that name"
        ) from None
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise ConfigError(f"{where}{str(path)!r}: {error}") from None
    return expanded_path
