"""Artifacts in an object store, worked on in a folder of this machine.

In the bucket an artifact is a prefix with the same files as in a folder, and `receipt.json`; what has no receipt is not
there. Objects cannot be renamed, so

- a **first publication** writes the data under their final keys, then the receipt, if there is none yet;
- a **replacement** writes the data that differ to `<artifact>/.staging/<content>/`, then the receipt, if it is still
  the one that is to be replaced. That one write is the exchange: before it the old artifact is whole, after it the new
  one is, because a reader takes a file from that staging area as long as it is there. Then the server moves the objects
  to their final keys, one by one; a kill in between leaves the rest to the next run.

Two runs that make the same artifact write the same bytes under the same keys. Two that make different ones are told
apart by the conditional write of the receipt: the second one fails, and says so.

What a store knows of an object without reading it is its size and, where one of our uploads wrote it, its SHA-256. The
digest of others (those that the server composed, all of a `LocalStore`) is compared when they are published; `full`
verification reads them once in each version and remembers that below `<root>/.digests/`.

A build works in `<root>/<artifact>/` and publishes from there. After that, and for whatever a later step fetches, the
files are copies (`integrity/copies.py`) that may be deleted at any time.
"""

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from dataprep_assets.errors import CorruptSourceError, IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, Joined, Part, digest_of_parts
from dataprep_assets.integrity.commit import STAGING, write_atomically
from dataprep_assets.integrity.copies import Copies
from dataprep_assets.integrity.digest import canonical_json
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

A = TypeVar("A")
B = TypeVar("B")

_AT_ONCE = 8
_READ_BLOCK = 8 << 20
_TRIES = 3


_ABANDONED_SECONDS = 86_400.0


