"""Utilities for local files: links and concatenations by the kernel, digests, and files that only their owner can read.

Entry points: `concatenate`, `create_file`, `create_durably`, `open_regular`, `fsync_directory`, `fsync_path`,
`read_boot_id`, `identify_version`, `cache_by_file`; `sha256_file`, `digest_value`, `SourceDigests`; `private_files`,
`make_private_folder`; `check_headroom`, `expand_path`, `explain_invalid_name`.
"""

import errno
import hashlib
import hmac
import json
import os
import re
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

from dataprep_assets.bounds import report_progress
from dataprep_assets.errors import ConfigError, CorruptSourceError, FormatError, SourceError, count_of
from dataprep_assets.stores.locks import open_own_file
from dataprep_assets.table import format_share

T = TypeVar("T")


def check_headroom(path: Path, needed_bytes: int, headroom: float = 0.2) -> None:
    """Raise SourceError unless the disk of ``path`` has enough free space for ``needed_bytes``.

    ``headroom`` is the additional free space that is required, as a fraction of ``needed_bytes``.
    """
    if needed_bytes <= 0:
        return
    folder = path.absolute()
    # Use the nearest existing parent, because the folder may not exist yet and will be on the disk of that parent.
    while not folder.exists():
        folder = folder.parent
    required_bytes = needed_bytes + int(needed_bytes * headroom)
    free = shutil.disk_usage(folder).free
    if free < required_bytes:
        raise SourceError(
            f"{path}: not enough free space: the download of {count_of(needed_bytes, 'byte')} needs "
            f"{required_bytes} with {format_share(headroom)} headroom, but {free} are free. Free "
            f"{count_of(required_bytes - free, 'byte')}, choose a larger disk (cache_dir or HF_HUB_CACHE), or download "
            "fewer files. Nothing was downloaded"
        )


# SHA-256 digests of source files, computed while they are read, and the keyed digests that replace them for sensitive
# data.


@dataclass(frozen=True)
class SourceDigests:
    """Digests that identify source files in a dataset's keys, receipts, listings and messages. Picklable.

    They are plain SHA-256 digests. For sensitive data they are the HMAC-SHA256 of that digest under `key`, because a
    plain digest would reveal to anyone with a copy of a file that it is among the sources.
    """

    key: bytes | None = field(default=None, repr=False)

    def digest_of(self, sha256: str) -> str:
        """Return the digest (64 hex digits) that identifies the file with this SHA-256 (hex)."""
        if self.key is None:
            return sha256
        # The prefix names the first kind of source that had keyed digests. Do not change it, because the digests of all
        # sensitive files would change, and their artifacts would be rebuilt.
        return hmac.digest(self.key, b"dataprep_assets/cohort_file\0" + sha256.encode(), "sha256").hex()


PLAIN = SourceDigests()
"""Plain SHA-256, for data that is not sensitive."""


def require_digest(label: str, actual: str, expected_digest: str, listing: str) -> None:
    """Raise CorruptSourceError if the bytes read from a file differ from the bytes listed in its snapshot.

    Args:
        label: Name of the file in messages.
        actual: SHA-256 of the bytes read.
        expected_digest: SHA-256 in the snapshot.
        listing: Asset to rematerialize if the file was changed intentionally.
    """
    if actual != expected_digest:
        raise CorruptSourceError(
            f"{label}: expected sha256 {expected_digest}, but found {actual}. The file changed "
            f"or is damaged. Rebuild {listing}"
        )


# Private files of sensitive datasets, which only their owner can read.
#
# Everything that this project, a library or Dagster writes inside `private_files` is private: folders have mode 0700,
# files 0600. `private_files` uses the process's umask, because libraries create files on their own, and a mode that is
# set after a file's creation comes too late. Modes that are set explicitly are never wider than the umask allows
# (`file_placement`, `integrity.verified_copies`).

OTHERS = 0o077
"""Permission bits of the group and of all other users."""

# Lock for the umask. The umask can be read only by setting it, so without a lock two threads could restore wrong
# values.
_lock = threading.Lock()
_entered: list[int] = []
"""Original umask for each active `private_files`; the last block to end restores it."""


