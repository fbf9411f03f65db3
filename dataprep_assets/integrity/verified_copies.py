"""Verified copies of a bucket's files in a folder of this machine, under a size budget.

Each content of an artifact has a directory of its own, `<root>/.fetched/<artifact>/<content>/`, so a replaced artifact
never changes under a reader. A file appears in it by the rename that ends a verified download, read-only. The
modification time of the receipt says when a copy was last handed out.

A copy that was handed out is leased: an open lock, shared by its readers, which the kernel releases when a process
ends. No process evicts what another one leases. This process's own copies are evicted last, the least recently used
first, unless they are held (`hold`; an `ArtifactHandle` does that as long as it lives). Open or mapped files stay
readable in any case. If nothing more can be evicted and the files still do not fit, the fetch fails with a message that
says what to change; nothing waits forever.

A copy is never the only one: artifacts that are not published yet are elsewhere, where nothing is evicted.
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
from dataprep_assets.stores.locks import own_file, try_lock

FETCHED = ".fetched"
_LOCKS = ".locks"
_LEASES_KEPT = 128
"""Most copies that a process leases, the last ones handed out: each takes a file descriptor."""

Fetch = Callable[[FileRecord, Path], None]
"""Fetches one file to a path, verified, with a final rename."""


@dataclass(frozen=True)
class Copies:
    """See the module. `budget_bytes` limits the size of all copies below `root` together; None: nothing is evicted.

    Only their owner can read `private` copies.
    """

    root: Path
    budget_bytes: int | None = None
    private: bool = False

    def directory(self, artifact: Artifact, content: str) -> Path:
        """Return where the copy of this content of an artifact is, or would be."""
        return self.root / FETCHED / str(artifact) / content[:32]

    def find(self, artifact: Artifact, content: str, record: FileRecord) -> Path | None:
        """The local copy of one file (`record`) of this content of an artifact, or None."""
        path = self.directory(artifact, content) / record.path
        return path if _is_intact(path, record) else None

    def ensure(self, artifact: Artifact, receipt: Receipt, records: Iterable[FileRecord], fetch: Fetch) -> Path:
        """The directory with the files `records` of an artifact and its receipt; missing files are fetched.

        Raises ConfigError when they cannot fit into the budget.
        """
        directory, required_records = self.directory(artifact, receipt.content), list(records)
        with private_files(self.private), self._lock(directory, "filling"):
            # first: a folder without a receipt is no copy that counts, and could not be evicted (`_copies_below`)
            _write_receipt(directory, receipt)
            missing = [record for record in required_records if not _is_intact(directory / record.path, record)]
            if missing:
                # All that is wanted, with what is here already: that cannot be evicted to make room for the rest.
                self._require_possible(artifact, required_records)
                with self.room(sum(record.bytes for record in missing), filling=directory):
                    for record in missing:
                        target = directory / record.path
                        target.parent.mkdir(parents=True, exist_ok=True)
                        fetch(record, target)
                        _make_read_only(target)
            # before the lock is released: no eviction can come in between
            self._lease(directory)
            os.utime(directory / NAME)
        return directory

    def adopt(self, artifact: Artifact, built: Path, receipt: Receipt) -> None:
        """Turn the directory `built`, just published, into the copy of this receipt's content; remove older copies."""
        directory = self.directory(artifact, receipt.content)
        with private_files(self.private), self._lock(directory, "filling"):
            directory.mkdir(parents=True, exist_ok=True)
            for record in receipt.files:
                source, target = built / record.path, directory / record.path
                # a file that the server joined was never here
                if source.is_file() and not _is_intact(target, record):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    _make_read_only(source)
                    os.replace(source, target)
            _write_receipt(directory, receipt)
            shutil.rmtree(built)
        # Copies of older contents. What this process itself has handed out stays: somebody may read it.
        for sibling in directory.parent.iterdir():
            if sibling != directory and (sibling / NAME).is_file():
                self._evict(sibling, own=False)
        # what was built here did not ask for room when it was written
        with self.room(0):
            pass

    def forget(self, artifact: Artifact) -> None:
        """Remove the copies of every content of an artifact; those that other processes read stay."""
        for directory in self.directory(artifact, "").glob("[!.]*"):
            self._evict(directory, own=True)

    @contextmanager
    def room(self, needed: int, filling: Path | None = None) -> Iterator[None]:
        """Evict until `needed` bytes fit, and keep other processes from taking them inside the block.

        Raises ConfigError if the budget is too small for `needed` bytes beside the copies in use.
        """
        if self.budget_bytes is None:
            yield
            return
        with self._lock(self.root, "room"):
            copies = sorted(_copies_below(self.root / FETCHED), key=lambda copy: copy.used)
            total = sum(copy.bytes for copy in copies)
            # what this process has handed out goes last
            for own in (False, True):
                for copy in copies:
                    if total + needed <= self.budget_bytes:
                        break
                    # not what is being filled, nor what has gone in the first round
                    if copy.directory != filling and copy.directory.exists() and self._evict(copy.directory, own=own):
                        total -= copy.bytes
            # with nothing to be fetched it is no error that copies in use exceed the budget
            if needed and total + needed > self.budget_bytes:
                raise ConfigError(
                    f"{self.root}: the cache limit is {count_of(self.budget_bytes, 'byte')}: {total:,} are in use by "
                    f"readers, and {needed:,} more are needed. Raise DATAPREP_CACHE_BYTES, or wait until the readers "
                    "have finished"
                )
            yield

    def hold(self, directory: Path) -> Callable[[], None]:
        """Keep a copy, present or about to be fetched, from being evicted until the returned function is called."""
        with _REGISTRY:
            _HELD[directory] += 1
        with private_files(self.private):
            self._lease(directory)

        def release() -> None:
            with _REGISTRY:
                _HELD[directory] -= 1

        return release

    def _require_possible(self, artifact: Artifact, wanted: Iterable[FileRecord]) -> None:
        needed = sum(record.bytes for record in wanted)
        if self.budget_bytes is not None and needed > self.budget_bytes:
            raise ConfigError(
                f"{self.root}: the cache limit is {count_of(self.budget_bytes, 'byte')}, but {artifact} needs "
                f"{needed:,}. Raise DATAPREP_CACHE_BYTES, or read ranges (`ArtifactHandle.open`, `.tokens`)"
            )

    def _evict(self, directory: Path, *, own: bool) -> bool:
        """Remove a copy that no process fills or leases; with `own`, also one that only this process leases."""
        with _REGISTRY:
            mine = directory in _LEASES
            if _HELD[directory] > 0 or (mine and not own):
                return False
            # `flock` tells open files apart, not processes: this process's own lease would be in the way below.
            if mine:
                os.close(_LEASES.pop(directory))
        # Both locks are held until it is gone: whoever wants this copy waits in `ensure`, and fetches it again.
        with self._try_lock(directory, "filling") as filling:
            if not filling:
                return False
            with self._try_lock(directory, "lease") as leased:
                if not leased:
                    return False
                shutil.rmtree(directory, ignore_errors=True)
        return True

    def _lease(self, directory: Path) -> None:
        with _REGISTRY:
            if directory not in _LEASES:
                descriptor = own_file(self._lock_path(directory, "lease"), os.O_RDWR | os.O_CREAT)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                _LEASES[directory] = descriptor
            _LEASES.move_to_end(directory)
            # beyond the limit the oldest go, but never one that a handle holds
            for old in [leased_directory for leased_directory in _LEASES if _HELD[leased_directory] <= 0][
                : max(0, len(_LEASES) - _LEASES_KEPT)
            ]:
                os.close(_LEASES.pop(old))

    def _lock_path(self, directory: Path, what: str) -> Path:
        # Not inside of the copy: with a folder that is evicted its lock would go, under whoever waits for it.
        locks = self.root / FETCHED / _LOCKS
        locks.mkdir(parents=True, exist_ok=True)
        return locks / f"{hashlib.sha256(str(directory).encode()).hexdigest()[:24]}.{what}.lock"

    @contextmanager
    def _lock(self, directory: Path, what: str) -> Iterator[None]:
        with open(self._lock_path(directory, what), "a", opener=own_file) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _try_lock(self, directory: Path, what: str) -> Iterator[bool]:
        with open(self._lock_path(directory, what), "a", opener=own_file) as lock:
            yield try_lock(lock)


