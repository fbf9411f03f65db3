"""Locks of files that are asked for without waiting. The kernel releases them when their process ends, however it ends.

Entry point: :func:`try_lock`.
"""

import errno
import fcntl
from typing import IO, Any

__all__ = ["try_lock"]

_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def try_lock(file: int | IO[Any], *, required: bool = True) -> bool:
    """Whether the exclusive lock of an open file was free, and is held now.

    Some network file systems have no locks: OSError there if one is `required`, else it counts as free.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if required or error.errno not in _NO_LOCKS:
            raise
    return True
