"""A process that may write only to a few folders, like a container with a read-only root, by Linux' Landlock.

Landlock needs no privileges, does not restrict reading, and is inherited by child processes.
"""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_NO_NEW_PRIVILEGES = 38
# These are flags of linux/landlock.h: write, remove, create, link into another folder, and truncate.
_WRITES = 1 << 1 | sum(1 << bit for bit in range(4, 15))
_OF_FILES = 1 << 1 | 1 << 14
_LIBC = ctypes.CDLL(None, use_errno=True)


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def is_available() -> bool:
    """Return whether this kernel supports it; version 3 (Linux 6.2) is the first that restricts truncation."""
    return int(_LIBC.syscall(_CREATE, None, 0, 1)) >= 3


def confine(writable: Sequence[Path | str]) -> None:
    """Allow this process and its children to write only below these folders and to devices."""
    handled = ctypes.c_uint64(_WRITES)
    rules = _check(_LIBC.syscall(_CREATE, ctypes.byref(handled), ctypes.sizeof(handled), 0))
    for place in (*writable, "/dev"):
        handle = os.open(place, os.O_PATH | os.O_CLOEXEC)
        rule = _PathBeneath(_WRITES if Path(place).is_dir() else _OF_FILES, handle)
        _check(_LIBC.syscall(_ADD, rules, 1, ctypes.byref(rule), 0))
        os.close(handle)
    _check(_LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _check(_LIBC.syscall(_RESTRICT, rules, 0))
    os.close(rules)


def _check(answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer
