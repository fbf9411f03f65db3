"""Verified copies of a bucket's files in a local folder, with a size budget.

Each content of an artifact has its own directory, `<root>/.fetched/<artifact>/<content>/`, so a replaced artifact never
changes under a reader. A file appears in it, read-only, by the rename that ends a verified download. The modification
time of the receipt is the time of a copy's last use.

A copy in use is leased by an open lock, which its readers share and the kernel releases when a process ends. A process
never evicts copies that other processes lease. Its own copies are evicted last, least recently used first, unless they
are held (`hold`; an `ArtifactHandle` holds its copies while it lives). Open or mapped files stay readable in any case.
If nothing more can be evicted and the files still do not fit, the download fails with a message that describes the
remedy. Nothing waits forever.

A copy is never the only one, because unpublished artifacts are stored elsewhere, where nothing is evicted.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import ConfigError, IntegrityError, count_of
from dataprep_assets.integrity.artifacts import Artifact
from dataprep_assets.integrity.receipt import NAME, FileRecord, Receipt, read_receipt
from dataprep_assets.stores.files import private_files
from dataprep_assets.stores.locks import open_own_file, try_lock

FETCHED = ".fetched"
_LOCKS = ".locks"
_LEASES_KEPT = 128
"""Maximum number of copies that a process leases; each lease takes a file descriptor. The latest are kept."""

Fetch = Callable[[FileRecord, Path], None]
"""Downloads one file to a path, verifies it, and renames it to its final name."""


@dataclass(frozen=True)
class VerifiedCopies:
    """Verified copies below a folder; the module docstring describes them.

    Attributes:
        root: The folder.
        budget_bytes: Maximum total size of all copies; None for no limit.
        private: Whether only their owner can read the copies.
    """

    root: Path
    budget_bytes: int | None = None
    private: bool = False

    def directory(self, artifact: Artifact, content: str) -> Path:
        """Return the directory for the copy of this content of an artifact; it need not exist."""
        return self.root / FETCHED / str(artifact) / content[:32]

    def find_copy(self, artifact: Artifact, content: str, record: FileRecord) -> Path | None:
        """Return the local copy of one file (`record`) of this content of an artifact, or None."""
        path = self.directory(artifact, content) / record.path
        return path if _is_intact(path, record) else None

    def ensure(self, artifact: Artifact, receipt: Receipt, records: Iterable[FileRecord], fetch: Fetch) -> Path:
        """Return the directory with the files `records` of an artifact and its receipt; download missing files.

        Raises ConfigError if they cannot fit into the budget.
        """
        directory, required_records = self.directory(artifact, receipt.content), list(records)
        with private_files(self.private), self._lock(directory, "filling"):
            # Write the receipt first, because a folder without a receipt does not count as a copy and could not be
            # evicted.
            _write_receipt(directory, receipt)
            missing = [record for record in required_records if not _is_intact(directory / record.path, record)]
            if missing:
                # Count all required files, because the required files that are present cannot be evicted to make room
                # for the missing files.
                self._require_possible(artifact, required_records)
                with self.make_room(sum(record.bytes for record in missing), filling=directory):
                    for record in missing:
                        target = directory / record.path
                        target.parent.mkdir(parents=True, exist_ok=True)
                        fetch(record, target)
                        _make_read_only(target)
            # Lease the copy before the lock is released, because other processes could evict an unleased copy.
            self._take_lease(directory)
            os.utime(directory / NAME)
        return directory

    def adopt(self, artifact: Artifact, built_path: Path, receipt: Receipt) -> None:
        """Turn the published directory `built_path` into the copy of this receipt's content; remove older copies."""
        directory = self.directory(artifact, receipt.content)
        with private_files(self.private), self._lock(directory, "filling"):
            directory.mkdir(parents=True, exist_ok=True)
            for record in receipt.files:
                source, target = built_path / record.path, directory / record.path
                # Skip files that the server joined, because they do not exist locally.
                if source.is_file() and not _is_intact(target, record):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    _make_read_only(source)
                    os.replace(source, target)
            _write_receipt(directory, receipt)
            shutil.rmtree(built_path)
        # Remove copies of older contents, except copies that this process or another process may still read.
        for sibling in directory.parent.iterdir():
            if sibling != directory and (sibling / NAME).is_file():
                self._evict(sibling, is_own=False)
        # A build writes its files without reserving room, so the budget is enforced now.
        with self.make_room(0):
            pass

    def forget(self, artifact: Artifact) -> None:
        """Remove the copies of every content of an artifact, except copies that other processes read."""
        for directory in self.directory(artifact, "").glob("[!.]*"):
            self._evict(directory, is_own=True)

    @contextmanager
    def make_room(self, needed: int, filling: Path | None = None) -> Iterator[None]:
        """Evict copies until `needed` bytes fit, and prevent other processes from using this space inside the block.

        Raises ConfigError if the budget is too small for `needed` bytes next to the copies in use.
        """
        if self.budget_bytes is None:
            yield
            return
        with self._lock(self.root, "room"):
            copies = sorted(_list_copies_below(self.root / FETCHED), key=lambda copy: copy.used)
            total = sum(copy.bytes for copy in copies)
            # In the first round, keep the copies that this process leases, because the process may use them again.
            for is_own in (False, True):
                for copy in copies:
                    if total + needed <= self.budget_bytes:
                        break
                    # Skip the copy that is being filled, and copies that the first round evicted.
                    if (
                        copy.directory != filling
                        and copy.directory.exists()
                        and self._evict(copy.directory, is_own=is_own)
                    ):
                        total -= copy.bytes
            # Raise an error only if room is needed for a download. Otherwise, copies in use may exceed the budget.
            if needed and total + needed > self.budget_bytes:
                raise ConfigError(
                    f"{self.root}: the cache limit is {count_of(self.budget_bytes, 'byte')}, but readers use "
                    f"{total:,} bytes and {needed:,} more are needed. Raise DATAPREP_CACHE_BYTES, or wait until the "
                    "readers have finished"
                )
            yield

    def hold(self, directory: Path) -> Callable[[], None]:
        """Protect a present or future copy from eviction until the returned function is called."""
        with _REGISTRY:
            _HELD[directory] += 1
        with private_files(self.private):
            self._take_lease(directory)

        def release() -> None:
            with _REGISTRY:
                _HELD[directory] -= 1

        return release

    def _require_possible(self, artifact: Artifact, records: Iterable[FileRecord]) -> None:
        needed = sum(record.bytes for record in records)
        if self.budget_bytes is not None and needed > self.budget_bytes:
            raise ConfigError(
                f"{self.root}: the cache limit is {count_of(self.budget_bytes, 'byte')}, but {artifact} needs "
                f"{needed:,} bytes. Raise DATAPREP_CACHE_BYTES, or read ranges (`ArtifactHandle.open`, `.tokens`)"
            )

    def _evict(self, directory: Path, *, is_own: bool) -> bool:
        """Remove a copy that no process fills or leases; with `is_own`, also one that only this process leases."""
        with _REGISTRY:
            is_leased = directory in _LEASES
            if _HELD[directory] > 0 or (is_leased and not is_own):
                return False
            # `flock` distinguishes open files, not processes, so this process's own lease would block the lock below.
            if is_leased:
                os.close(_LEASES.pop(directory))
        # Hold both locks until the copy is removed. A process that needs the copy waits in `ensure` and downloads it
        # again.
        with self._try_lock(directory, "filling") as filling:
            if not filling:
                return False
            with self._try_lock(directory, "lease") as leased:
                if not leased:
                    return False
                shutil.rmtree(directory, ignore_errors=True)
        return True

    def _take_lease(self, directory: Path) -> None:
        with _REGISTRY:
            if directory not in _LEASES:
                descriptor = open_own_file(self._lock_path(directory, "lease"), os.O_RDWR | os.O_CREAT)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                _LEASES[directory] = descriptor
            _LEASES.move_to_end(directory)
            # If there are too many leases, release the oldest leases of copies that no handle holds.
            for old in [leased_directory for leased_directory in _LEASES if _HELD[leased_directory] <= 0][
                : max(0, len(_LEASES) - _LEASES_KEPT)
            ]:
                os.close(_LEASES.pop(old))

    def _lock_path(self, directory: Path, label: str) -> Path:
        # Store the lock outside of the copy's folder, because an eviction would otherwise remove a lock that others
        # wait for.
        locks = self.root / FETCHED / _LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        return locks / f"{hashlib.sha256(str(directory).encode()).hexdigest()[:24]}.{label}.lock"

    @contextmanager
    def _lock(self, directory: Path, label: str) -> Iterator[None]:
        with open(self._lock_path(directory, label), "a", opener=open_own_file) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _try_lock(self, directory: Path, label: str) -> Iterator[bool]:
        with open(self._lock_path(directory, label), "a", opener=open_own_file) as lock:
            yield try_lock(lock)


