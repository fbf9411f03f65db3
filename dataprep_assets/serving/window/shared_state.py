"""State of a cache folder, shared by the processes of one machine through files and kernel locks.

`<cache>/.window/<prefix>/` contains:

* `state.json`: the verified shards, with size, inode and modification time of each file; replaced by a rename. A file
  that has changed since is not trusted until it is verified again.
* `ranks/<process>`: the lease of a process, which lists the shards that must not be evicted while it lives. The process
  keeps a kernel lock (flock) on the file, so the lease of a killed process has no effect.
* `fetch/<shard>`: locked by the process that downloads this shard; if it dies, another process can take over.
* `trash/`: evicted files to remove. Removing a large file takes a while and needs no lock.
* `lock`: held for every change to the files above, and never during a transfer or a request to a store.

Entry points: `SharedState`, `choose_file_mode`, `make_folder`, `lock_file`, `replace_file`.
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

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import IntegrityError
from dataprep_assets.stores.files import make_private_folder
from dataprep_assets.stores.locks import open_own_file, try_lock

FOLDER = ".window"
"""Folder for the window's own files in a cache; all other files are shards, or files of other programs."""

POLL_SECONDS = 0.05
"""Interval between checks for another process: much shorter than a download, and much longer than a check."""

# Maximum size of a lease in bytes. A million shards would take 8 MB, but 1 MiB is enough, because no process needs more
# than a few shards.
_LARGEST_LEASE_BYTES = 1 << 20


