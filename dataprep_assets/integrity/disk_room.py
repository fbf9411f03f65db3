"""Errors for a disk that is full or cannot be written.

Entry points: `writing`, `refusal_error`.
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dataprep_assets.errors import DataprepError, DiskFullError

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
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    wanted = "" if needed is None else f"{needed:,} bytes are to be written, "
    full = "the disk is full" if error.errno == errno.ENOSPC else "the quota is used up"
    return DiskFullError(
        f"{path}: {full}: {wanted}{shutil.disk_usage(there).free:,} bytes are free. What is finished "
        "is kept: free space there, or choose another disk (DATAPREP_ROOT), then run again"
    )