_REGISTRY = threading.RLock()
# `_LEASES` maps a leased directory to the descriptor of its shared lock, the latest lease last. `_HELD` has the number
# of holds of each directory.
_LEASES: OrderedDict[Path, int] = OrderedDict()
_HELD: Counter[Path] = Counter()


@dataclass(frozen=True, kw_only=True)
class _Copy:
    """A copy on the disk: its folder, its size, and the time of its last use."""

    directory: Path
    bytes: int
    used: float


def _list_copies_below(area: Path) -> Iterator[_Copy]:
    for folder, folders, names in os.walk(area):
        folders[:] = [name for name in folders if name != _LOCKS]
        if NAME in names:
            folders[:] = []
            try:
                used_time = os.stat(os.path.join(folder, NAME)).st_mtime
            except FileNotFoundError:
                continue  # another process has removed the copy meanwhile
            yield _Copy(directory=Path(folder), bytes=_count_bytes(folder), used=used_time)


def _count_bytes(copy: str) -> int:
    """Return the bytes of the files in a copy's folder, except its receipt."""
    size = 0
    for folder, _, names in os.walk(copy):
        for name in names:
            # Exclude partial downloads, because each download has already reserved its own room.
            if name != NAME and not name.endswith(".part"):
                with suppress(FileNotFoundError):
                    size += os.stat(os.path.join(folder, name)).st_size
    return size


def _make_read_only(path: Path) -> None:
    """Make a file read-only without giving new access, so that a file created under a strict umask stays private."""
    path.chmod(path.stat().st_mode & 0o444)


def _is_intact(path: Path, record: FileRecord) -> bool:
    # Comparing the size is enough, because a file gets its name only after its digest was verified (`Fetch`).
    return path.is_file() and path.stat().st_size == record.bytes


def _write_receipt(directory: Path, receipt: Receipt) -> None:
    """Store this receipt in the directory, because artifacts with the same content can differ in key and facts."""
    try:
        if read_receipt(directory) == receipt:
            return
    except IntegrityError:
        pass
    directory.mkdir(parents=True, exist_ok=True)
    # Write into a temporary folder, because `Receipt.write` would write over the old receipt, and a kill would leave an
    # incomplete receipt.
    with tempfile.TemporaryDirectory(dir=directory) as draft:
        receipt.write(Path(draft))
        os.replace(Path(draft, NAME), directory / NAME)
