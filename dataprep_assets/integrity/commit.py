"""Atomic commit of an artifact directory on a local file system.

An artifact is built in a staging directory on the same file system and appears under its name by one rename, with its
receipt inside. An older artifact is exchanged in the same system call. A reader therefore sees either the old or the
new artifact, never a mixture and never a gap. A run that fails before the rename changes nothing.

Staging is named after the artifact that it builds (`.staging/<name>-<key>`), so that a rerun after a kill finds the
finished parts. The lock file next to it is held with `flock`, which the kernel releases when the process dies, so stale
locks do not exist. The lock file contains the name of the latest staging directory. A build therefore finds staging of
another key without listing the area, which has the locks of thousands of shards.
"""

import ctypes
import errno
import fcntl
import math
import os
import re
import shutil
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from dataprep_assets.errors import DataprepError, DiskFullError, count_of
from dataprep_assets.stores.files import fsync_directory, fsync_path
from dataprep_assets.stores.locks import open_own_file, refuse_link, try_lock

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# Errors for a disk that is full or not writable.
#
# Entry points: `convert_disk_errors`, `translate_os_error`.

_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def convert_disk_errors(folder: Path, needed: int | None = None) -> Iterator[None]:
    """Turn an OSError for lack of space inside the block into a DiskFullError.

    Args:
        folder: The folder that is written to.
        needed: Bytes to be written there, if known.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise translate_os_error(error, folder, needed) from error


def translate_os_error(error: OSError, folder: Path, needed: int | None = None) -> DataprepError:
    """Return the project's error for an error of the operating system, with a remedy.

    Args:
        error: The error of the operating system.
        folder: Folder to report, unless the error itself names a file.
        needed: Bytes that were to be written there, if known.
    """
    path = Path(str(error.filename)) if error.filename else folder
    if error.errno not in _FULL:
        return DataprepError(
            f"{path}: {error.strerror or error}. Correct the path or its permissions, then run the command again"
        )
    # Measure the free space in the nearest existing folder, because `folder` may not exist yet.
    ancestor = folder.absolute()
    while not ancestor.exists():
        ancestor = ancestor.parent
    need = "" if needed is None else f"{count_of(needed, 'byte is', 'bytes are')} needed, "
    full = "the disk is full" if error.errno == errno.ENOSPC else "the quota is exhausted"
    return DiskFullError(
        f"{path}: {full}: {need}{count_of(shutil.disk_usage(ancestor).free, 'byte is', 'bytes are')} free. Finished "
        "artifacts are kept. Free space there or choose a different disk (DATAPREP_ROOT), then run the command again"
    )


STAGING = ".staging"
SPOOLS = f"{STAGING}/spools"
"""Folder, in a dataset's folder, of the local parts `shard.number` of unfinished shards. Each part is an artifact."""
_ASIDE = ".aside-"
_STAGED = re.compile(r"(.+)-[0-9a-f]{16}")
_NEW = b"\n"
"""The content of a lock file before anything was staged."""
# Values of C macros on Linux, which ctypes cannot look up.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# Age in seconds above which a draft is removed. Writing a small file takes milliseconds, so the writer of an older
# draft has died.
_DRAFT_SECONDS = 600.0
_DRAFT = re.compile(r"\..+\.\d+\.tmp")
_discarded: dict[Path, float] = {}
"""Folder → time at which this process last removed old drafts from it, by the clock of its file system."""
_SYNCED_AT_ONCE = 8


def fsync_tree(path: Path) -> None:
    """Make every regular file and directory below `path` durable.

    All are synchronized concurrently, because a journal commits all waiting requests together. One after another, each
    request would wait for its own commit.
    """
    # Include folders (the empty name), because a file whose directory entry is not durable is lost in a crash.
    paths = [Path(folder, name) for folder, _, names in os.walk(path) for name in ("", *names)]
    for _ in _get_disk_threads(os.getpid()).map(partial(fsync_path, flags=os.O_NOFOLLOW), paths):
        pass


@lru_cache(maxsize=1)
def _get_disk_threads(process: int) -> "ThreadPoolExecutor":
    """Return the process's threads that wait for the disk. A fork needs new ones, because it inherits no threads."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_SYNCED_AT_ONCE)


def write_atomically(path: Path, data: bytes, *, durably: bool = True) -> None:
    """Replace a small file by one rename; its old content stays until the new content is durable.

    Without `durably`, nothing waits for the disk, and a crash of the machine may leave the new file empty or truncated.
    Use this for files that readers validate and can do without. In both cases, a killed process does not damage the
    file.

    Drafts that killed writers left in the folder are removed by age, because a process number does not identify a
    writer on another machine.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=open_own_file) as file:
            file.write(data)
            file.flush()
            if durably:
                os.fsync(file.fileno())
            write_time = os.fstat(file.fileno()).st_mtime
        _discard_old_drafts(path.parent, write_time)
        os.replace(temporary, path)
    finally:
        # Remove the draft after an error. After a success, the rename has already moved it.
        temporary.unlink(missing_ok=True)
    if durably:
        fsync_directory(path.parent)


