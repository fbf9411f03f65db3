"""Atomic commit of an artifact directory on a local file system.

An artifact is built in a staging directory on the same file system and appears under its name by one rename,
with its receipt inside. An older artifact is exchanged in the same system call, so that a reader sees the old artifact
or the new one, never a mixture and never nothing; a run that fails before the rename changes nothing.

Staging is named after what it builds (`.staging/<name>-<key>`), so that a rerun after a kill finds the parts that
were finished. A lock file beside it, held with `flock`, is released by the kernel when its process dies: there is no
stale lock to clean. It holds the name of the staging that was begun last, so that a build finds what is left of another
key without listing the area, which has the locks of thousands of shards.
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
from dataprep_assets.stores.locks import own_file, refuse_link, try_lock

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# Errors for a disk that is full or cannot be written.
#
# Entry points: `writing`, `refusal_error`.

_FULL = {errno.ENOSPC, errno.EDQUOT}


@contextmanager
def writing(folder: Path, needed: int | None = None) -> Iterator[None]:
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
        raise refusal_error(error, folder, needed) from error


def refusal_error(error: OSError, folder: Path, needed: int | None = None) -> DataprepError:
    """The project's error for a refusal of the operating system, with one sentence that says what to do.

    Args:
        error: The error of the operating system.
        folder: Where it happened, unless the error itself names a file.
        needed: Bytes that were to be written there, if known.
    """
    path = Path(str(error.filename)) if error.filename else folder
    if error.errno not in _FULL:
        return DataprepError(f"{path}: {error.strerror or error}. Correct the path or its permissions, then run again")
    # free space can only be asked of a folder that exists, and this one may not have been made yet
    ancestor = folder.absolute()
    while not ancestor.exists():
        ancestor = ancestor.parent
    need = "" if needed is None else f"{count_of(needed, 'byte is', 'bytes are')} needed, "
    full = "the disk is full" if error.errno == errno.ENOSPC else "the quota is exhausted"
    return DiskFullError(
        f"{path}: {full}: {need}{count_of(shutil.disk_usage(ancestor).free, 'byte is', 'bytes are')} free. Finished "
        "artifacts are kept. Free space there or choose a different disk (DATAPREP_ROOT), then run again"
    )


STAGING = ".staging"
SPOOLS = f"{STAGING}/spools"
"""Folder in a dataset's: the parts `shard.number` of shards that are being made, each an artifact, on this machine."""
_ASIDE = ".aside-"
_STAGED = re.compile(r"(.+)-[0-9a-f]{16}")
_NEW = b"\n"
"""The content of a lock file before anything was staged."""
# Linux's own numbers: what C knows as macros, ctypes cannot ask for.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# Seconds. Writing a small file takes milliseconds; a draft of this age no longer has a writer.
_DRAFT_SECONDS = 600.0
_DRAFT = re.compile(r"\..+\.\d+\.tmp")
_discarded: dict[Path, float] = {}
"""Folder → when this process last removed old drafts from it, by the clock of its file system."""
_SYNCED_AT_ONCE = 8


def fsync_tree(path: Path) -> None:
    """Make every regular file and directory below `path` durable.

    They are asked for at once: a journal commits together what waits for it together, one after another each waits
    for a commit of its own.
    """
    # each folder, too (the empty name): a file whose entry is lost in a crash is lost itself
    paths = [Path(folder, name) for folder, _, names in os.walk(path) for name in ("", *names)]
    for _ in _threads(os.getpid()).map(partial(fsync_path, flags=os.O_NOFOLLOW), paths):
        pass


@lru_cache(maxsize=1)
def _threads(process: int) -> "ThreadPoolExecutor":
    """Those of this process, which wait for the disk: a fork has none of its parent's."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(_SYNCED_AT_ONCE)


def write_atomically(path: Path, data: bytes, *, durably: bool = True) -> None:
    """Replace a small file by one rename; its old content stays until the new one is durable.

    Unless `durably`, a crash of the machine may leave the new file empty or cut short; nothing then waits for the disk.
    That is for files which their readers check and can do without. A killed process harms the file in neither case.

    Drafts that killed writers left in the folder are removed by age: a process number says nothing about a writer on
    another machine.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=own_file) as file:
            file.write(data)
            file.flush()
            if durably:
                os.fsync(file.fileno())
            write_time = os.fstat(file.fileno()).st_mtime
        _discard_old_drafts(path.parent, write_time)
        os.replace(temporary, path)
    finally:
        # there after an error alone: the rename takes it along
        temporary.unlink(missing_ok=True)
    if durably:
        fsync_directory(path.parent)


