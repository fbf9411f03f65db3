"""The files of an unfinished download: ``<target>.part`` (preallocated) and ``<target>.part.json``.

The second file, the sidecar, says which parts of the first are complete. Three rules make a kill at any instant
harmless:

* the sidecar names a part only when its bytes are written. Synced parts are always trusted, others only within the
  boot that wrote them: a kill loses none of them, a crash of the machine may;
* one process at a time owns a ``.part`` (a kernel lock, which a killed owner cannot leave behind);
* the sidecar belongs to whoever owns the ``.part``, and is removed before it.

Entry points: :func:`owned_part`, :func:`read_sidecar`, :func:`write_sidecar`, :func:`allocate`, :func:`discard_partial`
and :func:`partial_paths`.
"""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import TransferError
from dataprep_assets.stores.files import boot_id
from dataprep_assets.stores.locks import own_file, try_lock
from dataprep_assets.stores.retry import StoppedError

# How long a second process waits for the first one to finish the same file, and how often it checks, in seconds.
_LOCK_SECONDS = 3600.0
_POLL_SECONDS = 0.05

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_NOT_SUPPORTED = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS, errno.ENODEV}


def partial_paths(target: Path) -> tuple[Path, Path]:
    """The ``.part`` and the sidecar that a download of ``target`` uses."""
    return target.with_name(target.name + ".part"), target.with_name(target.name + ".part.json")


def discard_partial(target: Path) -> None:
    """Remove what an interrupted download of ``target`` left, unless a download of it is under way in some process.

    Call it when the target itself is good.
    """
    part, sidecar = partial_paths(target)
    # Usually none of them is there: then no `.part` is made only to be locked and removed.
    if not any(path.exists() for path in (part, sidecar, _sidecar_draft(sidecar))):
        return
    # Under the lock of a `.part`, made if there is none: the sidecar belongs to whoever holds it.
    descriptor = own_file(part, os.O_RDWR | os.O_CREAT)
    try:
        if try_lock(descriptor, required=False) and _is_same_file(descriptor, part):
            remove_partial(target)
    finally:
        os.close(descriptor)


def remove_partial(target: Path) -> None:
    """Remove the sidecar and the ``.part``, which the caller has locked; in that order, for a kill in between."""
    part, sidecar = partial_paths(target)
    for path in (sidecar, _sidecar_draft(sidecar), part):
        path.unlink(missing_ok=True)


@contextmanager
def owned_part(part: Path, label: str, stopped: Callable[[], bool]) -> Iterator[tuple[int, bool]]:
    """The open, locked ``.part``, and whether another process had it first.

    ``label`` names the download in messages. Raises StoppedError once ``stopped()`` is true, TransferError when
    another process keeps the file for an hour.
    """
    deadline = time.monotonic() + _LOCK_SECONDS
    waited = False
    while True:
        descriptor = own_file(part, os.O_RDWR | os.O_CREAT)
        try:
            # The previous owner may have renamed or removed the file between our open and our lock.
            # Without locks in the file system, the digest still decides which bytes get the target's name.
            if try_lock(descriptor, required=False) and _is_same_file(descriptor, part):
                yield descriptor, waited
                return
        finally:
            os.close(descriptor)
        waited = True
        if stopped():
            raise StoppedError(f"{label}: stopped while another process writes {part}")
        if time.monotonic() > deadline:
            raise TransferError(f"{label}: another process is still writing {part} after {_LOCK_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def write_sidecar(
    sidecar: Path,
    size: int,
    etag: str | None,
    part_bytes: int,
    *,
    finished: Collection[int],
    synced: Collection[int],
    mode: int = 0o666,
) -> None:
    """Replace the sidecar by one rename.

    ``size`` (bytes of the object), ``etag`` (its version) and ``part_bytes`` (where it is cut) say which parts are
    meant; ``finished`` are the indices of those that are written, ``synced`` of those that are durable as well;
    ``mode`` is that of a new file, before the umask.
    """
    state = {
        "size": size,
        "etag": etag,
        "part_bytes": part_bytes,
        "finished": sorted(finished),
        "synced": sorted(synced),
        "boot": boot_id(),
    }
    # Not synced, because it is written after every part: whichever version a crash of the machine leaves, it names no
    # part as synced that was not, and one that cannot be read only costs the parts.
    draft = _sidecar_draft(sidecar)
    with open(draft, "w", encoding="utf-8", opener=partial(own_file, mode=mode)) as stream:
        json.dump(state, stream)
    os.replace(draft, sidecar)


def read_sidecar(sidecar: Path, size: int, etag: str | None, part_bytes: int) -> set[int]:
    """The indices of the finished parts; empty if the sidecar cannot be read or does not match.

    It must be for an object of the same ``size`` (bytes) and version (``etag``), cut into parts of ``part_bytes``.
    """
    try:
        state = json_of(sidecar.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return set()
    if not isinstance(state, dict) or not isinstance(state.get("finished"), list):
        return set()
    if (state.get("size"), state.get("etag"), state.get("part_bytes")) != (size, etag, part_bytes):
        return set()
    parts = range(-(-size // part_bytes))
    # A system without such an id has None for every boot, and these would be equal.
    same_boot = boot_id() is not None and state.get("boot") == boot_id()
    believed = state["finished"] if same_boot else state.get("synced", [])
    finished = {index for index in believed if isinstance(index, int)}
    # An index that the object cannot have makes the others doubtful, too.
    return finished if all(index in parts for index in finished) else set()


def allocate(descriptor: int, size: int, part: Path, label: str) -> None:
    """Give the open ``part`` its full ``size`` (bytes), with its blocks where the file system can.

    A full disk then shows up now, as TransferError with ``label``, the bytes needed and the bytes free.
    """
    # Of a larger version: its last bytes would stay behind those of this one, and be renamed with them.
    if os.fstat(descriptor).st_size > size:
        os.ftruncate(descriptor, size)
    if size == 0:
        return
    # st_blocks counts 512 bytes on every file system; what an earlier run allocated is not needed again.
    held = os.fstat(descriptor).st_blocks * 512
    # Checked first, because a failing allocation may fill the disk for everybody for a moment.
    if size - held > shutil.disk_usage(part.parent).free:
        raise no_space(part, size - held, label)
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(descriptor, size)
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if is_disk_full(error):
            # Measured after giving back the blocks that the failed call may have taken.
            os.ftruncate(descriptor, 0)
            raise no_space(part, size, label) from error
        # Without preallocation the file only gets its length; a disk that fills up then shows in a later write.
        if error.errno not in _NOT_SUPPORTED:
            raise
        os.ftruncate(descriptor, size)


def is_disk_full(error: OSError) -> bool:
    """Whether the file system refused a write for lack of space or quota."""
    return error.errno in _NO_SPACE


def no_space(part: Path, size: int, label: str) -> TransferError:
    """The error of ``label`` that ``part`` needs ``size`` bytes, and how many its disk has."""
    free = shutil.disk_usage(part.parent).free
    return TransferError(
        f"{label}: the disk of {part.parent} is full: {size} bytes are needed, {free} are free. "
        "Free space there or choose another directory, then run again"
    )


def _sidecar_draft(sidecar: Path) -> Path:
    # One fixed name, so that a draft which a kill left behind is overwritten rather than added to.
    return sidecar.with_name(sidecar.name + ".new")


def sync_data(descriptor: int) -> None:
    """Make the bytes of an open file durable, not its times."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)