_REGISTRY = threading.RLock()
# Leases of this process (directory → descriptor of the shared lock), the latest one last; and what it holds.
_LEASES: OrderedDict[Path, int] = OrderedDict()
_HELD: Counter[Path] = Counter()


@dataclass(frozen=True, kw_only=True)
class _Copy:
    directory: Path
    bytes: int
    used: float


def _copies_below(area: Path) -> Iterator[_Copy]:
    for folder, folders, names in os.walk(area):
        folders[:] = [name for name in folders if name != _LOCKS]
        if NAME in names:
            folders[:] = []
            try:
                used = os.stat(os.path.join(folder, NAME)).st_mtime
            except FileNotFoundError:
                continue  # another process forgets it meanwhile, for which it takes no lock of all copies
            yield _Copy(directory=Path(folder), bytes=_bytes_of(folder), used=used)


def _bytes_of(copy: str) -> int:
    """Bytes of the files in the folder of a copy, but for its receipt."""
    size = 0
    for folder, _, names in os.walk(copy):
        for name in names:
            # A partial download is part of what its fetch needs, not of the space in use.
            if name != NAME and not name.endswith(".part"):
                with suppress(FileNotFoundError):
                    size += os.stat(os.path.join(folder, name)).st_size
    return size


def _make_read_only(path: Path) -> None:
    """Make a file read-only without giving anybody new access: a file made under a strict umask stays private."""
    path.chmod(path.stat().st_mode & 0o444)


def _is_intact(path: Path, record: FileRecord) -> bool:
    # the size is enough, because a file gets its name only after its digest was compared (`Fetch`)
    return path.is_file() and path.stat().st_size == record.bytes


def _write_receipt(directory: Path, receipt: Receipt) -> None:
    """Keep exactly this receipt in the directory: artifacts with the same content can differ in key and facts."""
    try:
        if read_receipt(directory) == receipt:
            return
    except IntegrityError:
        pass
    directory.mkdir(parents=True, exist_ok=True)
    # in a folder of its own, because a receipt always writes itself under its final name
    with tempfile.TemporaryDirectory(dir=directory) as draft:
        receipt.write(Path(draft))
        os.replace(Path(draft, NAME), directory / NAME)