def _discard_old_drafts(folder: Path, now: float) -> None:
    """Remove old drafts from a folder, at most once per process in `_DRAFT_SECONDS`.

    Checking at every write would be slow, because a folder of verdicts has a file for each of thousands of shards.
    `now` is the time of the file system's clock, which may differ from this machine's clock.
    """
    if now < _discarded.get(folder, -math.inf) + _DRAFT_SECONDS:
        return
    _discarded[folder] = now
    for draft in folder.glob(".*.tmp"):
        with suppress(FileNotFoundError):
            if _DRAFT.fullmatch(draft.name) and draft.stat().st_mtime < now - _DRAFT_SECONDS:
                draft.unlink()


def _swap_entries(first_path: Path, second_path: Path) -> bool:
    """Swap two directory entries in one system call; return False if the kernel or file system does not support it."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        # Old C libraries (glibc before 2.28) and macOS lack this function.
        return False
    result = renameat2(_AT_FDCWD, os.fsencode(first_path), _AT_FDCWD, os.fsencode(second_path), _RENAME_EXCHANGE)
    if result == 0:
        return True
    code = ctypes.get_errno()
    # The kernel lacks the call, or the file system lacks the flag. The caller then uses two renames.
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(second_path))


def publish_directory(staged: Path, final: Path) -> None:
    """Make `staged` appear as `final`, replacing an existing directory; durable on return.

    If the file system does not support an exchange, the old directory is first set aside. If the process dies between
    the two renames, `recover_aside` restores it.
    """
    # Make files durable before the rename, so that a name that survives a crash never refers to lost files.
    fsync_tree(staged)
    final.parent.mkdir(parents=True, exist_ok=True)
    # Use `lexists`, because `exists` is false for a link to an unmounted disk, and such a link must also be replaced.
    if not os.path.lexists(final):
        os.rename(staged, final)
    elif _swap_entries(staged, final):
        # A crash may undo an exchange that is not durable, so remove the old files only after this call.
        fsync_directory(final.parent)
        _discard(staged)
    else:
        aside = final.with_name(f"{_ASIDE}{final.name}")
        os.rename(final, aside)
        os.rename(staged, final)
        fsync_directory(final.parent)
        _discard(aside)
    fsync_directory(final.parent)


def _discard(directory: Path) -> None:
    """Remove the entry at an artifact's path. If it is a user's link, only the link is removed."""
    if directory.is_symlink():
        directory.unlink()
    else:
        shutil.rmtree(directory)


def recover_aside(final: Path) -> None:
    """Finish or undo a replacement that was killed between its two renames."""
    aside = final.with_name(f"{_ASIDE}{final.name}")
    if not os.path.lexists(aside):
        return
    if os.path.lexists(final):
        _discard(aside)
    else:
        os.rename(aside, final)


@contextmanager
def open_staging(final: Path, key: str) -> Iterator[Path]:
    """Yield a locked staging directory for the artifact `final` with this `key`.

    The directory contains the files that an earlier run with the same key left in it. Waits while another process
    builds the same artifact. Staging of the same artifact under other keys is removed, because it can never be used.
    After a failure, the directory is kept, so that a rerun is cheap. `publish_directory` moves it.
    """
    area = final.parent / STAGING
    area.mkdir(parents=True, exist_ok=True)
    refuse_link(area)
    with convert_disk_errors(final), _lock_file(final) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Recover only under the lock, because another holder may be between the two renames of a replacement.
        recover_aside(final)
        directory = area / f"{final.name}-{key[:16]}"
        lock_text = lock.read()
        for old_directory in _find_staging(final, lock_text):
            if old_directory != directory:
                shutil.rmtree(old_directory)
        # Write the name before creating the directory. A kill in between leaves a name without a directory, which is
        # harmless. In the reverse order, it would leave a directory that the next build does not find.
        if lock_text != (name := directory.name.encode() + _NEW):
            lock.seek(0)
            lock.truncate()
            lock.write(name)
            lock.flush()
        directory.mkdir(exist_ok=True)
        refuse_link(directory)
        yield directory


@contextmanager
def hold_alone(final: Path) -> Iterator[bool]:
    """Yield whether no build of this directory is running on this machine; none can start inside the block."""
    (final.parent / STAGING).mkdir(parents=True, exist_ok=True)
    with _lock_file(final) as lock:
        yield try_lock(lock)


def remove_directory(final: Path, first_name: str) -> None:
    """Remove a directory for which `hold_alone` is held, and the files that killed builds left next to it.

    The file `first_name` is removed before all others, durably, so that the files left by a kill never look like a
    complete artifact.
    """
    recover_aside(final)
    if final.is_symlink():
        final.unlink()
    elif final.is_dir():
        (final / first_name).unlink(missing_ok=True)
        fsync_directory(final)
        shutil.rmtree(final)
    for staged_directory in _list_staged(final.parent / STAGING, {final.name}):
        shutil.rmtree(staged_directory)
    if final.parent.is_dir():
        fsync_directory(final.parent)


def sweep(finals: Iterable[Path]) -> None:
    """Remove the files of killed runs next to finished artifacts: staging under any key, and directories set aside.

    Call this only for artifacts that were just found current, because their staging will not be opened again. A process
    may be killed between the rename that publishes and the removal of the staging directory. Directories that another
    process is building are skipped.
    """
    by_parent: dict[Path, dict[str, Path]] = {}
    for final in finals:
        by_parent.setdefault(final.parent, {})[final.name] = final
    for parent, names in by_parent.items():
        if len(names) == 1:  # a fast path for workers, which sweep one artifact at a time
            (final,) = names.values()
            if _has_leftovers(final):
                _sweep_one(final)
            continue
        leftover_names = {
            _find_final_name(staged_directory) for staged_directory in _list_staged(parent / STAGING, names)
        }
        leftover_names |= {
            name for entry in parent.glob(f"{_ASIDE}*") if (name := entry.name.removeprefix(_ASIDE)) in names
        }
        for name in leftover_names:
            _sweep_one(names[name])


def _has_leftovers(final: Path) -> bool:
    """Return whether a killed run left files next to a directory, without listing the whole area."""
    if final.with_name(f"{_ASIDE}{final.name}").exists():
        return True
    try:
        with open(_lock_path(final), "rb", opener=open_own_file) as lock:
            return bool(_find_staging(final, lock.read()))
    except FileNotFoundError:
        # Without a lock file, only a listing shows the staging directories.
        return bool(_list_staged(final.parent / STAGING, {final.name}))


def _sweep_one(final: Path) -> None:
    with hold_alone(final) as is_locked:
        if not is_locked:
            return
        recover_aside(final)
        for staged_directory in _list_staged(final.parent / STAGING, {final.name}):
            shutil.rmtree(staged_directory)


@contextmanager
def _lock_file(final: Path) -> Iterator[BinaryIO]:
    """Open the lock file of a directory, creating it if it does not exist."""
    path = _lock_path(final)
    with (
        suppress(FileExistsError),
        open(path, "xb", opener=lambda name, flags: open_own_file(name, flags | os.O_APPEND)) as new,
    ):
        new.write(_NEW)  # append, because another process may already hold the lock and have written to the file
    with open(path, "r+b", opener=open_own_file) as lock:
        yield lock


def _lock_path(final: Path) -> Path:
    return final.parent / STAGING / f"{final.name}.lock"


def _find_staging(final: Path, lock_content: bytes) -> list[Path]:
    """Return the staging directories left by builds of this artifact, according to its lock file."""
    area = final.parent / STAGING
    # An empty lock file does not name the directories, because it was truncated or was written by an older version.
    if not lock_content:
        return _list_staged(area, {final.name})
    # The named directories are removed, so names in a damaged or forged file must not match other paths.
    of_this = re.compile(re.escape(final.name) + "-[^/]{16}")
    candidates = [area / name for name in lock_content.decode(errors="replace").split() if of_this.fullmatch(name)]
    return [path for path in candidates if path.is_dir() and not path.is_symlink()]


def _find_final_name(staged: Path) -> str:
    return staged.name[:-17]  # without the `-` and the 16 digits of the key


def list_leftovers(parent: Path) -> set[str]:
    """Return names in this folder for which a killed build left staging under any key or a directory set aside."""
    with suppress(FileNotFoundError), os.scandir(parent / STAGING) as entries:
        staged = (_STAGED.fullmatch(e.name) for e in entries if e.is_dir(follow_symlinks=False))
        staged_names = {match[1] for match in staged if match}
        return staged_names | {path.name.removeprefix(_ASIDE) for path in parent.glob(f"{_ASIDE}*")}
    return set()


def _list_staged(area: Path, names: Container[str]) -> list[Path]:
    """Return staging directories of these artifacts under any key, from one listing, because there may be thousands."""
    try:
        with os.scandir(area) as entries:
            return [Path(e.path) for e in entries if e.name[:-17] in names and e.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
