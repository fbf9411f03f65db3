"""Objects in a Google Cloud Storage bucket.

**Uploads** beyond one part are temporary objects that the server composes (`gcs_upload` says how, and why not a session
or a multipart upload). The price: the object has a CRC32C and no MD5, and the parts are objects for a while. A bucket
with soft delete (Google's default: seven days) keeps and bills removed parts for that period, a Nearline or colder
default class bills early removal, and a retention policy forbids it: turn soft delete off, use the Standard class, set
no retention. Permissions: objects create, get, list, delete (`roles/storage.objectUser`).

**Reads** name the generation in every request, so bytes of two versions never mix.

Memory of an upload: `workers` parts. Entry point: :class:`GcsStore`.
"""

import hashlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.errors import ConfigError, TransferError
from dataprep_assets.stores import ranged
from dataprep_assets.stores.crc32c import crc32c_of_file
from dataprep_assets.stores.gcs_api import GcsApi, NoObjectError, Resource
from dataprep_assets.stores.gcs_bucket import DIGEST, KEY, WRITE, GcsBucket
from dataprep_assets.stores.gcs_compose import compose, copy
from dataprep_assets.stores.gcs_read import Stream, generation_of, read_range
from dataprep_assets.stores.gcs_upload import Upload, upload_whole
from dataprep_assets.stores.given import Given
from dataprep_assets.stores.keys import UPLOADS, check_key
from dataprep_assets.stores.pinned import download_pinned
from dataprep_assets.stores.pool import map_all
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stores.store import ConflictError, ObjectInfo, Progress, Store, check_range, conflict

__all__ = ["GcsStore"]

PART_BYTES = 16 * 1024 * 1024
WORKERS = 8
RETRY = RetryPolicy()

# How often an upload is begun again because its parts were removed meanwhile.
_ROUNDS = 8


