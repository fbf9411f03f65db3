"""Artifacts in an object store, worked on in a folder of this machine.

In the bucket an artifact is a prefix with the same files as in a folder, and `receipt.json`; what has no receipt is not
there. Objects cannot be renamed, so all data are first written to `<artifact>/.staging/<content>-<base>/`, a staging
area (`base` is a digest of the version of the receipt that is to be replaced), and one conditional write decides:

- a **first publication** writes its receipt as a claim, `.staging/publishing.json`, if there is none yet. Then the
  server copies the data to their final keys, and the receipt goes last. Whoever finds a claim and no receipt finishes
  that publication before anything else, so a kill stops nobody.
- a **replacement** writes the receipt, if it is still the one that is to be replaced. That is the exchange: before it
  the old artifact is whole, after it the new one is, because a reader takes a file from the staging area as long as it
  is there. Then the server copies the data to their final keys; a kill in between leaves the rest to the next run.

Why two runs never mix their bytes: final keys get data only from the area of a content that was decided on, so a loser
never touches them. Of one base one content wins, so when its receipt is there, nobody will ever use the other areas of
that base or of older ones, and these are removed, before the first copy: a process that was stopped while it copied for
an older receipt finds its source gone, and its unfinished requests are aborted. What may belong to the next replacement
has the base of the present receipt, and is left alone. A file that is under its final key already counts only if the
present receipt lists the same bytes: what is left over may be about to be removed. What remains possible: a process
that stops between its look at the receipt and the removal of a file that no receipt listed, for as long as others
replace the artifact by one that has a file of that name, removes that file. That is found as damage and built again.

Two runs that make the same artifact write the same bytes under the same keys. Two that make different ones are told
apart by the conditional write: the second one fails, and says so.

What a store knows of an object without reading it is its size and, where this project wrote it, its SHA-256. `full`
verification reads others (those of other tools, all of a `LocalStore`) once in each version and remembers that below
`<root>/.digests/`.

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
from contextlib import contextmanager, suppress
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
_CLAIM = "publishing.json"

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

    def partitions(self, dataset: str, name: str) -> list[str]:
        below = f"{dataset}/{name}/"
        parts = (info.key.removeprefix(below).split("/") for info in self.store.list(below))
        return sorted(part[0] for part in parts if len(part) == 2 and part[1] == NAME)

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
        a publication that was decided on ended, on whatever machine it began."""
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
        if receipt is None:
            there, _ = self._finished(artifact)
            receipt = there.receipt if there is not None else None
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
        there, broken = self._finished(artifact)
        area = f"{_areas(artifact, receipt)}{_base(there)}"
        sent = {
            record.path: self._send(directory, record, (joined or {}).get(record.path), f"{area}/{record.path}")
            for record in receipt.files
            if not self._is_kept(artifact, record, there)
        }
        data = (directory / NAME).read_bytes()
        if there is None:
            self._claim(artifact, receipt, data, broken)
            self._complete(artifact, receipt, data)
        elif there.receipt is None or (there.receipt.key, there.receipt.content) != (receipt.key, receipt.content):
            self._replace(artifact, receipt, data, there)
        self.settle(artifact, receipt)
        for record in receipt.files:
            if record.path in sent:
                self._check_sent(artifact, record, sent[record.path])
        self.copies.adopt(artifact, directory, receipt)

    def settle(self, artifact: Artifact, receipt: Receipt) -> None:
        """Copy what is staged of this receipt's content to its final keys, and remove what is nobody's any more.

        Nothing is done for a receipt that was replaced.
        """
        staged = [info.key for info in self.store.list(f"{artifact}/{STAGING}/")]
        # Only now: what was listed while this receipt was there cannot belong to a later one.
        present = self._present(artifact)
        if present is None or not present.has(receipt):
            return
        mine = _areas(artifact, receipt)
        _at_once(self.store.delete, [key for key in staged if not key.startswith(mine) and not present.is_base_of(key)])
        moved = self._move(artifact, receipt, [key for key in staged if key.startswith(mine)])
        strays = self._strays(artifact, receipt)
        present = self._present(artifact)
        if present is not None and present.has(receipt):
            _at_once(self.store.delete, [*strays, *moved])

    def _finished(self, artifact: Artifact) -> "tuple[_Present | None, ObjectInfo | None]":
        """The receipt that is there, after what other runs began and must be ended was ended.

        Without one, also the claim of a publication that cannot be ended, because its data are gone.
        """
        key = _claim_key(artifact)
        for _ in range(_TRIES):
            present, broken = self._present(artifact), None
            if present is None and (info := self.store.head(key)) is not None:
                try:
                    data = b"".join(self.store.read(key, version=info.version))
                except (ConflictError, MissingArtifactError):
                    continue
                if self._present(artifact) is not None:  # the claim may be a void one, made since
                    continue
                broken = None if self._complete_claimed(artifact, data) else info
                present = self._present(artifact)
            if present is not None and present.receipt is not None and not self._is_settled(artifact, present.receipt):
                self.settle(artifact, present.receipt)
                present = self._present(artifact)
            return present, broken if present is None else None
        raise self._lost(artifact)

    def _complete_claimed(self, artifact: Artifact, data: bytes) -> bool:
        """End the publication of another run; False when that cannot be done."""
        try:
            self._complete(artifact, parse_receipt(data, f"{self.url}/{_claim_key(artifact)}"), data)
        except IntegrityError:
            return False
        return True

    def _claim(self, artifact: Artifact, receipt: Receipt, data: bytes, broken: ObjectInfo | None) -> None:
        """Have the first publication of this artifact be this one; IntegrityError when it is another's."""
        key = _claim_key(artifact)
        try:
            self.store.put(key, data, if_absent=broken is None, if_version=broken.version if broken else None)
        except ConflictError as error:
            try:
                claimed = parse_receipt(b"".join(self.store.read(key)), f"{self.url}/{key}").content
            except MissingArtifactError:  # published meanwhile
                claimed = ""
            present = self._present(artifact)
            if claimed != receipt.content if present is None else not present.has(receipt):
                raise self._lost(artifact) from error
        else:
            # Claims are removed after the receipt has come: one that was made since then is void.
            present = self._present(artifact)
            if present is not None and not present.has(receipt):
                self.store.delete(key)
                raise self._lost(artifact)

    def _complete(self, artifact: Artifact, receipt: Receipt, data: bytes) -> None:
        """Copy what was claimed to its final keys and write the receipt. Any number of processes may do it at once."""
        self._move(artifact, receipt, [info.key for info in self.store.list(_areas(artifact, receipt))])
        defects = _at_once(lambda record: _differs(record, self._final(artifact, record)), receipt.files)
        wrong = next(filter(None, defects), "")
        # Where a receipt is, another process did it, and the artifact may be the next one already.
        if wrong and self.store.head(f"{artifact}/{NAME}") is None:
            raise IntegrityError(f"{self.place(artifact)}: {wrong}, right after it was written. Run again")
        with suppress(ConflictError):
            self.store.put(f"{artifact}/{NAME}", data, if_absent=True)

    def _move(self, artifact: Artifact, receipt: Receipt, staged: Sequence[str]) -> list[str]:
        """Copy staged objects to their final keys; those that can be removed now."""
        areas, records = _areas(artifact, receipt), {record.path: record for record in receipt.files}

        def move(key: str) -> str:
            base, _, name = key.removeprefix(areas).partition("/")
            final = f"{artifact}/{name}"
            if base != _base(None):  # a first publication has no predecessor that could still be copying
                self.store.sweep(final)
            if name not in records or not _differs(records[name], self._final(artifact, records[name]), certain=True):
                return key  # it is there already
            for _ in range(_TRIES):
                try:
                    self.store.copy(key, final)
                except (ConflictError, MissingArtifactError):
                    if self.store.head(key) is None:  # another process moved it, or it was replaced
                        return ""
                else:
                    return key
            return ""

        return [key for key in _at_once(move, staged) if key]

    def _strays(self, artifact: Artifact, receipt: Receipt) -> list[str]:
        """Keys below the artifact that are neither its own nor staged."""
        listed = {f"{artifact}/{record.path}" for record in receipt.files} | {f"{artifact}/{NAME}"}
        staging = f"{artifact}/{STAGING}/"
        found = [info.key for info in self.store.list(f"{artifact}/")]
        strays = [key for key in found if key not in listed and not key.startswith(staging)]
        # Another artifact that lies below this one is never ours to take.
        return [] if any(key.endswith(f"/{NAME}") for key in strays) else strays

    def _is_settled(self, artifact: Artifact, receipt: Receipt) -> bool:
        staged = [info.key for info in self.store.list(f"{artifact}/{STAGING}/")]
        present = self._present(artifact) if staged else None
        mine = _areas(artifact, receipt)
        left = [key for key in staged if key.startswith(mine) or present is None or not present.is_base_of(key)]
        return not left and not self._strays(artifact, receipt)

    def _present(self, artifact: Artifact) -> "_Present | None":
        """The receipt with its version; None when there is none."""
        key = f"{artifact}/{NAME}"
        for _ in range(_TRIES):
            info = self.store.head(key)
            if info is None:
                return None
            try:
                data = b"".join(self.store.read(key, version=info.version))
            except (ConflictError, MissingArtifactError):
                continue
            try:
                return _Present(info.version, parse_receipt(data, f"{self.place(artifact)}/{NAME}"))
            except IntegrityError:
                return _Present(info.version, None)
        raise self._lost(artifact)

    def _final(self, artifact: Artifact, record: FileRecord) -> ObjectInfo | None:
        return self.store.head(f"{artifact}/{record.path}")

    def _is_kept(self, artifact: Artifact, record: FileRecord, there: "_Present | None") -> bool:
        """Whether a file is under its final key already, and nobody is about to change that."""
        if there is not None and (there.receipt is None or record not in there.receipt.files):
            return False
        return not _differs(record, self._final(artifact, record), certain=True)

    def _located(self, artifact: Artifact, receipt: Receipt, record: FileRecord) -> ObjectInfo | None:
        """The object that holds a file: staged by a replacement that is not settled yet, or under its final key."""
        final = self._final(artifact, record)
        if not _differs(record, final, certain=True):
            return final
        areas = _areas(artifact, receipt)
        for info in self.store.list(areas):
            if info.key.removeprefix(areas).partition("/")[2] == record.path:
                return self.store.head(info.key) or final
        return final

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
        def find(part: Part) -> ObjectInfo:
            found = self._located(part.artifact, self.require(part.artifact), part.record)
            if found is None or _differs(part.record, found):
                raise IntegrityError(
                    f"{self.place(part.artifact)}: {_differs(part.record, found)}. Materialize {part.artifact} again"
                )
            return found

        sources = _at_once(find, joined.parts)
        keys = [source.key for source in sources]
        made = (
            self.store.copy(keys[0], key)
            if len(keys) == 1
            else self.store.compose(keys, key, sha256=joined.record.sha256)
        )
        # The digest that is recorded with it is that of these versions.
        for before, after in zip(sources, _at_once(self.store.head, keys), strict=True):
            if after is None or after.version != before.version:
                self.store.delete(key)
                raise IntegrityError(f"{self.url}/{before.key}: it was replaced while it was joined. Run again")
        return made

    def _replace(self, artifact: Artifact, receipt: Receipt, data: bytes, there: "_Present") -> None:
        try:
            self.store.put(f"{artifact}/{NAME}", data, if_version=there.version)
        except ConflictError as error:
            present = self._present(artifact)
            if present is None or not present.has(receipt):
                raise self._lost(artifact) from error

    def _lost(self, artifact: Artifact) -> IntegrityError:
        return IntegrityError(
            f"{self.place(artifact)}: another run published something else at the same time. Let one of the "
            "two finish, then materialize this artifact again"
        )

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


@dataclass(frozen=True)
class _Present:
    """A receipt that is there, in this version; None where its bytes are no receipt."""

    version: str
    receipt: Receipt | None

    def has(self, other: Receipt) -> bool:
        """Whether it stands for the same content."""
        return self.receipt is not None and self.receipt.content == other.content

    def is_base_of(self, key: str) -> bool:
        """Whether a staged object belongs to a replacement of this very receipt."""
        area = key.partition(f"/{STAGING}/")[2].partition("/")[0]
        return area.endswith(f"-{_base(self)}")


def _areas(artifact: Artifact, receipt: Receipt) -> str:
    """How the keys begin of all that is staged of a content. Whatever is whole there belongs to this content."""
    return f"{artifact}/{STAGING}/{receipt.content[:32]}-"


def _base(there: _Present | None) -> str:
    """What the name of an area says of the receipt that is to be replaced."""
    return "new" if there is None else hashlib.sha256(there.version.encode()).hexdigest()[:16]


def _claim_key(artifact: Artifact) -> str:
    return f"{artifact}/{STAGING}/{_CLAIM}"


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