def _discard_old_drafts(folder: Path, now: float) -> None:
    """Remove the old drafts of a folder, at most once a process in the time after which a draft is old.

    Not with every write: a folder of verdicts has a file for each of thousands of shards. `now` is the time of the file
    system's clock, which may not be this machine's.
    """
    if now < _discarded.get(folder, -math.inf) + _DRAFT_SECONDS:
        return
    _discarded[folder] = now
    for draft in folder.glob(".*.tmp"):
        with suppress(FileNotFoundError):
            if _DRAFT.fullmatch(draft.name) and draft.stat().st_mtime < now - _DRAFT_SECONDS:
                draft.unlink()


def _exchange(first: Path, second: Path) -> bool:
    """Swap two directory entries in one system call; returns False if the kernel or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        # a C library without this function, such as glibc before 2.28
        return False
    result = renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if result == 0:
        return True
    code = ctypes.get_errno()
    # the kernel does not know the call, or the file system does not know the flag: then there is another way
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def publish_directory(staged: Path, final: Path) -> None:
    """Make `staged` appear as `final`, replacing what was there; durable on return.

    If the file system cannot exchange, the old directory is set aside first and put back by
    `recover_aside` if the process dies between the two renames.
    """
    # Before the rename: a name that survives a crash must not lead to files that did not.
    fsync_tree(staged)
    final.parent.mkdir(parents=True, exist_ok=True)
    # `lexists`, because a link to a disk that is not mounted is in the way as well
    if not os.path.lexists(final):
        os.rename(staged, final)
    elif _exchange(staged, final):
        # before the old files go: a crash may undo an exchange that is not durable, and then they are the artifact
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
    """Remove what stood where an artifact is; of a link that somebody made there the link alone."""
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
def staging(final: Path, key: str) -> Iterator[Path]:
    """A locked staging directory for the artifact `final` with the wanted `key`.

    Yields the directory, holding whatever an earlier run with the same key left in it. Waits while another
    process builds the same artifact. Staging of the same artifact under other keys is swept: it can never be used.
    The directory is kept on failure (that is what makes a rerun cheap) and is gone after `publish_directory`.
    """
    area = final.parent / STAGING
    area.mkdir(parents=True, exist_ok=True)
    refuse_link(area)
    with writing(final), _lock_file(final) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # under the lock: whoever holds it may be between the two renames of a replacement
        recover_aside(final)
        directory = area / f"{final.name}-{key[:16]}"
        lock_text = lock.read()
        for old_directory in _find_staging(final, lock_text):
            if old_directory != directory:
                shutil.rmtree(old_directory)
        # Named before it is made: a kill in between leaves a name without a directory, which costs nothing. The other
        # way round it would leave a directory of which the next build does not know.
        if lock_text != (name := directory.name.encode() + _NEW):
            lock.seek(0)
            lock.truncate()
            lock.write(name)
            lock.flush()
        directory.mkdir(exist_ok=True)
        refuse_link(directory)
        yield directory


@contextmanager
def alone(final: Path) -> Iterator[bool]:
    """Yields whether no build of this directory is under way on this machine; none can begin inside the block."""
    (final.parent / STAGING).mkdir(parents=True, exist_ok=True)
    with _lock_file(final) as lock:
        yield try_lock(lock)


def remove_directory(final: Path, first: str) -> None:
    """Remove a directory for which `alone` is held, and what killed builds left beside it.

    The file `first` is removed before all others, durably: what a kill leaves cannot be taken for a complete artifact.
    """
    recover_aside(final)
    if final.is_symlink():
        final.unlink()
    elif final.is_dir():
        (final / first).unlink(missing_ok=True)
        fsync_directory(final)
        shutil.rmtree(final)
    for staged_directory in _list_staged(final.parent / STAGING, {final.name}):
        shutil.rmtree(staged_directory)
    if final.parent.is_dir():
        fsync_directory(final.parent)


def sweep(finals: Iterable[Path]) -> None:
    """Remove what a killed run left beside finished artifacts: staging under any key, a directory set aside.

    For artifacts just found current, whose staging will not be opened again: a kill can come between the rename that
    publishes and the removal of the staging directory. Directories that another process is building are left alone.
    """
    by_parent: dict[Path, dict[str, Path]] = {}
    for final in finals:
        by_parent.setdefault(final.parent, {})[final.name] = final
    for parent, names in by_parent.items():
        if len(names) == 1:  # a worker sweeps one artifact at a time
            (final,) = names.values()
            if _something_left(final):
                _sweep_one(final)
            continue
        leftover_names = {_final_name(staged_directory) for staged_directory in _list_staged(parent / STAGING, names)}
        leftover_names |= {
            name for entry in parent.glob(f"{_ASIDE}*") if (name := entry.name.removeprefix(_ASIDE)) in names
        }
        for name in leftover_names:
            _sweep_one(names[name])


def _something_left(final: Path) -> bool:
    """Return whether a killed run left something beside a directory, without listing what is beside all others."""
    if final.with_name(f"{_ASIDE}{final.name}").exists():
        return True
    try:
        with open(_lock_path(final), "rb", opener=own_file) as lock:
            return bool(_find_staging(final, lock.read()))
    except FileNotFoundError:
        # without a lock file nothing says what was begun
        return bool(_list_staged(final.parent / STAGING, {final.name}))


def _sweep_one(final: Path) -> None:
    with alone(final) as mine:
        if not mine:
            return
        recover_aside(final)
        for staged_directory in _list_staged(final.parent / STAGING, {final.name}):
            shutil.rmtree(staged_directory)


@contextmanager
def _lock_file(final: Path) -> Iterator[BinaryIO]:
    """The lock file of a directory, open; it is made if there is none."""
    path = _lock_path(final)
    with (
        suppress(FileExistsError),
        open(path, "xb", opener=lambda name, flags: own_file(name, flags | os.O_APPEND)) as new,
    ):
        new.write(_NEW)  # after whatever another process, which may hold the lock already, has written
    with open(path, "r+b", opener=own_file) as lock:
        yield lock


def _lock_path(final: Path) -> Path:
    return final.parent / STAGING / f"{final.name}.lock"


def _find_staging(final: Path, said: bytes) -> list[Path]:
    """The staging directories that are left of this one's builds, as its lock file says."""
    area = final.parent / STAGING
    if not said:  # of a version that wrote nothing into it, or cut short
        return _list_staged(area, {final.name})
    # what is named is removed: a damaged file, or one that somebody else wrote, must not lead elsewhere
    of_this = re.compile(re.escape(final.name) + "-[^/]{16}")
    candidates = [area / name for name in said.decode(errors="replace").split() if of_this.fullmatch(name)]
    return [path for path in candidates if path.is_dir() and not path.is_symlink()]


def _final_name(staged: Path) -> str:
    return staged.name[:-17]  # without `-` and the 16 digits of the key


def left_over(parent: Path) -> set[str]:
    """Names in this folder of which a killed build left something: staging under any key, a directory set aside."""
    with suppress(FileNotFoundError), os.scandir(parent / STAGING) as entries:
        staged = (_STAGED.fullmatch(e.name) for e in entries if e.is_dir(follow_symlinks=False))
        staged_names = {match[1] for match in staged if match}
        return staged_names | {path.name.removeprefix(_ASIDE) for path in parent.glob(f"{_ASIDE}*")}
    return set()


def _list_staged(area: Path, names: Container[str]) -> list[Path]:
    """Staging directories of the artifacts with these names, under any key, in one listing: there may be thousands."""
    try:
        with os.scandir(area) as entries:
            return [Path(e.path) for e in entries if e.name[:-17] in names and e.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
