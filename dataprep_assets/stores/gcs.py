"""Objects in a Google Cloud Storage bucket.

**Uploads.** A file beyond one part goes up as temporary objects `.uploads/<id>/<n>`, in parallel, and is then composed
on the server into its key. The id is a digest of key, content digest, size and part size, so a rerun after a kill finds
the parts that arrived, by one listing, and sends only the others; no state is kept on this side. Each part is refused
by the server unless its CRC32C is right, the composition names the generation of every part that was checked, and its
own CRC32C is compared with the one combined from the parts. The key shows nothing before that one request.

The alternatives: a resumable session is one sequential stream, and its URL is a secret that would have to be kept on
disk. An XML multipart upload is parallel and leaves no objects behind, but knows no preconditions, and which of a key's
open uploads belongs to these bytes can only be guessed from its parts.

The price of composing: the object has a CRC32C and no MD5, and the parts are objects for a while. A bucket with soft
delete (Google's default: seven days) keeps and bills removed parts for that period, a Nearline or colder default class
bills early removal, and a retention policy forbids it: turn soft delete off, use the Standard class, set no retention.
Permissions: objects create, get, list, delete (`roles/storage.objectUser`).

**Reads** name the generation in every request, so bytes of two versions never mix.

Memory of an upload: `workers` parts. Entry point: :class:`GcsStore`.
"""

import hashlib
import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from dataprep_assets.errors import (
    ConfigError,
    DataprepError,
    IntegrityError,
    MissingArtifactError,
    SourceError,
    TransferError,
)
from dataprep_assets.stores import ranged
from dataprep_assets.stores.crc32c import combine_all
from dataprep_assets.stores.gcs_api import (
    GcsApi,
    NoObjectError,
    Range,
    RangeBeyondEndError,
    Resource,
    Unfinished,
    network,
)
from dataprep_assets.stores.keys import UPLOADS, check_key
from dataprep_assets.stores.pinned import download_pinned
from dataprep_assets.stores.pool import map_all, run_all
from dataprep_assets.stores.retry import RetryableError, RetryPolicy, StoppedError
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Progress, Store