@dataclass(frozen=True)
class BucketArtifacts(ArtifactStore):
    """See the module. `root` is the folder of this machine; `open_store` opens the bucket once in each process.

    `url` is what people are shown. `budget_bytes` bounds the copies below `root`, not what is being built there.
    """

    root: Path
    open_store: Callable[[], Store] = field(repr=False)
    url: str = ""
    budget_bytes: int | None = None

    @property
    def store(self) -> Store:
        """The bucket."""
        return _opened(self.open_store)

    @property
    def copies(self) -> Copies:
        """What of it is on this machine."""
        return Copies(self.root, self.budget_bytes)

    def sweep(self, artifacts: Iterable[Artifact]) -> None:
        """As in a folder; in the bucket, uploads that nobody has gone on with for a day are given up."""
        every = list(artifacts)
        super().sweep(every)
        for dataset in sorted({artifact.dataset for artifact in every}):
            self.store.sweep(f"{dataset}/", older_than_seconds=_ABANDONED_SECONDS)

    def place(self, artifact: Artifact) -> str:
        return f"{self.url.rstrip('/')}/{artifact}"

    def receipt(self, artifact: Artifact) -> Receipt | None:
        try:
            data = b"".join(self.store.read(f"{artifact}/{NAME}"))
        except MissingArtifactError:
            return None
        return parse_receipt(data, f"{self.place(artifact)}/{NAME}")

    def receipts(self, artifacts: Sequence[Artifact]) -> list[Receipt | None]:
        return _at_once(self.receipt, artifacts)

    def damage(self, artifact: Artifact, receipt: Receipt, verification: Verification = "full") -> list[str]:
        """Missing objects, wrong sizes and wrong digests; with `full` none whose digest is not known.

        Bytes are read only where the store has no digest of them, and once in each version of the object.
        """

        def defect(record: FileRecord) -> str:
            found = self._located(artifact, receipt, record)
            if found is not None and verification == "full" and found.bytes == record.bytes:
                found = self._with_digest(found)
            return _differs(record, found)

        return [sentence for sentence in _at_once(defect, receipt.files) if sentence]

    def current(self, artifact: Artifact, key: str, verification: Verification = "full") -> Receipt | None:
        """As in a folder. What a kill interrupted is finished first: an artifact that was built here is published,
        a replacement settled."""
        found = self._current(artifact, key, verification)
        if found is not None:
            return found
        with _alone(self.directory(artifact)) as alone:
            if not alone:  # somebody builds it; or does so in the frame above this one
                return None
            try:
                built = read_receipt(self.directory(artifact))
            except IntegrityError:
                return None
            if built is None or built.key != key or damage(self.directory(artifact), built, "full"):
                return None
            self.publish(artifact)
        return self._current(artifact, key, verification)

    def _current(self, artifact: Artifact, key: str, verification: Verification) -> Receipt | None:
        try:
            receipt = self.receipt(artifact)
        except IntegrityError:
            return None
        if receipt is None or receipt.key != key:
            return None
        if self.damage(artifact, receipt, verification):
            return None
        if not self._is_settled(artifact, receipt):
            self.settle(artifact, receipt)
        return receipt

    def local(self, artifact: Artifact, names: Iterable[str] | None = None) -> Path:
        """A directory with copies of these files, verified when they were fetched.

        They stay until this process asks for more than the budget allows; the last ones handed out go last.
        """
        for _ in range(_TRIES):
            receipt = self.require(artifact)
            try:
                return self.copy(artifact, receipt, names)
            except (ConflictError, IntegrityError):
                if self.require(artifact).content == receipt.content:
                    raise
        raise self._replaced(artifact)

    def copy(self, artifact: Artifact, receipt: Receipt, names: Iterable[str] | None = None) -> Path:
        """As `local`, of exactly this receipt's content; MissingArtifactError when it was replaced and is not here."""
        records = [receipt.file(name) for name in names] if names is not None else list(receipt.files)

        def fetch(record: FileRecord, target: Path) -> None:
            found = self._located(artifact, receipt, record)
            if found is None or _differs(record, found):
                raise MissingArtifactError(
                    f"{self.place(artifact)}/{record.path}: {_differs(record, found)}. Materialize {artifact} again"
                )
            try:
                self.store.download(found.key, target, sha256=record.sha256)
            except CorruptSourceError as error:
                raise IntegrityError(
                    f"{self.place(artifact)}/{record.path}: its bytes are not those of its receipt. Materialize "
                    f"{artifact} again"
                ) from error

        return self.copies.have(artifact, receipt, records, fetch)

    def pinned(self, artifact: Artifact, receipt: Receipt, name: str) -> ObjectInfo:
        """The object that holds a file of this receipt's content: read it at its `version`.

        Raises MissingArtifactError when the artifact is another by now, or damaged.
        """
        record = receipt.file(name)
        for _ in range(_TRIES):
            found = self._located(artifact, receipt, record)
            now = self.receipt(artifact)
            if now is None or now.content != receipt.content:
                raise self._replaced(artifact)
            # The receipt changes before any object under a final key does, so what was found belongs to it.
            if found is not None and not _differs(record, found):
                return found
        raise MissingArtifactError(
            f"{self.place(artifact)}/{name}: {_differs(record, found)}. Materialize {artifact} again"
        )

    def join(self, staged: Path, name: str, parts: Sequence[Part], *, verify: bool = True) -> Joined:
        size = sum(part.record.bytes for part in parts)
        if verify or len(parts) != 1:
            digest = digest_of_parts(self._blocks(parts), parts, name)
        else:
            digest = parts[0].record.sha256
        return Joined(record=FileRecord(path=name, bytes=size, sha256=digest), parts=tuple(parts))

    def publish(self, artifact: Artifact, joined: Mapping[str, Joined] | None = None) -> None:
        """Bring the artifact in its directory into the bucket, joining on the server what was not made here.

        Raises IntegrityError when another run published something else meanwhile, or when the bucket has other bytes
        than were sent.
        """
        directory = self.directory(artifact)
        receipt = read_receipt(directory)
        if receipt is None:
            raise MissingArtifactError(f"{directory}: nothing was committed there that could be published")
        there = self.store.head(f"{artifact}/{NAME}")
        area = str(artifact) if there is None else _staging_area(artifact, receipt)
        sent = {
            record.path: self._send(directory, record, (joined or {}).get(record.path), f"{area}/{record.path}")
            for record in receipt.files
            if _differs(record, self._final(artifact, record), certain=True)
        }
        self._put_receipt(artifact, receipt, (directory / NAME).read_bytes(), there)
        self.settle(artifact, receipt)
        for info in list(self.store.list(f"{artifact}/{STAGING}/")):  # of replacements that this one forestalled
            self.store.delete(info.key)
        for record in receipt.files:
            if record.path in sent:
                self._check_sent(artifact, record, sent[record.path])
        self.copies.adopt(artifact, directory, receipt)

    def settle(self, artifact: Artifact, receipt: Receipt) -> None:
        """Move what a replacement staged to its final keys, and remove what is not the artifact's.

        What another content staged is left alone: that replacement may be under way.
        """
        area = f"{_staging_area(artifact, receipt)}/"
        staged = [info.key for info in self.store.list(area)]
        for key in staged:
            self.store.copy(key, f"{artifact}/{key.removeprefix(area)}")
        for key in [*self._strays(artifact, receipt), *staged]:
            self.store.delete(key)

    def _strays(self, artifact: Artifact, receipt: Receipt) -> list[str]:
        """Keys below the artifact that are neither its own nor staged."""
        listed = {f"{artifact}/{record.path}" for record in receipt.files} | {f"{artifact}/{NAME}"}
        staging = f"{artifact}/{STAGING}/"
        found = [info.key for info in self.store.list(f"{artifact}/")]
        strays = [key for key in found if key not in listed and not key.startswith(staging)]
        # Another artifact that lies below this one is never ours to take.
        return [] if any(key.endswith(f"/{NAME}") for key in strays) else strays

    def _is_settled(self, artifact: Artifact, receipt: Receipt) -> bool:
        area = f"{_staging_area(artifact, receipt)}/"
        return next(self.store.list(area), None) is None and not self._strays(artifact, receipt)

    def _final(self, artifact: Artifact, record: FileRecord) -> ObjectInfo | None:
        return self.store.head(f"{artifact}/{record.path}")

    def _located(self, artifact: Artifact, receipt: Receipt, record: FileRecord) -> ObjectInfo | None:
        """The object that holds a file: staged by a replacement that is not settled yet, or under its final key."""
        final = self._final(artifact, record)
        if not _differs(record, final, certain=True):
            return final
        return self.store.head(f"{_staging_area(artifact, receipt)}/{record.path}") or final

    def _blocks(self, parts: Sequence[Part]) -> Iterator[bytes]:
        """The bytes of published files, from their copies where they are here, else from the bucket."""
        for part in parts:
            receipt = self.require(part.artifact)
            copy = self.copies.find(part.artifact, receipt.content, part.record)
            if copy is not None:
                with open(copy, "rb", buffering=0) as file:
                    while data := file.read(_READ_BLOCK):
                        yield data
            else:
                info = self.pinned(part.artifact, receipt, part.record.path)
                yield from self.store.read(info.key, version=info.version)

    def _send(self, directory: Path, record: FileRecord, joined: Joined | None, key: str) -> ObjectInfo:
        there = self.store.head(key)
        if there is not None and not _differs(record, there, certain=True):
            return there  # an interrupted publication brought it
        path = directory / record.path
        if path.is_file():
            info = self.store.upload(path, key, sha256=record.sha256)
        elif joined is not None:
            info = self._compose(joined, key)
        else:
            raise IntegrityError(f"{path}: gone before it was published. Materialize it again")
        if defect := _differs(record, info):
            raise IntegrityError(f"{self.url}/{key}: {defect}, right after it was written. Run again")
        return replace(info, sha256=record.sha256)

    def _compose(self, joined: Joined, key: str) -> ObjectInfo:
        sources = []
        for part in joined.parts:
            found = self._located(part.artifact, self.require(part.artifact), part.record)
            if found is None or _differs(part.record, found):
                raise IntegrityError(
                    f"{self.place(part.artifact)}: {_differs(part.record, found)}. Materialize {part.artifact} again"
                )
            sources.append(found.key)
        return self.store.copy(sources[0], key) if len(sources) == 1 else self.store.compose(sources, key)

    def _put_receipt(self, artifact: Artifact, receipt: Receipt, data: bytes, there: ObjectInfo | None) -> None:
        version = there.version if there else None
        try:
            self.store.put(f"{artifact}/{NAME}", data, if_absent=there is None, if_version=version)
        except ConflictError as error:
            rival = self.receipt(artifact)
            if rival is None or rival.content != receipt.content:
                raise IntegrityError(
                    f"{self.place(artifact)}: another run published something else at the same time. Let one of the "
                    "two finish, then materialize this artifact again"
                ) from error

    def _check_sent(self, artifact: Artifact, record: FileRecord, sent: ObjectInfo) -> None:
        """A rival that published first may still have written over what was sent."""
        final = self._final(artifact, record)
        if defect := _differs(record, final):
            raise IntegrityError(
                f"{self.place(artifact)}: {defect}: another run wrote it at the same time. Let it finish, then "
                "materialize this artifact again"
            )
        assert final is not None
        for name in ("md5", "crc32c"):
            known, wanted = getattr(final, name), getattr(sent, name)
            if final.sha256 is None and None not in (known, wanted) and known != wanted:
                raise IntegrityError(f"{self.place(artifact)}/{record.path}: {name} changed right after it was written")
        self._remember(final, record.sha256)

    def _with_digest(self, info: ObjectInfo) -> ObjectInfo:
        """The object with its SHA-256, from the bytes of this very version where the store does not know it."""
        if info.sha256 is not None:
            return info
        memory = self._memory(info)
        try:
            value = json.loads(memory.read_bytes())
            if value["key"] == info.key and value["version"] == info.version:
                return replace(info, sha256=value["sha256"])
        except (OSError, ValueError, KeyError):
            pass
        digest = hashlib.sha256()
        for block in self.store.read(info.key, version=info.version):
            digest.update(block)
        self._remember(info, digest.hexdigest())
        return replace(info, sha256=digest.hexdigest())

    def _remember(self, info: ObjectInfo, sha256: str) -> None:
        if info.sha256 is None:
            path = self._memory(info)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, canonical_json({"key": info.key, "version": info.version, "sha256": sha256}))

    def _memory(self, info: ObjectInfo) -> Path:
        return self.root / ".digests" / f"{hashlib.sha256(info.key.encode()).hexdigest()[:32]}.json"

    def _replaced(self, artifact: Artifact) -> MissingArtifactError:
        return MissingArtifactError(
            f"{self.place(artifact)}: it was replaced, or removed, while it was read. Load it again"
        )


