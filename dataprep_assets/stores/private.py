"""Files that their owner alone may read: what is written of a sensitive dataset.

Everything that this project, a library or Dagster writes inside of `private_files` is made closed: folders 0700, files
0600. It is the process's umask, because a mode that is set after a file was made comes too late, and a library that
writes a file does not ask. Modes that are set on purpose are never wider than what the umask left (`placing`,
`integrity.copies`).

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

__all__ = [
    "OTHERS",
    "are_private",
    "closed_folder",
    "open_to_others",
    "private_files",
    "privately",
    "within_closed_folder",
]

T = TypeVar("T")

OTHERS = 0o077
"""The permissions of the group and of everybody else."""

_lock = threading.Lock()
_entered: list[int] = []
"""A umask for each `private_files` that is entered: the one before the first, which the last to leave puts back."""


@contextmanager
def private_files(wanted: bool = True) -> Iterator[None]:
    """Make files and folders that their owner alone may read, in all threads of this process; no-op unless `wanted`.

    Processes that are started meanwhile inherit it. While several threads are inside, what others write is closed too.
    """
    if not wanted:
        yield
        return
    with _lock:
        before = os.umask(OTHERS)
        os.umask(OTHERS | before)
        _entered.append(_entered[0] if _entered else before)
    try:
        yield
    finally:
        with _lock:
            before = _entered.pop()
            if not _entered:
                os.umask(before)


def privately(items: Iterable[T], wanted: bool = True) -> Iterator[T]:
    """The same items, each made inside of `private_files`; whoever takes them is outside of it."""
    iterator = iter(items)
    while True:
        with private_files(wanted):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


def are_private() -> bool:
    """Whether what is written now is made private."""
    return bool(_entered)


def closed_folder(folder: Path) -> None:
    """Make a folder that its owner alone may enter, whatever the umask, and its parents, too; close one that is there.

    Parents that are there stay as they are. For a process that is not the project's own, whose umask is not ours to
    change. Raises ConfigError for an open folder of another user.
    """
    for parent in reversed(folder.parents):
        parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not mode & OTHERS:
        return
    try:
        folder.chmod(mode & ~OTHERS)
    except PermissionError as error:
        raise ConfigError(
            f"{folder}: others than its owner may enter it, the data are sensitive, and it is another user's. Use "
            "another folder"
        ) from error


def open_to_others(root: Path) -> Iterator[tuple[Path, int]]:
    """What below `root`, itself included, others than its owner may read, write or enter, with its permissions.

    Links are not followed. What disappears meanwhile is left out.
    """
    try:
        kind = root.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(kind.st_mode):
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
            if not stat.S_ISLNK(mode) and mode & OTHERS:
                yield path, stat.S_IMODE(mode)


def within_closed_folder(path: Path) -> bool:
    """Whether others cannot come to what is below `path`: it, or a folder above it, is its owner's alone."""
    return any(not folder.stat().st_mode & OTHERS for folder in (path, *path.absolute().parents) if folder.is_dir())