__all__ = ["GcsStore"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

PART_BYTES = 16 * 1024 * 1024
WORKERS = 8
RETRY = RetryPolicy()

# GCS composes at most so many objects in one request.
_COMPOSE = 32
_ROUNDS = 8
_HASH_BLOCK = 4 * 1024 * 1024

_SHA256 = re.compile(r"[0-9a-f]{64}")
# Metadata of our objects: the digest of the content, whose temporary it is, and which conditional write made it.
_DIGEST, _KEY, _WRITE = "sha256", "dataprep-key", "dataprep-write"


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A part of an object to be, pinned: what a composition reads."""

    name: str
    generation: int
    bytes: int
    crc32c: int


class GcsStore(Store):
    """The objects of a bucket below `prefix`. `client` is a `google.cloud.storage.Client`.

    `part_bytes` is the size of an upload's parts and of a download's ranges, `workers` how many are under way at once.
    """

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str = "",
        *,
        retry: RetryPolicy = RETRY,
        part_bytes: int = PART_BYTES,
        workers: int = WORKERS,
        timeout_seconds: float = 60.0,
    ) -> None:
        if not bucket or "/" in bucket:
            raise ConfigError(f"bucket {bucket!r} is no name of a bucket; give it without gs:// and without a path")
        if part_bytes < 1 or workers < 1 or timeout_seconds <= 0:
            raise ConfigError(
                f"gs://{bucket}: part_bytes={part_bytes}, workers={workers}, timeout_seconds={timeout_seconds} must be"
                " positive"
            )
        prefix = prefix.strip("/")
        self._prefix = f"{check_key(prefix)}/" if prefix else ""
        self._api = GcsApi(client=client, bucket=bucket, timeout_seconds=timeout_seconds)
        self._retry = retry
        self._part_bytes = part_bytes
        self._workers = workers

    def __repr__(self) -> str:
        return f"GcsStore({self.url!r})"

    @property
    def url(self) -> str:
        return f"gs://{self._api.bucket}/{self._prefix}".rstrip("/")

    def head(self, key: str) -> ObjectInfo | None:
        resource = self._get(self._name(key))
        return None if resource is None else self._info(resource)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for resource in self._resources(self._prefix + prefix):
            key = resource.name.removeprefix(self._prefix)
            # Consoles make empty objects that end in a slash, to show a folder.
            if not key.startswith(UPLOADS) and not key.endswith("/") and key:
                yield self._info(resource)

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        if start < 0 or (stop is not None and stop < start):
            raise ConfigError(f"{self._label(key)}: the range [{start}, {stop}) is none")
        stream = _Stream(self, key, start, stop, None if version is None else _generation(version))
        return stream.blocks()

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> ObjectInfo:
        name, label = self._name(key), self._label(key)
        if if_absent and if_version is not None:
            raise ConfigError(f"{label}: if_absent and if_version exclude each other")
        metadata = {_DIGEST: hashlib.sha256(data).hexdigest()}
        if not if_absent and if_version is None:
            return self._info(self._insert(name, data, metadata, label=label))
        # An answer can be lost after the write was done; the next try then meets its own object.
        metadata[_WRITE] = secrets.token_hex(16)
        expected = 0 if if_version is None else _generation(if_version)
        try:
            return self._info(self._insert(name, data, metadata, label=label, if_generation=expected))
        except ConflictError:
            found = self._get(name)
            if found is not None and found.metadata.get(_WRITE) == metadata[_WRITE]:
                return self._info(found)
            wanted = "no object" if if_absent else f"version {if_version}"
            there = "none" if found is None else f"version {found.generation}"
            raise ConflictError(f"{label}: {wanted} was expected there, it is {there}") from None

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        name, sha256 = self._name(key), sha256.lower()
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= self._part_bytes:
                return self._upload_whole(file, size, path, key, sha256, progress)
        for failures in range(_ROUNDS):
            if failures:
                # Each at a moment of its own: uploads of the same bytes would go on taking each other's parts away.
                time.sleep(self._retry.delay(failures, None))
            upload = _Upload(store=self, path=path, key=key, name=name, size=size, sha256=sha256, progress=progress)
            try:
                return self._info(upload.run())
            except (ConflictError, NoObjectError):
                # Another process that sends the same bytes composed them and removed the parts, or a sweep did.
                upload.take_back()
                found = self._get(name)
                if found is not None and found.bytes == size and found.metadata.get(_DIGEST) == sha256:
                    upload.report(size)
                    return self._info(found)
        raise TransferError(
            f"{self._label(key)}: the uploaded parts were removed {_ROUNDS} times before they could be joined. "
            f"Something removes {UPLOADS} while uploads run (a sweep, a lifecycle rule): stop it, then run again"
        )

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        digest = ""

        def fetch(info: ObjectInfo, report: Progress) -> None:
            nonlocal digest
            digest = self._download_version(info, target, sha256 or info.sha256, report)

        info = download_pinned(lambda: self.head(key), fetch, label=self._label(key), progress=progress)
        return replace(info, sha256=digest)

    def compose(self, keys: Sequence[str], key: str, *, sha256: str | None = None) -> ObjectInfo:
        name, label = self._name(key), self._label(key)
        if not keys:
            raise ConfigError(f"{label}: compose needs at least one source")
        if len(keys) == 1 and sha256 is None:
            return self.copy(keys[0], key)
        sources = [self._piece(found) for found in map_all(self._existing, keys, self._workers)]
        # An empty object adds nothing, and a composition needs at least one source.
        pieces = [piece for piece in sources if piece.bytes]
        if not pieces:
            return self.put(key, b"")
        metadata = {} if sha256 is None else {_DIGEST: sha256.lower()}
        for _ in range(2):
            # A join that timed out may be carried out after its retry; the generation that was pinned is gone then.
            # Joins in an area of their own tell this from a source that changed: that one spoils them again.
            area = f"{self._prefix}{UPLOADS}{secrets.token_hex(16)}/"
            with suppress(ConflictError, NoObjectError):
                return self._info(self._concatenate(pieces, name, metadata, area=area, key=key))
        raise ConflictError(f"{label}: one of its {len(keys)} sources was replaced or removed meanwhile")

    def copy(self, source: str, key: str) -> ObjectInfo:
        name, label = self._name(key), f"copy of {self._label(source)} to {key}"
        found = self._existing(source)
        step: Resource | Unfinished | None = None
        while not isinstance(step, Resource):
            try:
                step = self._tried(partial(self._copy_step, found, name, step), label)
            except NoObjectError:
                raise ConflictError(f"{label}: the source was replaced or removed meanwhile") from None
        return self._info(self._settled(step, found.bytes, found.crc32c, label))

    def delete(self, key: str) -> None:
        name = self._name(key)
        self._tried(lambda: self._api.delete(name), f"removal of {self._label(key)}")

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 0.0) -> int:
        areas: dict[str, list[Resource]] = {}
        for resource in self._resources(f"{self._prefix}{UPLOADS}"):
            areas.setdefault(resource.name.rpartition("/")[0], []).append(resource)
        latest = time.time() - older_than_seconds
        swept = 0
        for resources in areas.values():
            mine = resources[0].metadata.get(_KEY, "").startswith(prefix)
            if mine and max(resource.updated for resource in resources) <= latest:
                map_all(self._remove, resources, self._workers)
                swept += 1
        return swept

    # What the parts of this module share.

    def _name(self, key: str) -> str:
        return check_key(self._prefix + check_key(key))

    def _label(self, key: str) -> str:
        return f"gs://{self._api.bucket}/{self._prefix}{key}"

    def _info(self, resource: Resource) -> ObjectInfo:
        sha256 = resource.metadata.get(_DIGEST, "")
        return ObjectInfo(
            key=resource.name.removeprefix(self._prefix),
            bytes=resource.bytes,
            version=str(resource.generation),
            sha256=sha256 if _SHA256.fullmatch(sha256) else None,
            md5=resource.md5,
            crc32c=resource.crc32c,
        )

    def _tried(self, attempt: Callable[[], T], label: str, stopped: Callable[[], bool] = lambda: False) -> T:
        try:
            return self._retry.run(attempt, label=label, stopped=stopped)
        except SourceError as error:
            # Answers that no retry cures know the bucket only.
            raise error if str(error).startswith(label) else SourceError(f"{label}: {error}") from error.__cause__

    def _get(self, name: str) -> Resource | None:
        return self._tried(lambda: self._api.get(name), f"gs://{self._api.bucket}/{name}")

    def _existing(self, key: str) -> Resource:
        found = self._get(self._name(key))
        if found is None:
            raise MissingArtifactError(
                f"{self._label(key)}: there is no such object. Build or upload it, or correct the key"
            )
        return found

    def _resources(self, prefix: str) -> Iterator[Resource]:
        label = f"list of gs://{self._api.bucket}/{prefix}"
        token: str | None = None
        while True:
            page, following = self._tried(partial(self._api.page, prefix, token), label)
            yield from page
            if following is None:
                return
            if following == token:
                raise SourceError(f"{label}: the server says again and again that the same page follows")
            token = following

    def _insert(
        self,
        name: str,
        data: bytes,
        metadata: Mapping[str, str],
        *,
        label: str,
        if_generation: int | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Resource:
        crc = _crc32c(data)
        inserted = self._tried(
            lambda: self._api.insert(name, data, crc32c=crc, metadata=metadata, if_generation=if_generation),
            label,
            stopped,
        )
        return self._settled(inserted, len(data), crc, label)

    def _settled(self, made: Resource, size: int, crc: int, label: str) -> Resource:
        """The new object, if it is what it should be; else it is removed and TransferError raised."""
        if (made.bytes, made.crc32c) == (size, crc):
            return made
        # The answer may have been damaged on its way, and not the object.
        again = self._get(made.name)
        if again is None or again.generation != made.generation:
            raise TransferError(f"{label}: it was replaced or removed right after it was written. Run again")
        if (again.bytes, again.crc32c) == (size, crc):
            return again
        self._remove(again)
        raise TransferError(
            f"{label}: the server made an object of {again.bytes} bytes with CRC32C {again.crc32c:08x}; {size} bytes "
            f"with {crc:08x} were sent. It was removed. Run again"
        )

    def _remove(self, resource: Resource) -> None:
        self._tried(lambda: self._api.delete(resource.name, resource.generation), f"removal of {resource.name}")

    def _copy_step(self, source: Resource, name: str, last: Unfinished | None) -> Resource | Unfinished:
        step = self._api.rewrite(source.name, source.generation, name, last.token if last is not None else None)
        if isinstance(step, Unfinished) and last is not None and step.bytes <= last.bytes:
            raise RetryableError(f"the copy stays at byte {step.bytes}")
        return step

    def _piece(self, resource: Resource) -> _Piece:
        return _Piece(name=resource.name, generation=resource.generation, bytes=resource.bytes, crc32c=resource.crc32c)

    def _upload_whole(
        self, file: BinaryIO, size: int, path: Path, key: str, sha256: str, progress: Progress | None
    ) -> ObjectInfo:
        data = file.read(size + 1)
        if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
            raise _file_changed(path, sha256)
        info = self._info(self._insert(self._name(key), data, {_DIGEST: sha256}, label=self._label(key)))
        if progress is not None and size:
            progress(size)
        return info

    def _concatenate(
        self, pieces: Sequence[_Piece], name: str, metadata: Mapping[str, str], *, area: str, key: str
    ) -> Resource:
        """Compose any number of pieces, by levels of 32; the intermediates below `area` are removed."""
        label = f"gs://{self._api.bucket}/{name}"
        made: list[Resource] = []

        def join(group: tuple[str, Sequence[_Piece]]) -> Resource:
            joined = self._join(*group, {_KEY: key}, label)
            made.append(joined)
            return joined

        level = 0
        try:
            while len(pieces) > _COMPOSE:
                groups = [
                    (f"{area}join-{level}-{start:08d}", pieces[start : start + _COMPOSE])
                    for start in range(0, len(pieces), _COMPOSE)
                ]
                pieces = [self._piece(joined) for joined in map_all(join, groups, self._workers)]
                level += 1
            return self._join(name, pieces, metadata, label)
        finally:
            self._remove_quietly(made)

    def _join(self, name: str, pieces: Sequence[_Piece], metadata: Mapping[str, str], label: str) -> Resource:
        """Compose up to 32 pieces, each the generation that was checked; the result is checked too."""
        pinned = [(piece.name, piece.generation) for piece in pieces]
        composed = self._tried(lambda: self._api.compose(pinned, name, metadata=metadata), label)
        crc = combine_all((piece.crc32c, piece.bytes) for piece in pieces)
        return self._settled(composed, sum(piece.bytes for piece in pieces), crc, label)

    def _remove_quietly(self, temporaries: Sequence[Resource]) -> None:
        """Remove temporaries; what cannot be removed is left to `sweep`, because the work itself is done."""
        try:
            map_all(self._remove, temporaries, self._workers)
        except DataprepError as error:
            logger.warning("%s: temporaries below %s remain until they are swept: %s", self.url, UPLOADS, error)

    def _download_version(self, info: ObjectInfo, target: Path, sha256: str | None, progress: Progress) -> str:
        """Fetch one version, verified by the server's CRC32C and, where it is known, by SHA-256, which is returned."""

        def complaint(path: Path, _: str) -> str:
            found = _crc32c_file(path)
            return "" if found == info.crc32c else f"expected CRC32C {info.crc32c:08x}, got {found:08x}"

        return ranged.download(
            lambda start, stop: self._range(info, start, stop),
            size=info.bytes,
            target=target,
            sha256=sha256,
            verify=complaint,
            etag=info.version,
            label=self._label(info.key),
            part_bytes=self._part_bytes,
            workers=self._workers,
            retry=self._retry,
            progress=progress,
        )

    def _range(self, info: ObjectInfo, start: int, stop: int) -> Iterator[bytes]:
        try:
            with self._api.media(self._name(info.key), start, stop, int(info.version)) as answer:
                yield from answer.blocks
        except (NoObjectError, RangeBeyondEndError):
            raise ConflictError(f"{self._label(info.key)}: version {info.version} is there no more") from None


@dataclass(kw_only=True)
class _Upload:
    """One file on its way up in parts, read once and in order; its parts are sent by many threads."""

    store: GcsStore
    path: Path
    key: str
    name: str
    size: int
    sha256: str
    progress: Progress | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    done: dict[int, Resource] = field(default_factory=dict)
    reported: int = 0
    _next: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)

    def run(self) -> Resource:
        store, label = self.store, self.store._label(self.key)
        area = self._area()
        held = {resource.name: resource for resource in store._resources(area)}
        parts = -(-self.size // store._part_bytes)
        with self.path.open("rb") as file:

            def send(_: int) -> None:
                self._send_next(file, area, held, label)

            run_all(send, range(parts), store._workers, self.stop)
            changed = self._digest.hexdigest() != self.sha256 or os.fstat(file.fileno()).st_size != self.size
        temporaries = {**held, **{resource.name: resource for resource in self.done.values()}}
        if changed:
            store._remove_quietly([*temporaries.values()])
            raise _file_changed(self.path, self.sha256)
        pieces = [store._piece(self.done[index]) for index in range(parts)]
        composed = store._concatenate(pieces, self.name, {_DIGEST: self.sha256}, area=area, key=self.key)
        store._remove_quietly([*temporaries.values()])
        return composed

    def report(self, count: int) -> None:
        self.reported += count
        if self.progress is not None and count:
            self.progress(count)

    def take_back(self) -> None:
        self.report(-self.reported)

    def _area(self) -> str:
        """Where the parts of these bytes for this key lie, cut this way: the same for every run."""
        identity = json.dumps([self.key, self.sha256, self.size, self.store._part_bytes]).encode()
        return f"{self.store._prefix}{UPLOADS}{hashlib.sha256(identity).hexdigest()[:32]}/"

    def _send_next(self, file: BinaryIO, area: str, held: Mapping[str, Resource], label: str) -> None:
        with self.lock:
            if self.stop.is_set():
                raise StoppedError(f"{label}: stopped; run again to resume")
            index, self._next = self._next, self._next + 1
            data = file.read(self.store._part_bytes)
            self._digest.update(data)
        if len(data) != min(self.store._part_bytes, self.size - index * self.store._part_bytes):
            raise _file_changed(self.path, self.sha256)
        name = f"{area}{index:08d}"
        found = held.get(name)
        if found is None or (found.bytes, found.crc32c) != (len(data), _crc32c(data)):
            part_label = f"{label}, part {index + 1}"
            found = self.store._insert(name, data, {_KEY: self.key}, label=part_label, stopped=self.stop.is_set)
        with self.lock:
            self.done[index] = found
            self.report(len(data))


class _Stream:
    """A range read in blocks that goes on, after a failure, from the byte that was reached."""

    def __init__(self, store: GcsStore, key: str, start: int, stop: int | None, generation: int | None) -> None:
        self._store, self._key, self._name = store, key, store._name(key)
        self._label = store._label(key)
        self._position, self._stop, self._generation = start, stop, generation
        self._answer: Any = None
        self._blocks: Iterator[bytes] = iter(())

    def blocks(self) -> Iterator[bytes]:
        try:
            if self._position == self._stop:
                self._check_empty()
            while self._stop is None or self._position < self._stop:
                label = f"{self._label}, byte {self._position}"
                block = self._store._tried(self._next, label)
                if not block:
                    return
                self._position += len(block)
                yield block
        finally:
            self._close()

    def _next(self) -> bytes:
        """The next block; empty where the object ends and `stop` was not given."""
        try:
            if self._answer is None and not self._open():
                return b""
            block = self._pull()
            if not block:
                raise RetryableError(f"short body, ended at byte {self._position}")
            if self._position + len(block) > (self._stop or 0):
                raise RetryableError("the body is longer than the range")
            return block
        except BaseException:
            self._close()
            raise

    def _pull(self) -> bytes:
        with network():
            return next(self._blocks, b"")

    def _open(self) -> bool:
        """Ask for the rest of the range; False when the object ends where it begins."""
        answer = self._store._api.media(self._name, self._position, self._stop, self._generation)
        try:
            opened: Range = answer.__enter__()
        except (NoObjectError, ConflictError):
            raise self._gone() from None
        except RangeBeyondEndError:
            self._check_empty()
            return False
        self._answer, self._blocks = answer, opened.blocks
        self._generation = opened.generation
        self._set_stop(opened.total)
        return True

    def _check_empty(self) -> None:
        """Answers cannot hold no bytes of an object; what it is must be asked apart."""
        found = self._store._get(self._name)
        if found is None:
            raise self._gone()
        if self._generation is not None and found.generation != self._generation:
            raise ConflictError(f"{self._label}: it is version {found.generation} by now, not {self._generation}")
        if self._position > found.bytes:
            raise self._too_short(found.bytes, self._stop or self._position)
        self._set_stop(found.bytes)

    def _set_stop(self, total: int) -> None:
        if self._stop is None:
            self._stop = total
        elif self._stop > total:
            raise self._too_short(total, self._stop)

    def _too_short(self, total: int, wanted: int) -> IntegrityError:
        return IntegrityError(f"{self._label}: it has {total} bytes, bytes up to {wanted} were asked for")

    def _gone(self) -> DataprepError:
        if self._generation is not None and self._store._get(self._name) is not None:
            return ConflictError(f"{self._label}: version {self._generation} is there no more")
        return MissingArtifactError(f"{self._label}: there is no such object. Build or upload it, or correct the key")

    def _close(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.__exit__(None, None, None)


def _generation(version: str) -> int:
    if not (version.isascii() and version.isdigit()):
        raise ConfigError(f"{version!r} is no version of a GCS object; use the `version` of an ObjectInfo")
    return int(version)


def _file_changed(path: Path, sha256: str) -> IntegrityError:
    return IntegrityError(
        f"{path}: its bytes do not have sha256 {sha256}; it changed since it was recorded. Rebuild it"
    )


def _crc32c(data: bytes) -> int:
    import google_crc32c

    return int(google_crc32c.value(data))


def _crc32c_file(path: Path) -> int:
    import google_crc32c

    crc = 0
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK):
            crc = google_crc32c.extend(crc, block)
    return crc
