"""Artifacts in an object store, built in a local folder.

A build works in `<root>/<artifact>/` and publishes from there. :mod:`dataprep_assets.integrity.publication` describes
the protocol, and why two runs never mix their bytes. Afterwards, these files and the files that later steps download
are copies (`integrity/verified_copies.py`), which may be deleted at any time.

Without reading an object, a store knows its size and, if this project wrote it, its SHA-256. Other objects (written by
other tools, or in a `LocalStore`) are read once per version, and their digests are stored below `<root>/.digests/`.

Entry point: :class:`BucketArtifacts`.
"""

import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import CorruptSourceError, IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifacts import (
    Artifact,
    ArtifactStore,
    FileRef,
    JoinedFile,
    build_nested_artifacts_error,
    digest_parts,
    require_artifact,
)
from dataprep_assets.integrity.commit import hold_alone, list_leftovers, remove_directory, write_atomically
from dataprep_assets.integrity.publication import Publication, find_object_defect
from dataprep_assets.integrity.receipt import (
    NAME,
    FileRecord,
    Receipt,
    Verification,
    find_damage,
    parse_receipt,
    read_receipt,
)
from dataprep_assets.integrity.verified_copies import VerifiedCopies
from dataprep_assets.stores.files import canonical_json
from dataprep_assets.stores.pool import REQUESTS_AT_ONCE, map_all
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Store


class _PublishedStore(Protocol):
    """The part of a bucket's artifact store that ranged reads need; picklable."""

    @property
    def store(self) -> Store: ...

    def find_pinned(self, artifact: Artifact, receipt: Receipt, name: str) -> ObjectInfo: ...