@contextmanager
def private_files(is_wanted: bool = True) -> Iterator[None]:
    """Create files and folders that only their owner can read, in all threads of this process, if `is_wanted` is true.

    Processes started inside the block inherit the umask. While any thread is in such a block, files of other threads
    are private as well.
    """
    if not is_wanted:
        yield
        return
    with _lock:
        # The umask can be read only by setting it. Set the private one in between, because other threads may create
        # files at that moment.
        old_umask = os.umask(OTHERS)
        os.umask(OTHERS | old_umask)
        # Inside another block, `old_umask` is the private umask, so keep the outermost block's original umask.
        _entered.append(_entered[0] if _entered else old_umask)
    try:
        yield
    finally:
        with _lock:
            old_umask = _entered.pop()
            if not _entered:
                os.umask(old_umask)


def produce_privately(items: Iterable[T], is_wanted: bool = True) -> Iterator[T]:
    """Yield the items, producing each inside `private_files`; the consumer's code runs outside."""
    iterator = iter(items)
    while True:
        with private_files(is_wanted):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


def is_private_mode() -> bool:
    """Return whether files written now are private."""
    return bool(_entered)


def read_umask() -> int:
    """Return the umask of this process."""
    with _lock:
        # The umask can be read only by setting it. Set the private one in between, because other threads may create
        # files at that moment.
        mask = os.umask(OTHERS)
        os.umask(mask)
        return mask


def make_private_folder(folder: Path) -> None:
    """Create a folder and its parents with mode 0700, independent of the umask; restrict the folder if it exists.

    Existing parents are not changed. Use this in processes of other programs, such as a trainer, because their umask
    must not be changed. Raises ConfigError if another user owns the folder, because the owner can change its mode.
    """
    # Create the folders one by one, because `mkdir(parents=True)` sets the mode of only the last folder.
    for parent in reversed(folder.parents):
        parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    # Refuse another owner's folder, even as root, because the owner could open it to others again.
    if status.st_uid != os.geteuid():
        raise ConfigError(
            f"{folder}: belongs to another user, or the file system changes the owner of new files (like NFS with "
            "root_squash). Use a folder that belongs to your user, because the data is sensitive"
        )
    if status.st_mode & OTHERS:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS)


