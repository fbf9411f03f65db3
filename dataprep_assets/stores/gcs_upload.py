"""Writes of files to a GCS bucket: whole, or in parts with which a rerun continues.

A file beyond one part goes up as temporary objects `.uploads/<id>/<n>`, in parallel, and is then composed on the server
into its key. The id is a digest of key, content digest, size and part size, so a rerun after a kill finds the parts
that arrived, by one listing, and sends only the others; no state is kept on this side. Each part is refused by the
server unless its CRC32C is right, and the composition names the generation of every part that was checked. The key
shows nothing before that one request.

The alternatives: a resumable session is one sequential stream, and its URL is a secret that would have to be kept on
disk. An XML multipart upload is parallel and leaves no objects behind, but knows no preconditions, and which of a key's
open uploads belongs to these bytes can only be guessed from its parts. google-cloud-storage's own upload sends a body
in one `sendall` whose time limit covers all of it: 16 MiB over a slow link failed with it and arrived with this.

Entry points: :class:`Upload` and :func:`upload_whole`.
"""

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from dataprep_assets.errors import IntegrityError
from dataprep_assets.stores.crc32c import crc32c_of
from dataprep_assets.stores.gcs_api import Resource
from dataprep_assets.stores.gcs_bucket import DIGEST, KEY, GcsBucket
from dataprep_assets.stores.gcs_compose import concatenate
from dataprep_assets.stores.given import Given
from dataprep_assets.stores.keys import UPLOADS
from dataprep_assets.stores.pool import run_all
from dataprep_assets.stores.retry import StoppedError
from dataprep_assets.stores.store import ObjectInfo

__all__ = ["Upload", "upload_whole"]


def upload_whole(bucket: GcsBucket, path: Path, file: BinaryIO, size: int, key: str, sha256: str) -> ObjectInfo:
    """Send the open `file` of `size` bytes in one request, as the object `key`.

    `path` is its name in messages. Raises IntegrityError when its bytes do not have this `sha256` (hex).
    """
    data = file.read(size + 1)
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
        raise _file_changed(path, sha256)
    return bucket.info(bucket.insert(bucket.name_of(key), data, {DIGEST: sha256}, label=bucket.label(key)))


@dataclass(kw_only=True)
class Upload:
    """One file of `size` bytes on its way up in parts of `part_bytes`, read once and in order, sent by many threads."""

    bucket: GcsBucket
    path: Path
    key: str
    size: int
    sha256: str
    part_bytes: int
    given: Given
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    # The parts that the bucket has, by number.
    done: dict[int, Resource] = field(default_factory=dict)
    _next: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)

    def run(self) -> Resource:
        """Send the parts that are not there yet and compose them.

        Raises IntegrityError when the file changed, ConflictError or NoObjectError when somebody removed the parts.
        """
        bucket, label = self.bucket, self.bucket.label(self.key)
        area = self._area()
        held = {resource.name: resource for resource in bucket.resources(area)}
        parts = -(-self.size // self.part_bytes)
        with self.path.open("rb") as file:

            def send(_: int) -> None:
                self._send_next(file, area, held, label)

            run_all(send, range(parts), bucket.workers, self.stop)
            changed = self._digest.hexdigest() != self.sha256 or os.fstat(file.fileno()).st_size != self.size
        temporaries = {**held, **{resource.name: resource for resource in self.done.values()}}
        if changed:
            bucket.remove_quietly([*temporaries.values()])
            raise _file_changed(self.path, self.sha256)
        pieces = [self.done[index] for index in range(parts)]
        composed = concatenate(bucket, pieces, self.key, {DIGEST: self.sha256}, area=area)
        bucket.remove_quietly([*temporaries.values()])
        return composed

    def _area(self) -> str:
        """Where the parts of these bytes for this key lie, cut this way: the same for every run."""
        identity = json.dumps([self.key, self.sha256, self.size, self.part_bytes]).encode()
        return f"{self.bucket.prefix}{UPLOADS}{hashlib.sha256(identity).hexdigest()[:32]}/"

    def _send_next(self, file: BinaryIO, area: str, held: Mapping[str, Resource], label: str) -> None:
        with self.lock:
            if self.stop.is_set():
                raise StoppedError(f"{label}: stopped; run again to resume")
            index, self._next = self._next, self._next + 1
            data = file.read(self.part_bytes)
            self._digest.update(data)
        if len(data) != min(self.part_bytes, self.size - index * self.part_bytes):
            raise _file_changed(self.path, self.sha256)
        name = f"{area}{index:08d}"
        found = held.get(name)
        if found is None or (found.bytes, found.crc32c) != (len(data), crc32c_of(data)):
            part_label = f"{label}, part {index + 1}"
            found = self.bucket.insert(name, data, {KEY: self.key}, label=part_label, stopped=self.stop.is_set)
        self.done[index] = found
        self.given(len(data))


def _file_changed(path: Path, sha256: str) -> IntegrityError:
    return IntegrityError(
        f"{path}: its bytes do not have sha256 {sha256}; it changed since it was recorded. Rebuild it"
    )
