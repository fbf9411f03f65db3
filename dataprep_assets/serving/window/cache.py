"""Disk cache for the shards of one prefix of a release, shared by any number of processes on a machine.

Shards are stored in the cache folder under their own names, so the original reader can use the folder. The processes
share state in files next to the shards (`SharedState`): the verified shards, the shards in use, and the process that
downloads each shard. A shard is trusted only after its size, SHA-256, header and a sample of its ids match the
manifest. It is verified again if the size, inode or modification time of a file changes.

No lock is held during a transfer or a request to a store, except the lock of the shard that is being downloaded.

Entry point: `Cache`.
"""

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from dataprep_assets.errors import (
    ConfigError,
    CorruptSourceError,
    DataprepError,
    FormatError,
    MissingArtifactError,
    TransferError,
    count_of,
)
from dataprep_assets.formats import npy_shards, sample_ids
from dataprep_assets.serving.window.keep_policy import Keep, choose_victims, has_room
from dataprep_assets.serving.window.kept_manifest import keep_manifest, refuse_published
from dataprep_assets.serving.window.readers import Shard, open_pair
from dataprep_assets.serving.window.release import Release, ReleaseFile, ReleaseLocation, ReleaseShard
from dataprep_assets.serving.window.shared_state import POLL_SECONDS, SharedState, choose_file_mode, make_folder
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stores.local import LocalStore
from dataprep_assets.stores.locks import open_own_file
from dataprep_assets.stores.ranged import discard_partial, get_partial_path, measure_partial_bytes
from dataprep_assets.stores.retry import StoppedError
from dataprep_assets.stores.store import Progress

SAMPLED_IDS = 64
"""Number of samples whose ids are recomputed before a shard is trusted.

A few are enough, because the ids of a different shard or sequence length differ for every sample. The digest detects
single damaged bytes.
"""

Note = Callable[[str, int, str], None]
"""Called with each event: its kind (`evicted`, `kept`, `waiting`, `refused`), the shard and a sentence."""