class ObjectRanges:
    """Ranged reads of the file `name` of one content in a bucket. Can be pickled for other processes."""

    def __init__(self, store: _PublishedStore, artifact: Artifact, receipt: Receipt, name: str) -> None:
        self._store, self._artifact, self._receipt, self._name = store, artifact, receipt, name
        # The object that has this content; None until the object is looked up.
        self._info: ObjectInfo | None = None

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self._receipt.file(self._name).bytes

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`.

        Raises MissingArtifactError if the artifact was replaced since its receipt was read.
        """
        # A reader may request data at the end of a file (`_RemoteFile`), but HTTP has no empty range.
        if start >= stop:
            return b""
        for is_last_try in (False, True):
            if self._info is None:
                self._info = self._store.find_pinned(self._artifact, self._receipt, self._name)
            try:
                return b"".join(self._store.store.read(self._info.key, start, stop, version=self._info.version))
            except (ConflictError, MissingArtifactError):
                # Look up the object again, because the content may have moved to another key, or may have been written
                # again as a new version.
                self._info = None
                if is_last_try:
                    raise
        raise AssertionError("unreachable")


@dataclass(frozen=True)
class ObjectDigests:
    """Digests of objects, stored in the local folder `root`, which also contains the bucket's copies."""

    root: Path

    def with_digest(self, store: Store, info: ObjectInfo) -> ObjectInfo:
        """Return the object with its SHA-256: from the store, from the local folder, or from reading this version."""
        if info.sha256 is not None:
            return info
        path = self._digest_path(info)
        try:
            value = load_untrusted_json(path.read_bytes())
            if value["key"] == info.key and value["version"] == info.version and isinstance(value["sha256"], str):
                return replace(info, sha256=value["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            # The digest of this version is missing or damaged, so the code below computes and stores it.
            pass
        digest = hashlib.sha256()
        for block in store.read(info.key, version=info.version):
            digest.update(block)
        self.remember(info, digest.hexdigest())
        return replace(info, sha256=digest.hexdigest())

    def remember(self, info: ObjectInfo, sha256: str) -> None:
        """Store the SHA-256 (hex) of this version of an object, unless the store already has it."""
        if info.sha256 is None:
            path = self._digest_path(info)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, canonical_json({"key": info.key, "version": info.version, "sha256": sha256}))

    def _digest_path(self, info: ObjectInfo) -> Path:
        # Use a hash as the name, because a key contains slashes and may be too long for a file name. Leave out the
        # version, so that the digest of a newer version replaces the older digest and the folder does not grow.
        return self.root / ".digests" / f"{hashlib.sha256(info.key.encode()).hexdigest()[:32]}.json"


_READ_BLOCK = 8 << 20
_TRIES = 3
_ABANDONED_SECONDS = 86_400.0


@dataclass(frozen=True)
class BucketArtifacts(ArtifactStore):
    """Artifact store in a bucket; the module docstring describes how it works.

    Attributes:
        root: The local folder.
        open_store: Opens the bucket; called once per process.
        url: URL of the bucket for messages.
        budget_bytes: Limit for the copies below `root`, excluding running builds.
        private: Whether only the owner can read the copies.
    """

    root: Path
    open_store: Callable[[], Store] = field(repr=False)
    url: str = ""
    budget_bytes: int | None = None
    private: bool = False
    knows_digests = True

    @property
    def store(self) -> Store:
        """Store of the bucket, opened once per process."""
        return _open_once(self.open_store)

    @property
    def copies(self) -> VerifiedCopies:
        """Local copies of the bucket's files."""
        return VerifiedCopies(self.root, self.budget_bytes, self.private)

    @property
    def _digests(self) -> ObjectDigests:
        return ObjectDigests(self.root)

    def _open_publication(self, artifact: Artifact) -> Publication:
        return Publication(store=self.store, artifact=artifact, location=self.location(artifact))

    def sweep(self, artifacts: Iterable[Artifact]) -> None:
        """Sweep the local folder, and abort uploads in the bucket that have been idle for a day."""
        all_artifacts = list(artifacts)
        super().sweep(all_artifacts)
        for dataset in sorted({artifact.dataset for artifact in all_artifacts}):
            self.store.sweep(f"{dataset}/", older_than_seconds=_ABANDONED_SECONDS)

    def partitions(self, dataset: str, name: str) -> list[str]:
        return sorted(self._list_folders(f"{dataset}/{name}/") | list_leftovers(self.root / dataset / name))

    def names(self, dataset: str) -> list[str]:
        return sorted(self._list_folders(f"{dataset}/"))

    def _list_folders(self, prefix: str) -> set[str]:
        parts = (info.key.removeprefix(prefix).split("/") for info in self.store.list(prefix))
        return {part[0] for part in parts if len(part) > 1 and not part[0].startswith(".")}

    def remove(self, artifact: Artifact) -> bool:
        """Remove an artifact. Builds on other machines are not detected, but notice the removal when they publish."""
        with hold_alone(self.directory(artifact)) as is_locked:
            if not is_locked:
                return False
            receipt = f"{artifact}/{NAME}"
            keys = [info.key for info in self.store.list(f"{artifact}/")]
            if any(key.endswith(f"/{NAME}") and key != receipt for key in keys):
                raise build_nested_artifacts_error(self.location(artifact))
            # Delete the receipt first, so that a killed removal leaves nothing that looks finished.
            self.store.delete(receipt)
            map_all(self.store.delete, [key for key in keys if key != receipt], REQUESTS_AT_ONCE)
            self.store.sweep(f"{artifact}/")
            remove_directory(self.directory(artifact), NAME)
            self.copies.forget(artifact)
            return True

    @property
    def address(self) -> str:
        return self.url.rstrip("/")

    def location(self, artifact: Artifact) -> str:
        return f"{self.address}/{artifact}"

    def receipt(self, artifact: Artifact) -> Receipt | None:
        try:
            data = b"".join(self.store.read(f"{artifact}/{NAME}"))
        except MissingArtifactError:
            return None
        location = self.location(artifact)
        return require_artifact(parse_receipt(data, f"{location}/{NAME}"), artifact, location)

    def receipts(self, artifacts: Sequence[Artifact]) -> list[Receipt | None]:
        return map_all(self.receipt, artifacts, REQUESTS_AT_ONCE)

    def receipt_versions(self, artifacts: Sequence[Artifact]) -> list[str | None]:
        if not artifacts:
            return []
        # List the bucket once, because a request per partition would be slow.
        prefix = f"{artifacts[0].dataset}/{artifacts[0].name}/"
        version_by_key = {info.key: info.version for info in self.store.list(prefix)}
        return [version_by_key.get(f"{artifact}/{NAME}") for artifact in artifacts]

    def damage(self, artifact: Artifact, receipt: Receipt, verification: Verification = "full") -> list[str]:
        """Return missing objects, wrong sizes and wrong digests; `full` compares every digest.

        An object is read only if the store does not know its digest, and only once per version.
        """
        publication = self._open_publication(artifact)

        def find_defect(record: FileRecord) -> str:
            info = publication.find_object(receipt, record)
            # An object with a different size is already a defect, so do not read it.
            if info is not None and verification == "full" and info.bytes == record.bytes:
                info = self._digests.with_digest(self.store, info)
            return find_object_defect(record, info)

        return [sentence for sentence in map_all(find_defect, receipt.files, REQUESTS_AT_ONCE) if sentence]

    def find_current(self, artifact: Artifact, key: str, verification: Verification = "full") -> Receipt | None:
        """Return the current receipt, as `ArtifactStore.find_current` does, after completing interrupted publications.

        An artifact that was built here is published. A publication that was already decided is completed, regardless of
        the machine that started it.
        """
        if self.must_rebuild(artifact):
            return None
        receipt = self._find_current_receipt(artifact, key, verification)
        if receipt is not None:
            return receipt
        with hold_alone(self.directory(artifact)) as is_locked:
            if not is_locked:  # another process, or a caller in this process, is building the artifact
                return None
            try:
                built_receipt = read_receipt(self.directory(artifact))
            except IntegrityError:
                return None
            if (
                built_receipt is None
                or built_receipt.key != key
                or find_damage(self.directory(artifact), built_receipt, "full")
            ):
                return None
            self.publish(artifact)
        return self._find_current_receipt(artifact, key, verification)

    def _find_current_receipt(self, artifact: Artifact, key: str, verification: Verification) -> Receipt | None:
        publication = self._open_publication(artifact)
        try:
            receipt = self.receipt(artifact)
        except IntegrityError:
            return None
        if receipt is None:
            present_receipt, _ = publication.complete_publications()
            receipt = present_receipt.receipt if present_receipt is not None else None
        if receipt is None or receipt.key != key:
            return None
        if self.damage(artifact, receipt, verification):
            return None
        if not publication.is_settled(receipt):
            publication.settle(receipt)
        return receipt

    def local(self, artifact: Artifact, names: Iterable[str] | None = None) -> Path:
        """Return a directory with copies of these files, which were verified when they were downloaded.

        They are kept until this process exceeds the budget. The least recently used copies are removed first.
        """
        for _ in range(_TRIES):
            receipt = self.require(artifact)
            try:
                return self._copy(artifact, receipt, names)
            except (ConflictError, IntegrityError):
                # Try again if the artifact was replaced while it was read. The next try reads the new content.
                if self.require(artifact).content == receipt.content:
                    raise
        raise self._build_replaced_error(artifact)

    def fetch(self, artifact: Artifact, receipt: Receipt, name: str, holder: object) -> Path:
        """Return a local copy of a file, which is not evicted while `holder` lives.

        Raises ConfigError if it does not fit into the budget.
        """
        directory = self.copies.directory(artifact, receipt.content)
        # Hold the copy before the download starts, so that it cannot be evicted meanwhile.
        weakref.finalize(holder, self.copies.hold(directory))
        return self._copy(artifact, receipt, [name]) / name

    def ranges(self, artifact: Artifact, receipt: Receipt, name: str) -> ObjectRanges | None:
        copy = self.copies.find_copy(artifact, receipt.content, receipt.file(name))
        return ObjectRanges(self, artifact, receipt, name) if copy is None else None

    def _copy(self, artifact: Artifact, receipt: Receipt, names: Iterable[str] | None = None) -> Path:
        """Return a directory like `local`, but with exactly this receipt's content.

        Raises MissingArtifactError if the artifact was replaced and there is no local copy.
        """
        records = [receipt.file(name) for name in names] if names is not None else list(receipt.files)
        publication = self._open_publication(artifact)

        def fetch(record: FileRecord, target: Path) -> None:
            info = publication.find_object(receipt, record)
            if info is None or find_object_defect(record, info):
                raise MissingArtifactError(
                    f"{self.location(artifact)}/{record.path}: {find_object_defect(record, info)}. Rebuild {artifact}"
                )
            try:
                self.store.download(info.key, target, sha256=record.sha256)
            except CorruptSourceError as error:
                raise IntegrityError(
                    f"{self.location(artifact)}/{record.path}: does not match its receipt. Rebuild {artifact}"
                ) from error

        return self.copies.ensure(artifact, receipt, records, fetch)

    def find_pinned(self, artifact: Artifact, receipt: Receipt, name: str) -> ObjectInfo:
        """Return the object with the file `name` of this receipt's content, to be read at its `version`.

        Raises MissingArtifactError if the artifact was replaced or is damaged.
        """
        record, publication = receipt.file(name), self._open_publication(artifact)
        for _ in range(_TRIES):
            info = publication.find_object(receipt, record)
            now = self.receipt(artifact)
            if now is None or now.content != receipt.content:
                raise self._build_replaced_error(artifact)
            # A receipt is replaced before any object under a final key is replaced, so this object belongs to the
            # receipt.
            if info is not None and not find_object_defect(record, info):
                return info
        raise MissingArtifactError(
            f"{self.location(artifact)}/{name}: {find_object_defect(record, info)}. Rebuild {artifact}"
        )

    def join(
        self,
        staged: Path,
        name: str,
        parts: Sequence[FileRef],
        *,
        verify: bool = True,
        on_read: Callable[[int], None] | None = None,
    ) -> JoinedFile:
        size = sum(part.record.bytes for part in parts)
        if verify or len(parts) != 1:
            digest = digest_parts(self._read_blocks(parts), parts, name, on_read)
        else:
            digest = parts[0].record.sha256
        return JoinedFile(record=FileRecord(path=name, bytes=size, sha256=digest), parts=tuple(parts))

    def publish(self, artifact: Artifact, joined: Mapping[str, JoinedFile] | None = None) -> None:
        """Publish the artifact in its directory; files that were not built here are joined on the server.

        Raises MissingArtifactError if there is no committed artifact. Raises IntegrityError if another run published
        different data meanwhile, or if the bucket's bytes differ from the uploaded bytes.
        """
        directory, publication = self.directory(artifact), self._open_publication(artifact)
        receipt = read_receipt(directory)
        if receipt is None:
            raise MissingArtifactError(f"{directory}: no finished artifact to publish. Build it first")
        present_receipt, broken = publication.complete_publications()
        area = publication.area(receipt, present_receipt)
        sent_objects = {
            record.path: self._send(directory, record, (joined or {}).get(record.path), f"{area}/{record.path}")
            for record in receipt.files
            if not publication.is_kept(record, present_receipt)
        }
        data = (directory / NAME).read_bytes()
        if present_receipt is None:
            publication.claim(receipt, data, broken)
            publication.complete(receipt, data)
        elif present_receipt.receipt is None or (present_receipt.receipt.key, present_receipt.receipt.content) != (
            receipt.key,
            receipt.content,
        ):
            publication.replace(receipt, data, present_receipt)
        # Settle even if nothing was written, because an unfinished publication may have the same content.
        publication.settle(receipt)
        for record in receipt.files:
            if record.path in sent_objects:
                self._check_sent(publication, record, sent_objects[record.path])
        self.copies.adopt(artifact, directory, receipt)

    def _read_blocks(self, parts: Sequence[FileRef]) -> Iterator[bytes]:
        """Yield the bytes of published files, from local copies if they exist, otherwise from the bucket."""
        for part in parts:
            receipt = self.require(part.artifact)
            copy = self.copies.find_copy(part.artifact, receipt.content, part.record)
            if copy is not None:
                with open(copy, "rb", buffering=0) as file:
                    while data := file.read(_READ_BLOCK):
                        yield data
            else:
                info = self.find_pinned(part.artifact, receipt, part.record.path)
                yield from self.store.read(info.key, version=info.version)

    def _send(self, directory: Path, record: FileRecord, file: JoinedFile | None, key: str) -> ObjectInfo:
        present_info = self.store.head(key)
        if present_info is not None and not find_object_defect(record, present_info, certain=True):
            return present_info  # an earlier or concurrent publication has already uploaded this file
        path = directory / record.path
        if path.is_file():
            info = self.store.upload(path, key, sha256=record.sha256)
        elif file is not None:
            info = self._compose(file, key)
        else:
            raise IntegrityError(f"{path}: removed before it was published. Rebuild the artifact")
        if defect := find_object_defect(record, info):
            raise IntegrityError(f"{self.url}/{key}: {defect}, immediately after it was written. Run the command again")
        return replace(info, sha256=record.sha256)

    def _compose(self, file: JoinedFile, key: str) -> ObjectInfo:
        def find_info(part: FileRef) -> ObjectInfo:
            info = self._open_publication(part.artifact).find_object(self.require(part.artifact), part.record)
            if info is None or find_object_defect(part.record, info):
                raise IntegrityError(
                    f"{self.location(part.artifact)}: {find_object_defect(part.record, info)}. Rebuild {part.artifact}"
                )
            return info

        sources = map_all(find_info, file.parts, REQUESTS_AT_ONCE)
        keys = [source.key for source in sources]
        joined_info = (
            self.store.copy(keys[0], key)
            if len(keys) == 1
            else self.store.compose(keys, key, sha256=file.record.sha256)
        )
        # Check the versions of the parts again, because the recorded digest is valid only for these versions.
        for info_before, info_after in zip(sources, map_all(self.store.head, keys, REQUESTS_AT_ONCE), strict=True):
            if info_after is None or info_after.version != info_before.version:
                self.store.delete(key)
                raise IntegrityError(
                    f"{self.url}/{info_before.key}: the object was replaced by another process while it was being "
                    "joined. Run the command again"
                )
        return joined_info

    def _check_sent(self, publication: Publication, record: FileRecord, info: ObjectInfo) -> None:
        """Check the uploaded object, because a concurrent run that published first may have overwritten it."""
        final = publication.find_final(record)
        if defect := find_object_defect(record, final):
            raise IntegrityError(
                f"{publication.location}: {defect}: another run wrote the file at the same time. Wait until that run "
                "has finished, then rebuild this artifact"
            )
        assert final is not None
        for name in ("md5", "crc32c"):
            final_digest, sent_digest = getattr(final, name), getattr(info, name)
            if final.sha256 is None and None not in (final_digest, sent_digest) and final_digest != sent_digest:
                raise IntegrityError(
                    f"{publication.location}/{record.path}: {name} changed immediately after it was written. Run the "
                    "command again"
                )
        self._digests.remember(final, record.sha256)

    def _build_replaced_error(self, artifact: Artifact) -> MissingArtifactError:
        return MissingArtifactError(
            f"{self.location(artifact)}: replaced or removed while it was being read. Load the artifact again"
        )


_STORES: dict[tuple[int, Callable[[], Store]], Store] = {}
_OPENING = threading.Lock()


def _open_once(open_store: Callable[[], Store]) -> Store:
    """Return the process's client. It is opened once, because connection pools must not be used across a fork."""
    key = (os.getpid(), open_store)
    with _OPENING:
        if key not in _STORES:
            _STORES[key] = open_store()
        return _STORES[key]
