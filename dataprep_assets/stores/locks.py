"""File locks, and safe opening of files in folders that several users can write to.

The kernel releases a lock when its process ends, even after a kill. This project's own files (locks, parts, drafts)
have predictable names, so another user may have planted a link there.

Entry points: :func:`try_lock`, :func:`lock_own_file`, :func:`open_own_file`, :func:`refuse_link`.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dataprep_assets.errors import IntegrityError, TransferError
from dataprep_assets.stores.retry import StoppedError

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}

# Maximum wait for another process that uses the same file, and the interval between checks, in seconds.
_LOCK_SECONDS = 3600.0
_POLL_SECONDS = 0.05


def try_lock(file: int | IO[Any], *, required: bool = True) -> bool:
    """Try to take the exclusive lock of an open file and return whether it is held now.

    On network file systems without locks, raises OSError if a lock is `required` and returns True otherwise.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if required or error.errno not in _NO_LOCKS:
            raise
    return True


@contextmanager
def lock_own_file(path: Path, label: str, stopped: Callable[[], bool] = lambda: False) -> Iterator[tuple[int, bool]]:
    """Create or open one of the project's own files and lock it.

    Yields its descriptor and whether another process held the lock before. ``label`` names the work in messages.
    Raises StoppedError once ``stopped()`` is true, and TransferError if another process holds the lock for an hour.
    """
    deadline = time.monotonic() + _LOCK_SECONDS
    has_waited = False
    while True:
        descriptor = open_own_file(path, os.O_RDWR | os.O_CREAT)
        try:
            # Check that the path still names this file, because the previous owner may have renamed or removed the file
            # after this process opened it.
            if try_lock(descriptor, required=False) and is_same_file(descriptor, path):
                yield descriptor, has_waited
                return
        finally:
            os.close(descriptor)
        has_waited = True
        if stopped():
            raise StoppedError(f"{label}: stopped while another process writes {path}")
        if time.monotonic() > deadline:
            raise TransferError(
                f"{label}: another process is still writing {path} after {_LOCK_SECONDS:.0f} s. Run the command again "
                "when that process has finished"
            )
        time.sleep(_POLL_SECONDS)


def is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether `path` still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def open_own_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open one of the project's own files; usable as `opener` of `open`.

    Takes the arguments of `os.open`; `mode` is reduced by the umask. Raises IntegrityError if the name is a link or not
    a regular file, without following or writing it.
    """
    try:
        # Set O_NONBLOCK, because opening a pipe otherwise waits for its other end.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        # ELOOP: the path is a link. ENXIO: it is a pipe without a reader, or a socket.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise _build_planted_error(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _build_planted_error(path)
    return descriptor


def refuse_link(folder: Path) -> None:
    """Raise IntegrityError if the path of one of the project's own folders is a link."""
    if folder.is_symlink():
        raise _build_planted_error(folder)


def _build_planted_error(path: str | os.PathLike[str]) -> IntegrityError:
    return IntegrityError(
        f"{os.fspath(path)}: is a link or not a regular file, although this path is reserved for dataprep, and was "
        "not read. Find out who created it, remove it, and run the command again"
    )
