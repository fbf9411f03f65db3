"""The shards of one prefix of a release on this machine's disk, shared by any number of processes.

Shards lie in the cache folder under their own names, so the original reader can be pointed at it. Beside them,
`.window/<prefix>/` holds what the processes tell each other:

* `state.json`: shards that were verified, each file with size, inode and time of change; replaced by one rename. A file
  that no longer looks as it did when it was verified is not believed any more, but verified again.
* `ranks/<process>`: what a process holds. It keeps a kernel lock (flock) on its file, so a killed one holds nothing.
* `fetch/<shard>`: locked by the process that fetches this shard; when it dies, the next one takes over its ranges.
* `trash/`: evicted files on their way out; removing a large file takes a while and needs no lock.

No lock is held while bytes travel or a store is asked, but for that of the one shard being fetched.
"""

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from dataprep_assets.errors import (
    ConfigError,
    CorruptSourceError,
    DataprepError,
    FormatError,
    MissingArtifactError,
    TransferError,
)
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.integrity.digest import sha256_file
from dataprep_assets.serving.keep import Keep, fits, victims
from dataprep_assets.serving.readers import Shard, open_pair
from dataprep_assets.serving.release import MANIFEST, Place, Release, ReleaseFile, ReleaseShard
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.partial import discard_partial, partial_paths
from dataprep_assets.stores.retry import StoppedError
from dataprep_assets.stores.store import Progress

__all__ = ["FOLDER", "SAMPLED_IDS", "Cache", "Note"]

FOLDER = ".window"
SAMPLED_IDS = 64
"""Samples whose ids are recomputed before a shard is believed; the digest covers the rest."""

Note = Callable[[str, int, str], None]
"""Gets what happens: a kind (`evicted`, `kept`, `waiting`, `refused`), the shard, and a sentence."""

# How often a process looks whether another one is done, in seconds.
_POLL_SECONDS = 0.05