class GcsStore(Store):
    """The objects of a bucket below `prefix`. `client` is a `google.cloud.storage.Client`.

    `part_bytes` is the size of an upload's parts and of a download's ranges, `workers` how many are under way at once.
    `retry` counts for each request, `timeout_seconds` for each connect, each block sent and each wait for bytes.
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
            raise ConfigError(f"invalid bucket name {bucket!r}: give it without gs:// and without a path")
        if part_bytes < 1 or workers < 1 or timeout_seconds <= 0:
            raise ConfigError(
                f"gs://{bucket}: part_bytes={part_bytes}, workers={workers}, timeout_seconds={timeout_seconds} must be"
                " positive"
            )
        prefix = prefix.strip("/")
        self._bucket = GcsBucket(
            api=GcsApi(client=client, bucket=bucket, timeout_seconds=timeout_seconds),
            prefix=f"{check_key(prefix)}/" if prefix else "",
            retry=retry,
            workers=workers,
        )
        self._part_bytes = part_bytes

    def __repr__(self) -> str:
        return f"GcsStore({self.url!r})"

    @property
    def url(self) -> str:
        return self._bucket.url

    def head(self, key: str) -> ObjectInfo | None:
        resource = self._bucket.get(self._bucket.name_of(key))
        return None if resource is None else self._bucket.info(resource)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for resource in self._bucket.resources(self._bucket.prefix + prefix):
            key = resource.name.removeprefix(self._bucket.prefix)
            # Consoles make empty objects that end in a slash, to show a folder.
            if not key.startswith(UPLOADS) and not key.endswith("/") and key:
                yield self._bucket.info(resource)

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        check_range(start, stop, self._bucket.label(key))
        generation = None if version is None else generation_of(version)
        return Stream(self._bucket, key, start, stop, generation).blocks()

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> ObjectInfo:
        name, label = self._bucket.name_of(key), self._bucket.label(key)
        if if_absent and if_version is not None:
            raise ConfigError(f"{label}: if_absent and if_version exclude each other")
        metadata = {DIGEST: hashlib.sha256(data).hexdigest()}
        if not if_absent and if_version is None:
            return self._bucket.info(self._bucket.insert(name, data, metadata, label=label))
        # An answer can be lost after the write was done; the next try then meets its own object.
        metadata[WRITE] = secrets.token_hex(16)
        expected = 0 if if_version is None else generation_of(if_version)
        try:
            return self._bucket.info(self._bucket.insert(name, data, metadata, label=label, if_generation=expected))
        except ConflictError:
            found = self._bucket.get(name)
            if found is not None and found.metadata.get(WRITE) == metadata[WRITE]:
                return self._bucket.info(found)
            raise conflict(label, if_version, found and found.generation) from None

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        sha256, label = sha256.lower(), self._bucket.label(key)
        self._bucket.name_of(key)  # an invalid key is refused before a byte is sent
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= self._part_bytes:
                info = upload_whole(self._bucket, path, file, size, key, sha256)
                if progress is not None and size:
                    progress(size)
                return info
        for failures in range(_ROUNDS):
            if failures:
                # Random pauses: uploads of the same bytes would keep removing each other's parts.
                time.sleep(self._bucket.retry.delay(failures, None))
            upload = Upload(
                bucket=self._bucket,
                path=path,
                key=key,
                size=size,
                sha256=sha256,
                part_bytes=self._part_bytes,
                given=Given(progress),
            )
            try:
                return self._bucket.info(upload.run())
            except (ConflictError, NoObjectError):
                # Another process that sends the same bytes composed them and removed the parts, or a sweep did.
                upload.given.take_back()
                found = self.head(key)
                if found is not None and (found.bytes, found.sha256) == (size, sha256):
                    upload.given(size)
                    return found
        raise TransferError(
            f"{label}: the uploaded parts were removed {_ROUNDS} times before they could be joined. Something removes "
            f"{UPLOADS} while uploads run (a sweep, a lifecycle rule): stop it, then run again"
        )

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        def fetch(info: ObjectInfo, report: Progress) -> str:
            def complaint(path: Path, _: str) -> str:
                found = crc32c_of_file(path)
                return "" if found == info.crc32c else f"expected CRC32C {info.crc32c:08x}, got {found:08x}"

            return ranged.download(
                lambda start, stop: read_range(self._bucket, info, start, stop),
                size=info.bytes,
                target=target,
                sha256=sha256 or info.sha256,
                # The server's own digest is compared whether or not a SHA-256 is known.
                verify=complaint,
                etag=info.version,
                label=self._bucket.label(key),
                part_bytes=self._part_bytes,
                workers=self._bucket.workers,
                retry=self._bucket.retry,
                progress=report,
            )

        return download_pinned(lambda: self.head(key), fetch, label=self._bucket.label(key), progress=progress)

    def compose(self, keys: Sequence[str], key: str, *, sha256: str | None = None) -> ObjectInfo:
        if not keys:
            raise ConfigError(f"{self._bucket.label(key)}: compose needs at least one source")
        self._bucket.name_of(key)
        if len(keys) == 1 and sha256 is None:
            return self.copy(keys[0], key)
        sources = map_all(self._bucket.existing, keys, self._bucket.workers)
        # An empty object adds nothing, and a composition needs at least one source.
        filled = [source for source in sources if source.bytes]
        return compose(self._bucket, filled, key, sha256) if filled else self.put(key, b"")

    def copy(self, source: str, key: str) -> ObjectInfo:
        return copy(self._bucket, source, key)

    def delete(self, key: str) -> None:
        name = self._bucket.name_of(key)
        self._bucket.tried(lambda: self._bucket.api.delete(name), f"removal of {self._bucket.label(key)}")

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 0.0) -> int:
        areas: dict[str, list[Resource]] = {}
        for resource in self._bucket.resources(f"{self._bucket.prefix}{UPLOADS}"):
            areas.setdefault(resource.name.rpartition("/")[0], []).append(resource)
        latest = time.time() - older_than_seconds
        swept = 0
        for resources in areas.values():
            mine = resources[0].metadata.get(KEY, "").startswith(prefix)
            if mine and max(resource.updated for resource in resources) <= latest:
                map_all(self._bucket.remove, resources, self._bucket.workers)
                swept += 1
        return swept