_STORES: dict[tuple[int, Callable[[], Store]], Store] = {}
_OPENING = threading.Lock()


def _opened(open_store: Callable[[], Store]) -> Store:
    """One client a process: they hold connection pools, and must not cross a fork."""
    key = (os.getpid(), open_store)
    with _OPENING:
        if key not in _STORES:
            _STORES[key] = open_store()
        return _STORES[key]


def _staging_area(artifact: Artifact, receipt: Receipt) -> str:
    """Where a replacement puts its data. Named by content: whatever is whole in it belongs to this content."""
    return f"{artifact}/{STAGING}/{receipt.content[:32]}"


def _at_once(do: Callable[[A], B], items: Iterable[A]) -> list[B]:
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(do, items))


@contextmanager
def _alone(final: Path) -> Iterator[bool]:
    """Whether no build of this directory is under way; none can begin while this is held."""
    area = final.parent / STAGING
    area.mkdir(parents=True, exist_ok=True)
    with open(area / f"{final.name}.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _differs(record: FileRecord, info: ObjectInfo | None, *, certain: bool = False) -> str:
    """What is wrong with an object; with `certain`, one whose digest the store does not know is not believed."""
    if info is None:
        return f"{record.path}: missing"
    if info.bytes != record.bytes:
        return f"{record.path}: {info.bytes} bytes, the receipt says {record.bytes}"
    if info.sha256 is not None and info.sha256 != record.sha256:
        return f"{record.path}: sha256 {info.sha256}, the receipt says {record.sha256}"
    return f"{record.path}: its digest is not known" if certain and info.sha256 is None else ""
