"""Artifacts in an object store, worked on in a cache folder.

In the bucket an artifact is a prefix with the same files as in a folder: data objects first, `receipt.json` last, so
that what has no receipt is not there. Objects cannot be renamed, so the first publication writes under the final keys,
and one that replaces an artifact writes under `<artifact>/.staging/<key>/`, and moves the objects on the server when
all of them are there: a run that fails half-way leaves the finished artifact as it was.

Below the cache folder the layout is the same. A build works there and publishes from there; what a later step needs
is fetched to there, verified. Files can be missing in it (those that the server joined, those that nobody asked for),
and everything but an artifact that is not published yet may be deleted at any time.

Two runs that make the same artifact write the same bytes under the same keys. Two that make different ones are told
apart by a conditional write of the receipt: the second one fails, and says so.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, Joined, Part, digest_of_parts
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.receipt import (
    NAME,
    FileRecord,
    Receipt,
    Verification,
    damage,
    parse_receipt,
    read_receipt,
)
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Store

_AT_ONCE = 8
_READ_BLOCK = 8 << 20


@dataclass(frozen=True)
class BucketArtifacts(ArtifactStore):
    """See the module. `root` is the cache folder; `open_store` opens the bucket once in each process.

    `budget_bytes` bounds the cache: the least recently used finished artifacts go first.
    """

    root: Path
    open_store: Callable[[], Store] = field(repr=False)
    url: str = ""
    budget_bytes: int | None = None

    @property
    def store(self) -> Store:
        """The bucket."""
        return _opened(self.open_store)

    def place(self, artifact: Artifact) -> str:
        return f"{self.url.rstrip('/')}/{artifact}"

    def receipt(self, artifact: Artifact) -> Receipt | None:
        found = self._receipt(artifact)
        return found[0] if found else None

    def receipts(self, artifacts: Sequence[Artifact]) -> list[Receipt | None]:
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            return list(threads.map(self.receipt, artifacts))

    def _receipt(self, artifact: Artifact) -> tuple[Receipt, ObjectInfo] | None:
        """The receipt and its object, read as one version."""
        key = f"{artifact}/{NAME}"
        for _ in range(3):
            info = self.store.head(key)
            if info is None:
                return None
            try:
                data = b"".join(self.store.read(key, version=info.version))
            except (ConflictError, MissingArtifactError):
                continue  # replaced between the two requests
            return parse_receipt(data, self.place(artifact)), info
        raise IntegrityError(f"{self.place(artifact)}/{NAME}: it keeps changing; another run is writing it. Run again")

    def damage(self, artifact: Artifact, receipt: Receipt, verification: Verification = "full") -> list[str]:
        """Sizes, and the digests that the store keeps of its objects; `bytes_damage` reads every byte."""
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            infos = list(threads.map(lambda f: self.store.head(f"{artifact}/{f.path}"), receipt.files))
        return [d for record, info in zip(receipt.files, infos, strict=True) if (d := _differs(record, info))]

    def bytes_damage(self, artifact: Artifact, receipt: Receipt) -> list[str]:
        """What is wrong with the artifact's objects, every byte read; and objects that its receipt does not list."""
        found = []
        for record in receipt.files:
            try:
                blocks = self.store.read(f"{artifact}/{record.path}")
                digest_of_parts(blocks, [Part(artifact, record)], f"{self.place(artifact)}/{record.path}")
            except (IntegrityError, MissingArtifactError) as error:
                found.append(str(error))
        listed = {record.path for record in receipt.files} | {NAME}
        prefix = f"{artifact}/"
        for info in self.store.list(prefix):
            name = info.key.removeprefix(prefix)
            if name not in listed and not name.startswith(f"{STAGING}/"):
                found.append(f"{name}: not in the receipt")
        return found

    def current(self, artifact: Artifact, key: str, verification: Verification = "full") -> Receipt | None:
        """As in a folder. An artifact that was built here but not published (a kill came between) is published now."""
        found = super().current(artifact, key, verification)
        if found is not None:
            return found
        directory = self.directory(artifact)
        try:
            built = read_receipt(directory)
        except IntegrityError:
            return None
        if built is None or built.key != key or damage(directory, built, "full"):
            return None
        self.publish(artifact)
        return super().current(artifact, key, verification)

    def local(self, artifact: Artifact, names: Iterable[str] | None = None) -> Path:
        receipt = self.require(artifact)
        wanted = [receipt.file(name) for name in names] if names is not None else list(receipt.files)
        directory = self.directory(artifact)
        with self._locked(artifact):
            if _cached(directory) != receipt.content:
                shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True, exist_ok=True)
            missing = [record for record in wanted if not _has(directory, record)]
            self._make_room(sum(record.bytes for record in missing), keep=directory)
            for record in missing:
                target = directory / record.path
                target.parent.mkdir(parents=True, exist_ok=True)
                self.store.download(f"{artifact}/{record.path}", target, sha256=record.sha256)
            if _cached(directory) != receipt.content:
                receipt.write(directory)
        os.utime(directory / NAME)
        return directory

    def join(self, staged: Path, name: str, parts: Sequence[Part], *, verify: bool = True) -> Joined:
        size = sum(part.record.bytes for part in parts)
        if verify or len(parts) != 1:
            digest = digest_of_parts(self._blocks(parts), parts, name)
        else:
            digest = parts[0].record.sha256
        return Joined(record=FileRecord(path=name, bytes=size, sha256=digest), parts=tuple(parts))

    def _blocks(self, parts: Sequence[Part]) -> Iterator[bytes]:
        """The bytes of committed files, from the cache where they are, else from the bucket."""
        for part in parts:
            cached = self.directory(part.artifact) / part.record.path
            if _has(cached.parent, FileRecord(path=cached.name, bytes=part.record.bytes, sha256="")):
                with open(cached, "rb", buffering=0) as file:
                    while data := file.read(_READ_BLOCK):
                        yield data
            else:
                yield from self.store.read(f"{part.artifact}/{part.record.path}")

    def publish(self, artifact: Artifact, joined: Mapping[str, Joined] | None = None) -> None:
        """Upload what the artifact's directory holds, join the rest on the server, then the receipt.

        Raises IntegrityError when another run published something else meanwhile.
        """
        directory, made = self.directory(artifact), joined or {}
        receipt = read_receipt(directory)
        if receipt is None:
            raise MissingArtifactError(f"{directory}: nothing was committed there that could be published")
        try:
            old = self._receipt(artifact)
        except IntegrityError:
            old = None  # damaged: it is not there, but its version is still what is replaced
        there = self.store.head(f"{artifact}/{NAME}")
        prefix = str(artifact) if there is None else f"{artifact}/{STAGING}/{receipt.key[:16]}"
        changed = [r for r in receipt.files if _differs(r, self.store.head(f"{artifact}/{r.path}"), certain=True)]
        for record in changed:
            self._put(directory, record, made.get(record.path), f"{prefix}/{record.path}")
        if prefix != str(artifact):
            for record in changed:
                self.store.copy(f"{prefix}/{record.path}", f"{artifact}/{record.path}")
        data = (directory / NAME).read_bytes()
        try:
            version = there.version if there else None
            self.store.put(f"{artifact}/{NAME}", data, if_absent=there is None, if_version=version)
        except ConflictError as error:
            self._accept_rival(artifact, receipt, error)
        for record in changed if prefix != str(artifact) else ():
            self.store.delete(f"{prefix}/{record.path}")
        for gone in {r.path for r in old[0].files} - {r.path for r in receipt.files} if old else ():
            self.store.delete(f"{artifact}/{gone}")
        self._make_room(0, keep=directory)

    def _put(self, directory: Path, record: FileRecord, joined: Joined | None, key: str) -> None:
        if _has(directory, record):
            info: ObjectInfo | None = self.store.upload(directory / record.path, key, sha256=record.sha256)
        elif joined is not None:
            sources = [f"{part.artifact}/{part.record.path}" for part in joined.parts]
            info = self.store.copy(sources[0], key) if len(sources) == 1 else self.store.compose(sources, key)
        else:
            raise IntegrityError(f"{directory / record.path}: gone before it was published. Materialize it again")
        if defect := _differs(record, info):
            raise IntegrityError(f"{self.url}: {key}: {defect}. Run again")

    def _accept_rival(self, artifact: Artifact, receipt: Receipt, error: ConflictError) -> None:
        rival = self._receipt(artifact)
        if rival is None or rival[0].content != receipt.content:
            raise IntegrityError(
                f"{self.place(artifact)}: another run published something else at the same time. Let one of the two "
                "finish, then materialize this artifact again"
            ) from error

    @contextmanager
    def _locked(self, artifact: Artifact) -> Iterator[None]:
        """Only one process fills or evicts an artifact's cache directory at a time."""
        directory = self.directory(artifact)
        area = directory.parent / STAGING
        area.mkdir(parents=True, exist_ok=True)
        with open(area / f"{directory.name}.cache.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _make_room(self, needed: int, keep: Path) -> None:
        """Evict least recently used artifacts until `needed` bytes fit into the budget."""
        if self.budget_bytes is None:
            return
        if needed > self.budget_bytes:
            raise ConfigError(
                f"{self.root}: the cache may hold {self.budget_bytes} bytes, {keep.name} alone needs {needed}. "
                "Raise DATAPREP_CACHE_BYTES"
            )
        held = sorted(_cached_artifacts(self.root), key=lambda entry: entry[0])
        used = sum(size for _, size, _ in held)
        for _, size, directory in held:
            if used + needed <= self.budget_bytes:
                return
            if directory != keep and self._evict(directory):
                used -= size

    def _evict(self, directory: Path) -> bool:
        """Remove a cached artifact that is in the bucket as it is here, and that nobody is filling."""
        try:
            receipt = read_receipt(directory)
        except IntegrityError:
            return False
        if receipt is None:
            return False
        artifact = Artifact(dataset=receipt.dataset, name=receipt.artifact, partition=receipt.partition)
        lock_path = directory.parent / STAGING / f"{directory.name}.cache.lock"
        lock_path.parent.mkdir(exist_ok=True)
        with open(lock_path, "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            kept = self.receipt(artifact)
            if kept is None or kept.content != receipt.content:
                return False  # the only copy
            shutil.rmtree(directory)
        return True


_STORES: dict[tuple[int, Callable[[], Store]], Store] = {}


def _opened(open_store: Callable[[], Store]) -> Store:
    """One client a process: they hold connection pools, and must not cross a fork."""
    key = (os.getpid(), open_store)
    if key not in _STORES:
        _STORES[key] = open_store()
    return _STORES[key]


def _has(directory: Path, record: FileRecord) -> bool:
    path = directory / record.path
    return path.is_file() and path.stat().st_size == record.bytes


def _cached(directory: Path) -> str | None:
    """Content of the artifact whose files a cache directory holds."""
    try:
        receipt = read_receipt(directory)
    except IntegrityError:
        return None
    return receipt.content if receipt else None


def _differs(record: FileRecord, info: ObjectInfo | None, *, certain: bool = False) -> str:
    """What is wrong with an object; with `certain`, one whose digest the store does not know is not believed."""
    if info is None:
        return f"{record.path}: missing"
    if info.bytes != record.bytes:
        return f"{record.path}: {info.bytes} bytes, the receipt says {record.bytes}"
    if info.sha256 is not None and info.sha256 != record.sha256:
        return f"{record.path}: sha256 {info.sha256}, the receipt says {record.sha256}"
    return f"{record.path}: its digest is not known" if certain and info.sha256 is None else ""


def _cached_artifacts(root: Path) -> Iterator[tuple[float, int, Path]]:
    """Last use, bytes and directory of every cached artifact."""
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(".")]
        if NAME in names:
            directory = Path(folder)
            files = [p for p in directory.rglob("*") if p.is_file()]
            yield (directory / NAME).stat().st_mtime, sum(p.stat().st_size for p in files), directory
            folders[:] = []