class Cache:
    """See the module. One object a window; `attach` before anything else, `detach` at the end."""

    def __init__(
        self, directory: Path, place: Place, release: Release, prefix: str, keep: Keep, room_seconds: float
    ) -> None:
        self.directory = directory
        self._place = place
        self._release = release
        self._prefix = prefix
        self._shards = release.of(prefix)
        self._keep = keep
        self._room_seconds = room_seconds
        self._folder = directory / FOLDER / prefix
        self._name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._lease: int | None = None

    # --- what a process holds

    def attach(self) -> None:
        """Join the processes that share this folder, and clear away what killed ones left.

        Raises ConfigError when the folder holds another release.
        """
        for folder in ("ranks", "fetch", "trash"):
            (self._folder / folder).mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._adopt_manifest()
            path = self._folder / "ranks" / self._name
            self._lease = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._lease, fcntl.LOCK_EX)
            self._write_lease([])
            self._leases()
        self._empty_trash()

    def detach(self) -> None:
        """Hold nothing any more."""
        if self._lease is not None:
            with self._locked():
                (self._folder / "ranks" / self._name).unlink(missing_ok=True)
                fcntl.flock(self._lease, fcntl.LOCK_UN)
                os.close(self._lease)
                self._lease = None

    def hold(self, shards: Collection[int]) -> None:
        """Say which shards this process needs: nobody evicts them. Replaces what it said before."""
        with self._locked():
            self._write_lease(sorted(set(shards)))

    def _write_lease(self, shards: list[int]) -> None:
        assert self._lease is not None, "attach the cache first"
        data = json.dumps(shards).encode()
        # In place, because the lock is on this inode. Read only under the folder's lock, so never half written by a
        # living process; what a killed one left does not count.
        os.ftruncate(self._lease, 0)
        os.pwrite(self._lease, data, 0)

    def _leases(self) -> dict[str, list[int]]:
        """What each living process holds; files of dead ones are removed. Call it under the folder's lock."""
        found = {}
        for path in sorted((self._folder / "ranks").iterdir()):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if path.name != self._name and _try_lock(descriptor):
                    path.unlink()
                else:
                    found[path.name] = json.loads(os.pread(descriptor, 1 << 20, 0) or b"[]")
            finally:
                os.close(descriptor)
        return found

    def holders(self) -> dict[str, list[int]]:
        """Process (`pid-…`) → the shards it holds."""
        with self._locked():
            return self._leases()

    # --- what is on the disk

    def path(self, file: ReleaseFile) -> Path:
        """Where a file of the release lies in the cache."""
        return self.directory / file.key

    def is_verified(self, index: int) -> bool:
        """Whether the shard is there as it was when somebody verified it. Reads no data."""
        known = self._read_state().get(str(index))
        return known is not None and known == self._looks(index)

    def open(self, index: int) -> Shard:
        """A verified shard, mapped. CorruptSourceError when it is not (any more) what was verified."""
        if not self.is_verified(index):
            raise CorruptSourceError(f"{self._label(index)}: its files changed on disk since they were verified")
        shard = self._shards[index]
        return Shard(
            index=index,
            token_path=self.path(shard.token_file),
            ids_path=self.path(shard.ids_file),
            sequence_length=self._release.sequence_length,
        )

    def present(self) -> dict[int, int]:
        """Shards of which anything is on disk, whole or in parts, and the bytes they take when whole."""
        names = {name.removesuffix(".part") for name in _names(self.path(self._shards[0].token_file).parent)}
        return {
            shard.index: shard.bytes
            for shard in self._shards
            if any(self.path(file).name in names for file in shard.files)
        }

    def _looks(self, index: int) -> list[list[int]] | None:
        try:
            found = [self.path(file).stat() for file in self._shards[index].files]
        except FileNotFoundError:
            return None
        return [[status.st_size, status.st_ino, status.st_mtime_ns] for status in found]

    def _label(self, index: int) -> str:
        return f"shard {self._shards[index].token_file.key} of {self._place}"

    # --- having a shard

    def have(self, index: int, *, progress: Progress, stopped: Callable[[], bool], note: Note) -> None:
        """Have a verified shard on disk: find it there, wait for the process that fetches it, or fetch it.

        Raises TransferError, CorruptSourceError, MissingArtifactError, or ConfigError when others hold all the room;
        StoppedError once `stopped()`.
        """
        while not self.is_verified(index):
            with self._fetching(index) as mine:
                if mine:
                    if not self.is_verified(index):
                        self._verify_or_fetch(index, progress, stopped, note)
                    return
            if stopped():
                raise StoppedError(f"{self._label(index)}: stopped while another process fetches it")
            time.sleep(_POLL_SECONDS)

    def _verify_or_fetch(self, index: int, progress: Progress, stopped: Callable[[], bool], note: Note) -> None:
        shard = self._shards[index]
        missing = []
        for file in shard.files:
            complaint = self._complaint(file)
            if complaint is None:
                missing.append(file)
            elif complaint:
                note("refused", index, complaint)
                missing.append(file)
            else:
                discard_partial(self.path(file))
                progress(file.bytes)
        if missing:
            self._check_remote(missing)
            self._make_room(shard, stopped, note)
        try:
            self._check_space(missing, index)
            for file in missing:
                key, path = self._place.key(file.key), self.path(file)
                self._place.store.download(key, path, sha256=file.sha256, progress=progress)
        except BaseException:
            self._unreserve(shard)
            raise
        self._check_content(shard)
        looks = self._looks(index)
        with self._locked():
            self._write_state({**self._read_state(), str(index): looks})

    def _complaint(self, file: ReleaseFile) -> str | None:
        """Why what lies under a file's name is not it; "" when it is; None when nothing lies there."""
        path = self.path(file)
        if not path.exists():
            return None
        if (size := path.stat().st_size) != file.bytes:
            return f"{path}: {size} bytes, the release says {file.bytes}; it is fetched again"
        if (digest := sha256_file(path)) != file.sha256:
            return f"{path}: sha256 {digest}, the release says {file.sha256}; it is fetched again"
        return ""

    def _check_remote(self, files: Iterable[ReleaseFile]) -> None:
        """Refuse, before a byte is fetched, objects that cannot be those of the release."""
        for file in files:
            where = f"{self._place}/{file.key}"
            info = self._place.store.head(self._place.key(file.key))
            if info is None:
                raise MissingArtifactError(
                    f"{where}: the release lists it, the store does not have it. Publish it again"
                )
            if info.bytes != file.bytes or info.sha256 not in (None, file.sha256):
                raise CorruptSourceError(
                    f"{where}: {info.bytes} bytes (sha256 {info.sha256}), the release says {file.bytes} "
                    f"({file.sha256}). Another shard lies under this name: publish the release again"
                )

    def _check_content(self, shard: ReleaseShard) -> None:
        """Header, sizes, and ids of a sample of the samples: what the digest says is also what a reader understands."""
        token_path, ids_path = self.path(shard.token_file), self.path(shard.ids_file)
        length = self._release.sequence_length
        try:
            npy_shards.validate(token_path, dtype=self._release.dtype, tokens=shard.tokens, sequence_length=length)
            tokens, ids = open_pair(token_path, ids_path, length)
            wrong = sample_ids.differing(tokens, ids, length, sample=SAMPLED_IDS)
        except FormatError as error:
            raise CorruptSourceError(f"{self._label(shard.index)} was published damaged: {error}") from error
        if wrong:
            raise CorruptSourceError(
                f"{self._label(shard.index)} was published damaged: the ids of samples {wrong[:4]} are not those of "
                "their tokens (another sequence length, or ids of another shard). Build and publish it again"
            )

    # --- room

    def _make_room(self, shard: ReleaseShard, stopped: Callable[[], bool], note: Note) -> None:
        """Evict what the policy does not keep, and reserve the shard's place by its (empty) partial file."""
        deadline = time.monotonic() + self._room_seconds
        waiting = False
        only_copies: set[int] = set()
        while True:
            with self._locked():
                chosen = self._victims(shard, only_copies)
            # A store may take its time to answer, so it is asked without the lock.
            for index in chosen:
                if why := self._only_copy(index):
                    only_copies.add(index)
                    note("kept", index, f"{self._label(index)} is kept: {why}")
            with self._locked():
                evicted = [index for index in self._victims(shard, only_copies) if index in chosen]
                for index in evicted:
                    self._throw_away(index)
                left = {i: size for i, size in self.present().items() if i != shard.index}
                if fits(self._keep, left, shard.bytes):
                    part, _ = partial_paths(self.path(shard.token_file))
                    part.parent.mkdir(parents=True, exist_ok=True)
                    part.touch()
                held = self._leases() if not fits(self._keep, left, shard.bytes) else None
            self._empty_trash()
            for index in evicted:
                note("evicted", index, f"{self._label(index)} was evicted from {self.directory}")
            if held is None:
                return
            self._await_room(shard, held, only_copies, deadline, stopped)
            if not waiting:
                waiting = True
                note("waiting", shard.index, f"{self._label(shard.index)}: no room yet; {_said(held, only_copies)}")
            time.sleep(_POLL_SECONDS)

    def _unreserve(self, shard: ReleaseShard) -> None:
        """Remove a reservation that no byte came to; finished ranges stay for the next try."""
        path = self.path(shard.token_file)
        part, _ = partial_paths(path)
        if part.exists() and part.stat().st_size == 0:
            discard_partial(path)

    def _await_room(
        self,
        shard: ReleaseShard,
        held: dict[str, list[int]],
        only_copies: Collection[int],
        deadline: float,
        stopped: Callable[[], bool],
    ) -> None:
        if stopped():
            raise StoppedError(f"{self._label(shard.index)}: stopped while it waited for room")
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{self._label(shard.index)}: no room in {self.directory} within {self._room_seconds:g} s, "
                f"keep={self._keep}: {_said(held, only_copies)}. Raise keep, or give these windows caches of their own"
            )

    def _victims(self, shard: ReleaseShard, only_copies: Collection[int]) -> list[int]:
        held = {index for shards in self._leases().values() for index in shards} | set(only_copies)
        return victims(self._keep, self.present(), shard.bytes, held=held, wanted=shard.index, shards=len(self._shards))

    def _only_copy(self, index: int) -> str:
        """Why a shard cannot be fetched again if it is evicted; "" when it can."""
        shard = self._shards[index]
        if not any(self.path(file).exists() for file in shard.files):
            return ""
        for file in shard.files:
            store = self._place.store
            key = self._place.key(file.key)
            if isinstance(store, LocalStore) and store.path(key).resolve() == self.path(file).resolve():
                return "the cache is the release itself"
            try:
                info = store.head(key)
            except DataprepError as error:
                return f"the store cannot be asked whether it has {file.key} ({error})"
            if info is None or info.bytes != file.bytes:
                return f"the store does not have {file.key} any more, this is the only copy"
        return ""

    def _throw_away(self, index: int) -> None:
        """Out of sight at once; the bytes go with the trash. A reader that has it mapped keeps what it mapped."""
        shard = self._shards[index]
        state = self._read_state()
        if state.pop(str(index), None) is not None:
            self._write_state(state)
        for file in shard.files:
            path = self.path(file)
            if path.exists():
                os.replace(path, self._folder / "trash" / f"{path.name}-{secrets.token_hex(4)}")
            discard_partial(path)

    def _empty_trash(self) -> None:
        for path in (self._folder / "trash").iterdir():
            path.unlink(missing_ok=True)

    def _check_space(self, files: Iterable[ReleaseFile], index: int) -> None:
        needed = 0
        for file in files:
            part, _ = partial_paths(self.path(file))
            held = part.stat().st_blocks * 512 if part.exists() else 0
            needed += max(0, file.bytes - held)
        free = shutil.disk_usage(self.directory).free
        if needed > free:
            raise TransferError(
                f"{self._label(index)}: {needed} bytes are still to come, the disk of {self.directory} has {free} "
                "free. Free space there, or keep fewer shards"
            )

    # --- files of the folder

    def _locked(self) -> AbstractContextManager[None]:
        return _flocked(self._folder / "lock")

    @contextmanager
    def _fetching(self, index: int) -> Iterator[bool]:
        """Whether this process is the one that fetches the shard, for as long as the block lasts."""
        descriptor = os.open(self._folder / "fetch" / f"{index:06d}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        mine = _try_lock(descriptor)
        try:
            yield mine
        finally:
            if mine:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _read_state(self) -> dict[str, Any]:
        try:
            value = json.loads((self._folder / "state.json").read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            return {}  # a disk's damage: everything is verified again
        return value if isinstance(value, dict) else {}

    def _write_state(self, state: dict[str, Any]) -> None:
        self._replace(self._folder / "state.json", json.dumps(state, sort_keys=True).encode())

    def _replace(self, path: Path, data: bytes) -> None:
        # One fixed name, under the lock: what a kill leaves is overwritten, never added to.
        # Not synced: a swap must not wait for the disk, and what a power cut spoils is only verified again.
        draft = path.with_name(f"{path.name}.new")
        draft.write_bytes(data)
        os.replace(draft, path)

    def _adopt_manifest(self) -> None:
        path = self.directory / FOLDER / MANIFEST
        with _flocked(self.directory / FOLDER / "lock"):
            try:
                held = Release.from_bytes(path.read_bytes(), str(path))
            except (FileNotFoundError, FormatError):
                self._replace(path, self._release.to_bytes())
                return
        if held.digest != self._release.digest:
            raise ConfigError(
                f"{self.directory}: it holds shards of another release ({held.dataset}, {held.digest[:12]}; this one "
                f"is {self._release.dataset}, {self._release.digest[:12]}). Use another cache folder, or delete it"
            )


@contextmanager
def _flocked(path: Path) -> Iterator[None]:
    with open(path, "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Said aloud, because a forked child has the descriptor too, and closing ours alone would not unlock.
            fcntl.flock(lock, fcntl.LOCK_UN)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:
        return []


def _said(held: dict[str, list[int]], only_copies: Collection[int]) -> str:
    said = [f"process {name} holds {shards}" for name, shards in held.items() if shards]
    if only_copies:
        said.append(f"{sorted(only_copies)} cannot be fetched again")
    return "; ".join(said) or "the limit is reached"
