"""Objects in a Google Cloud Storage bucket, through google-cloud-storage's `Bucket` and `Blob`.

**Uploads** beyond one part go up as temporary objects `.uploads/<id>/<n>`, in parallel, which the server composes into
the key; the key shows nothing before that one request. The server refuses a part unless its CRC32C is right, and the
composition names the generation of every part. The price: the object has a CRC32C and no MD5, and the parts are objects
for a while. A bucket with soft delete (Google's default: seven days) keeps and bills removed parts for that period, a
Nearline or colder default class bills early removal, and a retention policy forbids it: turn soft delete off, use the
Standard class, set no retention. Permissions: objects create, get, list, delete (`roles/storage.objectUser`).

**Reads** name the generation in every request, so bytes of two versions never mix.

Of google-cloud-storage 3.17 these were tried and are not used: its retries (`retry=`) know no Retry-After and a time
limit instead of a number of attempts (`test_the_wait_that_a_server_asks_for_is_kept_or_refused`); its
`transfer_manager` completes an upload before the file's SHA-256 is known, and no call of the library finds the parts
that a kill left (`test_a_file_that_is_not_what_was_recorded_is_not_stored`, `test_a_sweep_takes_unfinished_uploads_…`);
its chunked download goes on with no file of a killed process (`test_a_download_that_was_killed_goes_on`).

Memory of an upload: three times `workers` parts; of a download `workers` ranges. Entry point: :class:`GcsStore`.
"""

import hashlib
import secrets
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from dataprep_assets.errors import ConfigError, IntegrityError, TransferError
from dataprep_assets.stores import ranged
from dataprep_assets.stores.crc32c import crc32c_of_file
from dataprep_assets.stores.gcs_bucket import CREATE, DIGEST, KEY, GcsBucket, NoObjectError
from dataprep_assets.stores.keys import UPLOADS, check_key
from dataprep_assets.stores.pool import map_all
from dataprep_assets.stores.retry import RetryableError, RetryPolicy
from dataprep_assets.stores.store import (
    ConflictError,
    ObjectInfo,
    Progress,
    ReversibleProgress,
    Store,
    check_range,
    conflict,
)
from dataprep_assets.stores.upload import UploadPart, cut, send_parts

# The most that the library sends in one request.
PART_BYTES = 8 * 1024 * 1024
WORKERS = 8
RETRY = RetryPolicy()

# The first range of a read that may not go to its end; each next one is twice as long, up to a part.
_FIRST_BYTES = 1024 * 1024