class SharedState:
    """Shared state of one process and prefix. Call `attach` before anything else, and `detach` at the end.

    If the data is `sensitive`, only the owner can access folders and files, independent of the process's umask.
    """

    def __init__(self, directory: Path, prefix: str, *, sensitive: bool = False) -> None:
        self._folder = directory / FOLDER / prefix
        self._sensitive = sensitive
        self._mode = choose_file_mode(sensitive)
        # Add a random suffix, because a process may have several windows on a folder and process ids are reused.
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._lease: int | None = None

    # --- leases

    def attach(self) -> None:
        """Create an empty lease, and remove dead processes' leases and the files left in the trash."""
        # Hold the folder's lock, so that no other process mistakes the new lease, which is not locked yet, for the
        # lease of a dead process.
        with self.hold_lock():
            path = self._folder / "ranks" / self._name
            self._lease = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode)
            fcntl.flock(self._lease, fcntl.LOCK_EX)
            self._write_lease([])
            # Ignore the result, because the call only serves to remove the leases of dead processes.
            self.read_leases()
        # Empty the trash without the lock, so that no process waits while large files are removed.
        self.empty_trash()

    def make_folders(self) -> None:
        """Create the cache folder and its state folders; for sensitive data, restrict existing ones to their owner."""
        own_folders = [self._folder / name for name in ("ranks", "fetch", "trash")]
        for folder in (self._folder.parent.parent, self._folder.parent, self._folder, *own_folders):
            make_folder(folder, self._sensitive)

    def detach(self) -> None:
        """Release the lease. May be called twice."""
        if self._lease is not None:
            with self.hold_lock():
                (self._folder / "ranks" / self._name).unlink(missing_ok=True)
                fcntl.flock(self._lease, fcntl.LOCK_UN)
                os.close(self._lease)
                self._lease = None

    def hold(self, shards: Collection[int]) -> None:
        """Write the lease, so that no process evicts these shards; replaces the shards of the last call."""
        with self.hold_lock():
            self._write_lease(sorted(set(shards)))

    def _write_lease(self, shards: list[int]) -> None:
        assert self._lease is not None, "attach first"
        data = json.dumps(shards).encode()
        # Write in place, because the lock is on this inode. Leases are read only under the folder's lock, so a reader
        # never sees a living process's partial write, and a killed process's lease is ignored.
        os.ftruncate(self._lease, 0)
        os.pwrite(self._lease, data, 0)

    def read_leases(self) -> dict[str, list[int]]:
        """Return each process (`pid-…`) with its shards, and remove dead processes' leases. Requires `hold_lock`."""
        leases = {}
        for path in sorted((self._folder / "ranks").iterdir()):
            descriptor = open_own_file(path, os.O_RDWR)
            try:
                if path.name != self._name and try_lock(descriptor):
                    path.unlink()
                else:
                    leases[path.name] = _parse_lease(path, os.pread(descriptor, _LARGEST_LEASE_BYTES, 0))
            finally:
                os.close(descriptor)
        return leases

    # --- downloading processes

    @contextmanager
    def claim_download(self, index: int) -> Iterator[bool]:
        """Claim the download of a shard for the duration of the block; yield whether this process got the claim."""
        # Never remove the file, because two processes could then lock two different files of this name.
        descriptor = open_own_file(self._folder / "fetch" / f"{index:06d}", os.O_RDWR | os.O_CREAT, self._mode)
        is_owner = try_lock(descriptor)
        try:
            yield is_owner
        finally:
            if is_owner:
                # Unlock explicitly, because closing this descriptor does not unlock if a forked child also has it.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    # --- verified shards

    def read_verified_shards(self) -> dict[str, Any]:
        """Return size, inode and modification time of each verified shard's files, by shard number (as text)."""
        try:
            value = load_untrusted_json((self._folder / "state.json").read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            return {}  # the file is damaged, so everything is verified again
        return value if isinstance(value, dict) else {}

    def write_verified_shards(self, verified: dict[str, Any]) -> None:
        """Replace the result of `read_verified_shards`.

        Call this under `hold_lock`, which must also cover the preceding read.
        """
        replace_file(self._folder / "state.json", json.dumps(verified, sort_keys=True).encode(), self._mode)

    # --- trash

    def move_to_trash(self, path: Path) -> None:
        """Move a file to the trash; `empty_trash` frees its space. A process that has it mapped keeps its data."""
        # Use a unique name, because the shard may be downloaded and evicted again before the trash is emptied.
        os.replace(path, self._folder / "trash" / f"{path.name}-{secrets.token_hex(4)}")

    def empty_trash(self) -> None:
        """Remove the files in the trash, including files of killed processes."""
        for path in (self._folder / "trash").iterdir():
            path.unlink(missing_ok=True)

    # --- the lock

    def hold_lock(self) -> AbstractContextManager[None]:
        """Return a context that holds the folder's lock; it blocks while the lock is taken, and is not reentrant."""
        return lock_file(self._folder / "lock", self._mode)


def _parse_lease(path: Path, data: bytes) -> list[int]:
    """Parse the content of a lease; raise IntegrityError for content that this code never writes.

    The process that holds its lock is alive, so the lease can be neither removed nor treated as empty.
    """
    try:
        value = load_untrusted_json(data or b"[]")
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(type(shard) is int and shard >= 0 for shard in value):
        raise IntegrityError(
            f"{path}: invalid lease file, which a running process has locked. Stop that process and remove the file, "
            "or use a different cache folder"
        )
    return value


@contextmanager
def lock_file(path: Path, mode: int) -> Iterator[None]:
    """Hold the kernel's lock on this file for the block; the file is created with `mode` if it does not exist."""
    with open(path, "ab", opener=partial(open_own_file, mode=mode)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Unlock explicitly, because closing this descriptor does not unlock if a forked child also has it.
            fcntl.flock(lock, fcntl.LOCK_UN)


def choose_file_mode(sensitive: bool) -> int:
    """Return the mode of new files in a cache, before the umask."""
    return 0o600 if sensitive else 0o666


def make_folder(folder: Path, sensitive: bool) -> None:
    """Create a folder and its parents in a cache. For sensitive data, an existing folder is restricted to its owner."""
    if sensitive:
        make_private_folder(folder)
    else:
        folder.mkdir(parents=True, exist_ok=True)


def replace_file(path: Path, data: bytes, mode: int) -> None:
    """Replace the file with this content and mode by a rename, so that readers never see a partial file.

    Call it under a lock, because the draft has a fixed name. A draft left by a killed process is overwritten. Nothing
    is synced, because a swap must not wait for the disk; data damaged by a power failure is verified again.
    """
    draft = path.with_name(f"{path.name}.new")
    with open(draft, "wb", opener=partial(open_own_file, mode=mode)) as file:
        file.write(data)
    os.replace(draft, path)