class Cache:
    """Cache of a window. Call `attach` before anything else, and `detach` at the end.

    `directory` is the cache folder, `place` the location of the published release and `release` its manifest. `prefix`
    selects the shards (`train`). `keep` is the eviction policy. `room_seconds` is how long `ensure` waits for room that
    other processes occupy.
    """

    def __init__(
        self, directory: Path, place: ReleaseLocation, release: Release, prefix: str, keep: Keep, room_seconds: float
    ) -> None:
        self.directory = directory
        self._place = place
        self._release = release
        self._shards = release.shards_of(prefix)
        self._keep = keep
        self._room_seconds = room_seconds
        self._state = SharedState(directory, prefix, sensitive=release.sensitive)

    def attach(self) -> None:
        """Join the processes that share this folder, and remove the files of killed processes.

        Raises ConfigError if the folder contains a different release.
        """
        refuse_published(self.directory, self._release)
        self._state.make_folders()
        keep_manifest(self.directory, self._release)
        self._state.attach()

    def detach(self) -> None:
        """Release all shards. May be called twice."""
        self._state.detach()

    def hold(self, shards: Collection[int]) -> None:
        """Declare the shards that this process needs, so that no process evicts them; replaces the last declaration."""
        self._state.hold(shards)

    # --- files on disk

    def path(self, file: ReleaseFile) -> Path:
        """Return the path of a release's file in the cache."""
        return self.directory / file.key

    def is_verified(self, index: int) -> bool:
        """Return whether the shard exists and has not changed since it was verified, without reading its data."""
        verified_looks = self._state.read_verified_shards().get(str(index))
        return verified_looks is not None and verified_looks == self._read_file_states(index)

    def open(self, index: int) -> Shard:
        """Return a verified shard, memory-mapped; raise CorruptSourceError if it is not verified or has changed."""
        if not self.is_verified(index):
            raise CorruptSourceError(
                f"{self._format_label(index)}: the files on disk changed after they were verified. Open a new "
                "window, which downloads the shard again"
            )
        shard = self._shards[index]
        return Shard(
            index=index,
            token_path=self.path(shard.token_file),
            ids_path=self.path(shard.ids_file),
            sequence_length=self._release.sequence_length,
        )

    def find_cached_shards(self) -> dict[int, int]:
        """Return the size of each shard that is on disk, completely or partly (index → bytes of the complete shard)."""
        # List the folder once, because a release may have thousands of shards. Include partial files, which also take
        # space.
        names = {name.removesuffix(".part") for name in _list_names(self.path(self._shards[0].token_file).parent)}
        return {
            shard.index: shard.bytes
            for shard in self._shards
            if any(self.path(file).name in names for file in shard.files)
        }

    def _read_file_states(self, index: int) -> list[list[int]] | None:
        try:
            statuses = [self.path(file).stat() for file in self._shards[index].files]
        except FileNotFoundError:
            return None
        return [[status.st_size, status.st_ino, status.st_mtime_ns] for status in statuses]

    def _format_label(self, index: int) -> str:
        return f"shard {self._shards[index].token_file.key} of {self._place}"

    # --- downloading a shard

    def ensure(self, index: int, *, progress: Progress, stopped: Callable[[], bool], note: Note) -> None:
        """Ensure that shard `index` is on disk and verified: download it, or wait for the process that does.

        `progress` is called with the number of received bytes (negative for discarded ones). `stopped` returns whether
        the shard is no longer needed. `note` is called with each event.

        Raises TransferError, CorruptSourceError and MissingArtifactError. Raises ConfigError if other processes occupy
        all the room, and StoppedError once `stopped()` is true.
        """
        while not self.is_verified(index):
            with self._state.claim_download(index) as is_owner:
                if is_owner:
                    # Check again, because another process may have finished the shard in the meantime.
                    if not self.is_verified(index):
                        self._verify_or_fetch(index, progress, stopped, note)
                    return
            if stopped():
                raise StoppedError(f"{self._format_label(index)}: stopped while another process downloads it")
            time.sleep(POLL_SECONDS)

    def _verify_or_fetch(self, index: int, progress: Progress, stopped: Callable[[], bool], note: Note) -> None:
        shard = self._shards[index]
        missing = []
        for file in shard.files:
            defect = self._find_defect(file)
            if defect is None:
                missing.append(file)
            elif defect:
                note("refused", index, defect)
                missing.append(file)
            else:
                # Discard this file's empty partial file, because it reserves room, and a killed download of the shard's
                # other file may have left it.
                discard_partial(self.path(file))
                progress(file.bytes)
        if missing:
            # Check the store before making room, so that nothing is evicted for a shard that cannot be downloaded.
            self._check_remote(missing)
            self._make_room(shard, stopped, note)
        try:
            # Check the free space only now, because the eviction has freed space for the shard.
            self._check_space(missing, index)
            for file in missing:
                key, path = self._place.key(file.key), self.path(file)
                self._create_partial_file(file)
                self._place.store.download(key, path, sha256=file.sha256, progress=progress)
        # Catch every exception, even an interrupt, because an abandoned reservation would take room from other
        # processes.
        except BaseException:
            self._unreserve(shard)
            raise
        self._check_content(shard)
        looks = self._read_file_states(index)
        # Read and replace the state under one lock, because other processes add their shards to it.
        with self._state.hold_lock():
            self._state.write_verified_shards({**self._state.read_verified_shards(), str(index): looks})

    def _find_defect(self, file: ReleaseFile) -> str | None:
        """Return why the existing file is wrong, "" if it is valid, or None if it does not exist."""
        path = self.path(file)
        if not path.exists():
            return None
        if (size := path.stat().st_size) != file.bytes:
            return f"{path}: has {count_of(size, 'byte')}, but the release lists {file.bytes}; downloading it again"
        if (digest := sha256_file(path)) != file.sha256:
            return f"{path}: has sha256 {digest}, but the release lists {file.sha256}; downloading it again"
        return ""

    def _check_remote(self, files: Iterable[ReleaseFile]) -> None:
        """Raise an error for objects that cannot belong to the release, before any byte is downloaded."""
        for file in files:
            location = f"{self._place}/{file.key}"
            info = self._place.store.head(self._place.key(file.key))
            if info is None:
                raise MissingArtifactError(
                    f"{location}: listed in the release, but missing in the store. Publish the release again"
                )
            if info.bytes != file.bytes:
                raise CorruptSourceError(
                    f"{location}: has {count_of(info.bytes, 'byte')}, but the release lists {file.bytes}. Publish the "
                    "release again"
                )
            if info.sha256 not in (None, file.sha256):
                raise CorruptSourceError(
                    f"{location}: has sha256 {info.sha256}, but the release lists {file.sha256}. Publish the release "
                    "again"
                )

    def _check_content(self, shard: ReleaseShard) -> None:
        """Check header, sizes and the ids of some samples, because a matching digest does not make a shard readable."""
        token_path, ids_path = self.path(shard.token_file), self.path(shard.ids_file)
        length = self._release.sequence_length
        try:
            npy_shards.validate(token_path, dtype=self._release.dtype, tokens=shard.tokens, sequence_length=length)
            tokens, ids = open_pair(token_path, ids_path, length)
            wrong_samples = sample_ids.find_differing(tokens, ids, length, sample=SAMPLED_IDS)
        except FormatError as error:
            raise CorruptSourceError(
                f"{self._format_label(shard.index)}: the published files are damaged: {error}"
            ) from error
        if wrong_samples:
            raise CorruptSourceError(
                f"{self._format_label(shard.index)}: the published files are damaged: the ids of samples "
                f"{', '.join(map(str, wrong_samples[:4]))} do not match their tokens (wrong sequence length, or ids of "
                "another shard). Rebuild the shard and publish the release again"
            )

    # --- room in the cache

    def _make_room(self, shard: ReleaseShard, stopped: Callable[[], bool], note: Note) -> None:
        """Evict shards according to the policy, and reserve the shard's room with an empty partial file."""
        deadline = time.monotonic() + self._room_seconds
        waiting = False
        only_copies: set[int] = set()
        while True:
            with self._state.hold_lock():
                candidates = self._choose_victims(shard, only_copies)
            # Query the store without the lock, because the store may respond slowly.
            for index in candidates:
                if reason := self._explain_missing_source(index):
                    only_copies.add(index)
                    note("kept", index, f"{self._format_label(index)} is kept: {reason}")
            with self._state.hold_lock():
                # Choose again, because other processes may have started to use some of these shards, which must not be
                # evicted.
                evicted = [index for index in self._choose_victims(shard, only_copies) if index in candidates]
                for index in evicted:
                    self._throw_away(index)
                remaining = {i: size for i, size in self.find_cached_shards().items() if i != shard.index}
                if has_room(self._keep, remaining, shard.bytes):
                    # Reserve the room under the lock, so that two processes cannot take the same room.
                    self._create_partial_file(shard.token_file)
                leases = self._state.read_leases() if not has_room(self._keep, remaining, shard.bytes) else None
            self._state.empty_trash()
            for index in evicted:
                note("evicted", index, f"{self._format_label(index)} was evicted from {self.directory}")
            if leases is None:
                return
            self._await_room(shard, leases, only_copies, deadline, stopped)
            if not waiting:
                waiting = True
                note(
                    "waiting",
                    shard.index,
                    f"{self._format_label(shard.index)}: no space yet; {_describe_users(leases, only_copies)}",
                )
            time.sleep(POLL_SECONDS)

    def _create_partial_file(self, file: ReleaseFile) -> None:
        """Create the empty partial file of a download, if it does not exist; the download keeps its permissions."""
        part = get_partial_path(self.path(file))
        make_folder(part.parent, self._release.sensitive)
        descriptor = open_own_file(part, os.O_WRONLY | os.O_CREAT, choose_file_mode(self._release.sensitive))
        if self._release.sensitive:
            os.fchmod(descriptor, choose_file_mode(True))  # an existing file keeps its permissions when it is opened
        os.close(descriptor)

    def _unreserve(self, shard: ReleaseShard) -> None:
        """Remove the shard's partial files, which frees its room."""
        for path in map(self.path, shard.files):
            discard_partial(path)

    def _await_room(
        self,
        shard: ReleaseShard,
        held_shards: dict[str, list[int]],
        only_copies: Collection[int],
        deadline: float,
        stopped: Callable[[], bool],
    ) -> None:
        if stopped():
            raise StoppedError(f"{self._format_label(shard.index)}: stopped while waiting for space")
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{self._format_label(shard.index)}: no space in {self.directory} after {self._room_seconds:g} s "
                f"(keep={self._keep}): {_describe_users(held_shards, only_copies)}. Raise `keep`, or give each "
                "window its own "
                "cache folder"
            )

    def _choose_victims(self, shard: ReleaseShard, only_copies: Collection[int]) -> list[int]:
        held_indices = {index for shards in self._state.read_leases().values() for index in shards} | set(only_copies)
        return choose_victims(
            self._keep,
            self.find_cached_shards(),
            shard.bytes,
            held_shards=held_indices,
            needed_shard=shard.index,
            shards=len(self._shards),
        )

    def _explain_missing_source(self, index: int) -> str:
        """Return why an evicted shard could not be downloaded again, or "" if it could."""
        shard = self._shards[index]
        # A shard with only partial files may always be evicted, because these files are not a copy of the shard.
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
                return f"cannot query the store for {file.key} ({error})"
            if info is None or info.bytes != file.bytes:
                return f"the store no longer has {file.key}, so this is the only copy"
        return ""

    def _throw_away(self, index: int) -> None:
        """Move a shard to the trash, which is emptied later. Readers that have it mapped keep its data."""
        shard = self._shards[index]
        # Remove the verified state first, so that the remaining files are verified before use if this process is
        # killed.
        verified = self._state.read_verified_shards()
        if verified.pop(str(index), None) is not None:
            self._state.write_verified_shards(verified)
        for file in shard.files:
            path = self.path(file)
            if path.exists():
                self._state.move_to_trash(path)
            discard_partial(path)

    def _check_space(self, files: Iterable[ReleaseFile], index: int) -> None:
        needed = 0
        for file in files:
            needed += max(0, file.bytes - measure_partial_bytes(self.path(file)))
        free = shutil.disk_usage(self.directory).free
        if needed > free:
            raise TransferError(
                f"{self._format_label(index)}: the download needs {count_of(needed, 'byte')}, but the disk of "
                f"{self.directory} has only {free} free. Free space there, or lower `keep`"
            )


def _list_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:
        return []


def _format_shards(indices: Collection[int]) -> str:
    return f"shard{'s' if len(indices) > 1 else ''} {', '.join(map(str, sorted(indices)))}"


def _describe_users(held_shards: dict[str, list[int]], only_copies: Collection[int]) -> str:
    texts = [f"process {name} uses {_format_shards(shards)}" for name, shards in held_shards.items() if shards]
    if only_copies:
        texts.append(f"{_format_shards(only_copies)} cannot be downloaded again")
    return "; ".join(texts) or "the limit is reached"