def list_open_to_others(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield each path at or below `root` that users other than the owner can read, write or enter, with its mode.

    Links are not followed, except `root` itself. Files that disappear during the walk are skipped.
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
            # Ignore links, because on Linux their mode is always 0777 and has no effect.
            if not stat.S_ISLNK(mode) and mode & OTHERS:
                yield path, stat.S_IMODE(mode)


def is_in_closed_folder(path: Path) -> bool:
    """Return whether other users cannot reach `path`, because only the owner can access it or a folder above it."""
    path = path.resolve()
    return any(not folder.stat().st_mode & OTHERS for folder in (path, *path.parents) if folder.is_dir())


# Digests of files and of values.
#
# All code that identifies content uses these functions, so that the same content has the same digest in every process
# and on every machine. Files are digested by the SHA-256 of their bytes, values by the SHA-256 of canonical JSON.

_BLOCK = 1 << 18
"""Bytes per read; a buffer of this size stays in the CPU's cache and is cheap to clear."""


def sha256_file(
    path: Path, start: int = 0, stop: int | None = None, opener: Callable[[str, int], int] | None = None
) -> str:
    """Return the SHA-256 (hex) of the bytes `[start, stop)` of the file `path`, by default of all bytes.

    `opener` is passed to `open`.
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0, opener=opener) as file:
        file.seek(start)
        remaining = (stop if stop is not None else 1 << 62) - start
        # Size the buffer to the file, because clearing a large buffer takes longer than hashing a small file.
        available_bytes = os.fstat(file.fileno()).st_size - start
        view = memoryview(bytearray(max(1, min(_BLOCK, available_bytes))))
        while remaining > 0 and (count := file.readinto(view[: min(remaining, len(view))])):
            digest.update(view[:count])
            # Report progress, because hashing terabytes takes longer than the limit after which `bounds` stops a
            # stalled process.
            report_progress()
            remaining -= count
    return digest.hexdigest()


def canonical_json(value: Any) -> bytes:
    """Return the canonical JSON of a value: sorted keys, no spaces, UTF-8, no NaN.

    Raises TypeError or ValueError for values without such a form.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_value(value: Any) -> str:
    """Return the SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


# Maximum bytes per system call; Linux itself moves just under 2 GiB at most.
_CALL_BYTES = 1 << 30

# Type of the functions that move bytes to the target's position: (source, target, position in source, count) → number
# of moved bytes.
_Mover = Callable[[int, int, int, int], int]

# Errors of a call that this kernel or file system does not support. A different call may work.
_UNSUPPORTED = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})

# Errors of refused hard links: different file systems, no permission, no support, too many links, or
# protected_hardlinks.
_UNLINKABLE = _UNSUPPORTED | {errno.EPERM, errno.EMLINK, errno.EACCES}

# Maximum number of cached results, and the age in nanoseconds (0.1 s) from which a file's time is reliable.
_KEPT, _SETTLED_NS = 20_000, 100_000_000


@lru_cache(maxsize=1)
def read_boot_id() -> str | None:
    """Return an identifier of the machine's current boot, or None if the system has none.

    Unsynced data survives the end of a process, but not a crash of the machine. State that records its boot id is
    therefore reliable without the cost of syncing it.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


def identify_version(path: str) -> str | None:
    """Return a string that changes when a file is replaced, without reading the file; None if it does not exist.

    The path is a `str`, because this is called for thousands of files and creating a Path takes longer than the call.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


def cache_by_file(read_file: Callable[[str], T]) -> Callable[[str], T]:
    """Return a cached version of `read_file`, which reads a path again only if its file has changed.

    A run of a thousand shards reads the same small files a dozen times. A file that changed less than 0.1 s ago is not
    cached, because file system clocks are too coarse to show a second change. Callers must not modify the results.
    """
    cache: dict[str, tuple[tuple[int, int, int], T]] = {}

    def reading(path: str) -> T:
        # Get the version before reading, so that the next call detects a change made in between.
        status = os.stat(path)
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        cached = cache.get(path)
        if cached is not None and cached[0] == version:
            return cached[1]
        value = read_file(path)
        if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
            if len(cache) >= _KEPT:
                cache.clear()
            cache[path] = (version, value)
        return value

    return reading


def fsync_directory(path: Path) -> None:
    """Sync the directory's entries to disk."""
    fsync_path(path, os.O_DIRECTORY)


def fsync_path(path: Path, flags: int) -> None:
    """Sync a file's content or a directory's entries to disk; `flags` of `os.open` restrict the type of the path."""
    handle = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_regular(path: str, flags: int) -> int:
    """Open a file if it is regular; usable as `opener` of `open`.

    Raises OSError if it is not. A link could lead anywhere, and opening a FIFO would wait for its writer.
    """
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return handle


@contextmanager
def create_file(path: Path) -> Iterator[BinaryIO]:
    """Create ``path`` as a new file for writing and reading; remove it if the block raises.

    Raises FileExistsError if the file exists, because truncating it would also truncate artifacts hard-linked to it.
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

    So a file with this name is always complete. An existing file is replaced.
    """
    draft = path.with_name(f"{path.name}.draft")
    try:
        with open(draft, "w+b", opener=open_own_file) as handle:
            yield cast(BinaryIO, handle)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def concatenate(parts: Sequence[Path], target: Path) -> int:
    """Join files in order into the new file ``target``, without passing their bytes through Python.

    A single part is hard-linked if the file system supports it. Both names then share one inode, so neither may be
    written in place. Otherwise the space is reserved first, so that a full disk fails early. Then the kernel copies
    with ``copy_file_range`` or ``sendfile``; plain reads and writes are the fallback. Works for any headerless format.

    Returns the size of ``target`` in bytes. Raises FileExistsError if ``target`` exists. Raises FormatError if a part
    changes size while it is copied; ``target`` is then removed.
    """
    if len(parts) == 1 and _link_file(parts[0], target):
        return target.stat().st_size
    sizes = [part.stat().st_size for part in parts]
    with create_file(target) as handle:
        _reserve(handle.fileno(), sum(sizes))
        for part, size in zip(parts, sizes, strict=True):
            _append_file(part, size, handle.fileno())
    return sum(sizes)


def _link_file(part: Path, target: Path) -> bool:
    try:
        # Resolve symbolic links, because link(2) would link the symlink itself, which breaks if its folder moves.
        os.link(os.path.realpath(part), target)
    except OSError as error:
        if error.errno in _UNLINKABLE:
            return False
        raise
    return True


def _reserve(target: int, size: int) -> None:
    # Reserve nothing where posix_fallocate does not exist, or for a length of zero, because posix_fallocate refuses
    # zero.
    if size == 0 or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(target, 0, size)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def _append_file(part: Path, size: int, target: int) -> None:
    with open(part, "rb", buffering=0) as handle:
        source = handle.fileno()
        position = 0
        # A method that fails or stops early leaves `position` exact, so the next method continues from there.
        for move in (_move_by_copy_file_range, _move_by_sendfile, _move_by_read_write):
            position += _move_all(move, source, target, position, size)
            if position == size:
                break
        # Also compare the file's current size, because a file that has grown is still being written, so the copy may
        # end within a token.
        if position != size or os.fstat(source).st_size != size:
            raise FormatError(
                f"{part}: changed during the copy from {count_of(size, 'byte')} to {os.fstat(source).st_size} "
                f"({position} copied), because another process writes to it. Run the command again when that process "
                "has finished"
            )


def _move_all(move: _Mover, source: int, target: int, start: int, size: int) -> int:
    """Move bytes ``start`` to ``size`` of ``source`` to the position of ``target``; return the number moved."""
    position = start
    while position < size:
        try:
            moved_bytes = move(source, target, position, min(size - position, _CALL_BYTES))
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                break
            raise
        # Stop at 0, which means the end of the file. copy_file_range also returns 0 on file systems that it cannot
        # read, so the next method then continues.
        if moved_bytes == 0:
            break
        position += moved_bytes
    return position - start


def _move_by_copy_file_range(source: int, target: int, position: int, count: int) -> int:
    if not hasattr(os, "copy_file_range"):
        raise OSError(errno.ENOSYS, "copy_file_range is not available on this platform")
    return os.copy_file_range(source, target, count, offset_src=position)


def _move_by_sendfile(source: int, target: int, position: int, count: int) -> int:
    return os.sendfile(target, source, position, count)


def _move_by_read_write(source: int, target: int, position: int, count: int) -> int:
    # Limit the block, because it is held in memory. `os.write` may write only a part of the block.
    return os.write(target, os.pread(source, min(count, 1 << 20), position))


def expand_path(path: str | Path, name: str = "") -> Path:
    """Expand `~` in a path; raise ConfigError, with `name` as prefix, if the path cannot exist."""
    prefix = f"{name}: " if name else ""
    if "\0" in str(path):
        raise ConfigError(f"{prefix}{str(path)!r}: a path cannot contain NUL")
    try:
        expanded_path = Path(path).expanduser()
        # Encode the path, because this raises UnicodeEncodeError if the system's encoding cannot represent the path.
        os.fsencode(expanded_path)
    except RuntimeError:
        raise ConfigError(
            f"{prefix}{str(path)!r}: the home folder of `{Path(path).parts[0]}` is unknown. Write the full path, or "
            f"`./{path}` for a folder of that name"
        ) from None
    except UnicodeEncodeError as error:
        raise ConfigError(f"{prefix}{str(path)!r}: {error}") from None
    return expanded_path


# --- names of files: keys in a store, and paths in a receipt, a manifest, a release or a lock
#
# The author of such a file may be malicious, and readers turn its names into paths, log lines and pages. Therefore
# `explain_invalid_name` checks each name once, where it is parsed; the parser adds the location to the message.

# Control characters, direction marks, overrides and line separators make a terminal show a name other than the real
# one. Lone surrogates, which Python uses for bytes of a file name that are not UTF-8, cannot be encoded as UTF-8.
_DECEIVING = re.compile("[\x00-\x1f\x7f-\x9f\N{ARABIC LETTER MARK}\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_OUTSIDE = frozenset(("", ".", ".."))


def explain_invalid_name(name: object) -> str:
    """Return the reason why a value cannot be the relative path of a file, or "" if it can.

    A valid path is a string of parts separated by `/`. No part is empty, `.` or `..`, so the path does not begin with
    `/`. Control characters, direction marks and lone surrogates are not allowed.
    """
    if not isinstance(name, str):
        return f"it is a {type(name).__name__}, not text"
    if not _OUTSIDE.isdisjoint(name.split("/")):
        return "it has an empty part, '.' or '..'"
    if (match := _DECEIVING.search(name)) is not None:
        if "\ud800" <= match[0] <= "\udfff":
            return "it is not valid UTF-8"
        return "it has a control character or a bidirectional mark"
    return ""