class GcsStore(Store):
    """The objects of a bucket below `prefix`. `client` is a `google.cloud.storage.Client`.

    `part_bytes` is the size of an upload's parts and of a download's ranges, `workers` how many are under way at once.
    `retry` counts for each request, `timeout_seconds` for each connect and each wait for bytes; the bytes of a request
    have a second more for each 64 KiB.
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
        user_project: str | None = None,
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
            client=client,
            handle=client.bucket(bucket, user_project=user_project),
            prefix=f"{check_key(prefix)}/" if prefix else "",
            retry=retry,
            workers=workers,
            timeout_seconds=timeout_seconds,
        )
        self._part_bytes, self._workers = part_bytes, workers

    def __repr__(self) -> str:
        return f"GcsStore({self.url!r})"

    @property
    def url(self) -> str:
        return self._bucket.url

    def head(self, key: str) -> ObjectInfo | None:
        return self._bucket.head(self._bucket.checked(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info, _ in self._bucket.blobs(prefix):
            # Consoles make empty objects that end in a slash, to show a folder. One with bytes is data.
            is_marker = info.key.endswith("/") and info.bytes == 0
            if not info.key.startswith(UPLOADS) and not is_marker and info.key:
                yield info

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        label = self._bucket.label(self._bucket.checked(key))
        check_range(start, stop, label)
        # A range of a known version needs no HEAD: its generation is in each request, and a short body is noticed.
        if version is None or stop is None or start == stop:
            info = self._bucket.existing(key)
            if version not in (None, info.version):
                raise ConflictError(f"{label}: expected version {version}, found {info.version}")
            if max(start, stop or 0) > info.bytes:
                raise IntegrityError(
                    f"{label}: the object has {info.bytes} bytes, bytes up to {stop or start} were requested"
                )
        else:
            info = ObjectInfo(key=key, bytes=stop, version=str(_generation_of(version)))
        end, step = (info.bytes, _FIRST_BYTES) if stop is None else (stop, self._part_bytes)
        while start < end:
            upto = min(start + step, end)
            yield self._bucket.read(info, start, upto)
            start, step = upto, min(2 * step, max(self._part_bytes, _FIRST_BYTES))

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> ObjectInfo:
        label = self._bucket.label(self._bucket.checked(key))
        if if_absent and if_version is not None:
            raise ConfigError(f"{label}: if_absent and if_version exclude each other")
        metadata = {DIGEST: hashlib.sha256(data).hexdigest()}
        expected = 0 if if_absent else None if if_version is None else _generation_of(if_version)
        try:
            return self._bucket.insert(key, data, metadata, label=label, if_generation=expected)
        except ConflictError:
            found = self.head(key)
            raise conflict(label, if_version, found and found.version) from None

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        size, sha256, label = path.stat().st_size, sha256.lower(), self._bucket.label(self._bucket.checked(key))
        metadata, given = {DIGEST: sha256}, ReversibleProgress(progress)
        if size <= self._part_bytes:
            data = path.read_bytes()
            if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
                raise IntegrityError(
                    f"{path}: its bytes do not have sha256 {sha256}; it changed since it was recorded. Rebuild it"
                )
            info = self._bucket.insert(key, data, metadata, label=label)
            given(size)
            return info
        area, stop = f"{UPLOADS}{secrets.token_hex(16)}/", Event()
        names: list[str] = []

        def send(part: UploadPart, view: memoryview) -> ObjectInfo:
            # Before it is sent: an attempt whose answer was lost may have made the object all the same.
            names.append(name := f"{area}{part.number:08d}")
            part_label = f"{label}, part {part.number}"
            info = self._bucket.insert(
                name, bytes(view), {KEY: key}, label=part_label, if_generation=0, stopped=stop.is_set
            )
            given(part.bytes)
            return info

        try:
            parts = send_parts(
                path, cut(size, self._part_bytes), send, sha256=sha256, lanes=self._workers, label=label, stop=stop
            )
            info = self._bucket.join(parts, key, metadata)
        except IntegrityError:
            self._bucket.remove_quietly(names)
            raise
        except ConflictError:
            raise TransferError(
                f"{label}: the uploaded parts were removed before they could be joined. Something removes {UPLOADS} "
                "while uploads run (a sweep, a lifecycle rule): stop it, then run again"
            ) from None
        self._bucket.remove_quietly(names)
        return info

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        label = self._bucket.label(self._bucket.checked(key))

        def fetch(info: ObjectInfo, report: Progress) -> str:
            def complaint(path: Path, _: str) -> str:
                found = crc32c_of_file(path)
                return "" if found == info.crc32c else f"expected CRC32C {info.crc32c:08x}, got {found:08x}"

            return ranged.download(
                partial(self._bucket.range, info),
                size=info.bytes,
                target=target,
                sha256=sha256 or info.sha256,
                # The server's own digest is compared whether or not a SHA-256 is known.
                verify=complaint,
                label=label,
                part_bytes=self._part_bytes,
                workers=self._workers,
                retry=self._bucket.retry,
                progress=report,
            )

        return ranged.download_pinned(lambda: self.head(key), fetch, label=label, progress=progress)

    def compose(self, keys: Sequence[str], key: str, *, sha256: str | None = None) -> ObjectInfo:
        if not keys:
            raise ConfigError(f"{self._bucket.label(key)}: compose needs at least one source")
        self._bucket.checked(key)
        if len(keys) == 1 and sha256 is None:
            return self.copy(keys[0], key)
        sources = map_all(self._bucket.existing, keys, self._workers)
        # An empty object adds nothing, and a composition needs at least one source.
        filled = [source for source in sources if source.bytes]
        return (
            self._bucket.join(filled, key, {DIGEST: sha256.lower()} if sha256 else {}) if filled else self.put(key, b"")
        )

    def copy(self, source: str, key: str) -> ObjectInfo:
        label = f"copy of {self._bucket.label(source)} to {self._bucket.checked(key)}"
        found, target = self._bucket.existing(source), self._bucket.blob(key)
        pinned = self._bucket.blob(source, generation=int(found.version))
        token: str | None = None
        done = -1

        def step() -> tuple[str | None, int]:
            following, copied, _ = target.rewrite(
                pinned, token=token, if_source_generation_match=pinned.generation, **self._bucket.once
            )
            if following is not None and copied <= done:
                raise RetryableError(f"the copy stays at byte {copied}")
            if following is None:
                self._bucket.info(target)
            return following, copied

        try:
            # Call by call: each copies a part of a large object, and its token says where the next one goes on.
            while done < 0 or token is not None:
                token, done = self._bucket.tried(step, label, CREATE)
        except (NoObjectError, ConflictError):
            raise ConflictError(f"{label}: the source was replaced or removed meanwhile") from None
        return self._bucket.settled(self._bucket.info(target), found.bytes, found.crc32c, label)

    def delete(self, key: str) -> None:
        self._bucket.remove(self._bucket.checked(key))

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 0.0) -> int:
        areas: dict[str, list[str]] = {}
        kept: set[str] = set()
        latest = time.time() - older_than_seconds
        for info, blob in self._bucket.blobs(UPLOADS):
            area = info.key.rpartition("/")[0]
            areas.setdefault(area, []).append(info.key)
            if not (blob.metadata or {}).get(KEY, "").startswith(prefix) or blob.updated.timestamp() > latest:
                # An area goes whole or not at all: one part that is too new shows that its upload is at work.
                kept.add(area)
        swept = areas.keys() - kept
        map_all(self._bucket.remove, [key for area in swept for key in areas[area]], self._workers)
        return len(swept)


def _generation_of(version: str) -> int:
    """The generation that an `ObjectInfo.version` of GCS stands for; raises ConfigError for anything else."""
    if not (version.isascii() and version.isdigit()):
        raise ConfigError(f"{version!r} is not a version of a GCS object; use the `version` of an ObjectInfo")
    return int(version)
