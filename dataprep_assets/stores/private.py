"""Files that only their owner can read: those of a sensitive dataset.

Everything that this project, a library or Dagster writes inside of `private_files` is private: folders 0700, files
0600. This uses the process's umask, because a mode that is set after a file was created comes too late, and libraries
create files by themselves. Modes that are set explicitly are never wider than what the umask left (`placing`,
`integrity.verified_copies`).

Entry points: `private_files`, `privately`, `are_private`, `closed_folder`, `open_to_others`.
"""

import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dataprep_assets.errors import ConfigError

T = TypeVar("T")

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
    """Whether files written now are private."""
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
            f"{folder}: it is another user's, or the file system gives what is written another owner (as NFS with "
            "root_squash does), and the data are sensitive. Use another folder"
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
    """Whether others cannot reach what `path` leads to, because it or a folder above it is restricted to its owner."""
    path = path.resolve()
    return any(not folder.stat().st_mode & OTHERS for folder in (path, *path.parents) if folder.is_dir())
