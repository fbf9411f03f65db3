"""The state of a cache folder that the processes of one machine share, in files and kernel locks.

`<cache>/.window/<prefix>/` holds:

* `state.json`: the verified shards, with size, inode and modification time of each file; replaced by one rename. A file
  that has changed since is no longer trusted, but verified again.
* `ranks/<process>`: the lease of a process: the shards that nobody may evict while the process lives. The process keeps
  a kernel lock (flock) on the file, so a killed process holds nothing.
* `fetch/<shard>`: locked by the process that fetches this shard; if it dies, the next one takes over its ranges.
* `trash/`: evicted files to be removed; removing a large file takes a while and needs no lock.
* `lock`: taken for every change of the above, and never during a transfer or a request to a store.

Entry points: `SharedState`, `file_mode`, `make_folder`, `locked_file`, `replace_file`.
"""

import fcntl
import json
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import IntegrityError
from dataprep_assets.stores.files import closed_folder
from dataprep_assets.stores.locks import own_file, try_lock

FOLDER = ".window"
"""The window's own folder in a cache; everything else in a cache are shards, or foreign files."""

POLL_SECONDS = 0.05
"""How often a process checks whether another one is done: far less than a fetch takes, far more than a check costs."""

# A lease of a million shards has 8 MB; nobody holds more than a few.
_LARGEST_LEASE_BYTES = 1 << 20


class SharedState:
    """See the module. One object per process and prefix; call `attach` before anything else, and `detach` at the end.

    If the data are `sensitive`, only the owner can access folders and files, whatever the process's umask.
    """

    def __init__(self, directory: Path, prefix: str, *, sensitive: bool = False) -> None:
        self._folder = directory / FOLDER / prefix
        self._sensitive = sensitive
        self._mode = file_mode(sensitive)
        # a process may have several windows on a folder, and process ids come again
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._lease: int | None = None

    # --- leases

    def attach(self) -> None:
        """Take an empty lease, and remove dead processes' leases and the files that killed ones left in the trash."""
        # Made and locked under the folder's lock: in between, another process would take the lease for a dead one's.
        with self.locked():
            path = self._folder / "ranks" / self._name
            self._lease = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
            fcntl.flock(self._lease, fcntl.LOCK_EX)
            self._write_lease([])
            # called for the leases of dead processes, which it removes
            self.leases()
        # after the lock is released: nobody has to wait while large files are removed
        self.empty_trash()

    def make_folders(self) -> None:
        """Create the cache folder and those of the module's docstring; for sensitive data, close existing ones."""
        own = [self._folder / name for name in ("ranks", "fetch", "trash")]
        for folder in (self._folder.parent.parent, self._folder.parent, self._folder, *own):
            make_folder(folder, self._sensitive)

    def detach(self) -> None:
        """Give up the lease. May be called twice."""
        if self._lease is not None:
            with self.locked():
                (self._folder / "ranks" / self._name).unlink(missing_ok=True)
                fcntl.flock(self._lease, fcntl.LOCK_UN)
                os.close(self._lease)
                self._lease = None

    def hold(self, shards: Collection[int]) -> None:
        """Write the lease: no process evicts these shards. Replaces what this process held before."""
        with self.locked():
            self._write_lease(sorted(set(shards)))

    def _write_lease(self, shards: list[int]) -> None:
        assert self._lease is not None, "attach first"
        data = json.dumps(shards).encode()
        # In place, because the lock is on this inode. It is only read under the folder's lock, so never half written
        # by a living process; what a killed one left does not count.
        os.ftruncate(self._lease, 0)
        os.pwrite(self._lease, data, 0)

    def leases(self) -> dict[str, list[int]]:
        """Process (`pid-…`) → the shards it holds; leases of dead processes are removed. Call it under `locked`."""
        leases = {}
        for path in sorted((self._folder / "ranks").iterdir()):
            descriptor = own_file(path, os.O_RDWR)
            try:
                if path.name != self._name and try_lock(descriptor):
                    path.unlink()
                else:
                    leases[path.name] = _lease(path, os.pread(descriptor, _LARGEST_LEASE_BYTES, 0))
            finally:
                os.close(descriptor)
        return leases

    # --- who fetches

    @contextmanager
    def fetching(self, index: int) -> Iterator[bool]:
        """Yields whether this process is the one that fetches the shard, for the duration of the block."""
        # The file stays for good: if it were removed, two processes could hold the locks of two files of this name.
        descriptor = own_file(self._folder / "fetch" / f"{index:06d}", os.O_RDWR | os.O_CREAT, self._mode)
        mine = try_lock(descriptor)
        try:
            yield mine
        finally:
            if mine:
                # explicitly, as in `locked_file`
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    # --- what was verified

    def verified(self) -> dict[str, Any]:
        """Shard number (as text) → size, inode and modification time of its files when they were verified."""
        try:
            value = json_of((self._folder / "state.json").read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            return {}  # damaged: everything is verified again
        return value if isinstance(value, dict) else {}

    def write_verified(self, verified: dict[str, Any]) -> None:
        """Replace what `verified` returns. Call it under `locked`, which must also cover the preceding read."""
        replace_file(self._folder / "state.json", json.dumps(verified, sort_keys=True).encode(), self._mode)

    # --- trash

    def throw_away(self, path: Path) -> None:
        """Move a file to the trash; `empty_trash` frees its bytes. A process that has it mapped keeps its data."""
        # a name of its own: the shard may be fetched and evicted once more before the trash is emptied
        os.replace(path, self._folder / "trash" / f"{path.name}-{secrets.token_hex(4)}")

    def empty_trash(self) -> None:
        """Remove the files in the trash, also those of processes that were killed before they could."""
        for path in (self._folder / "trash").iterdir():
            path.unlink(missing_ok=True)

    # --- the lock

    def locked(self) -> AbstractContextManager[None]:
        """The folder's lock, held for the block. Blocks while another process or thread has it; not reentrant."""
        return locked_file(self._folder / "lock", self._mode)


def _lease(path: Path, data: bytes) -> list[int]:
    """Parse a lease, read as `data`; raises IntegrityError for a content that this code never writes.

    The process that holds its lock is alive, so the lease can neither be removed nor be treated as empty.
    """
    try:
        value = json_of(data or b"[]")
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(type(shard) is int and shard >= 0 for shard in value):
        raise IntegrityError(
            f"{path}: not the lease of a process, although a process has locked it. End that process and remove the "
            "file, or use a different cache folder"
        )
    return value


@contextmanager
def locked_file(path: Path, mode: int) -> Iterator[None]:
    """Hold the kernel's lock on this file for the block; the file is created with this mode if it does not exist."""
    with open(path, "ab", opener=partial(own_file, mode=mode)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Explicitly, because a forked child has the descriptor too, and closing ours alone would not unlock.
            fcntl.flock(lock, fcntl.LOCK_UN)


def file_mode(sensitive: bool) -> int:
    """The mode that files in a cache are made with, before the umask."""
    return 0o600 if sensitive else 0o666


def make_folder(folder: Path, sensitive: bool) -> None:
    """Create a folder in a cache, with its parents. For sensitive data an existing one is restricted to its owner."""
    if sensitive:
        closed_folder(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """Replace the file with this content and mode by one rename, so that no reader sees half of it.

    Call it under a lock.

    The draft has a fixed name: what a kill left is overwritten. Nothing is synced: a swap must not wait for the disk,
    and what a power failure damages is only verified again.
    """
    draft = path.with_name(f"{path.name}.new")
    with open(draft, "wb", opener=partial(own_file, mode=mode)) as file:
        file.write(data)
    os.replace(draft, path)
