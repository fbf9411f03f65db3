"""Objects in a bucket of AWS S3, Cloudflare R2, MinIO, or any store that speaks S3.

**Uploads.** A file beyond one part goes up as a multipart upload, which shows nothing under its key before the one
request that completes it. Each part carries its Content-MD5 (the store refuses other bytes), its ETag is compared with
that MD5, and the finished object's ETag with the MD5 of the MD5s. R2 wants all parts but the last equal: they always
are. An error aborts the upload, and a sweep aborts what a kill left.

**Compose** copies ranges on the server; some bytes have to go through the client (`s3_upload`).

**Conditional writes** (`if_absent`, `if_version`) need a store that knows `If-None-Match` and `If-Match` on PutObject:
AWS S3, R2 and MinIO do; OpenStack Swift refuses `If-Match` (501, a ConfigError here). A store that ignores the headers
is found out only by a second `if_absent` put of the same key, which must raise ConflictError.

**Reads** carry `If-Match`, so bytes of two versions never mix. ETags under SSE-KMS or customer keys are no MD5 and are
not taken for one; a listing does not say how an object is encrypted, so `list` gives no `md5`.

Why obstore 0.12 is not used, here and for GCS: it sends GCS no digest and reads none back, so a damaged byte is stored
(`test_a_byte_that_was_damaged_on_its_way_up_is_refused_and_sent_again`); it finds no unfinished uploads
(`test_a_killed_upload_shows_nothing_and_is_swept`), concatenates nothing on the server, copies no object beyond 5 GB
(`test_a_copy_beyond_the_limit_of_one_request_goes_in_parts`), knows no Retry-After
(`test_the_wish_of_the_store_is_waited_for`), and does not say whether an ETag is an MD5 or SSE-KMS made it.

512 MiB to OpenStack Swift on loopback, on two busy cores: up 9.2 s (boto3's transfer manager 10.1, obstore 11.5), down
8.2 s (10.5, obstore 8.1 without a digest). Medians of three, November 2026 (`tools/bench/transfers.py` of the tests).

Memory of an upload: `workers` parts. Entry point: :class:`S3Store`; :mod:`dataprep_assets.stores.amazon.api` makes
clients.
"""

import hashlib
import math
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dataprep_assets.errors import ConfigError, IntegrityError, TransferError
from dataprep_assets.stores import ranged
from dataprep_assets.stores.amazon.api import CredentialNames, RefusedError, check_client
from dataprep_assets.stores.amazon.bucket import (
    DIGEST,
    WRITE,
    S3Bucket,
    Stream,
    etag_complaint,
    etag_of,
    plain_md5,
    read_range,
)
from dataprep_assets.stores.amazon.upload import Composer, put_whole, send_file
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stores.store import ObjectInfo, Progress, Store, check_key, check_range, conflict
from dataprep_assets.stores.upload import MIN_PART_BYTES, plan_parts

# An upload has as many parts in memory as workers: 192 MiB.
PART_BYTES = 16 * 1024 * 1024
WORKERS = 12

_RETRY = RetryPolicy()
_NAMES = CredentialNames()

# A server may take longer than a read's time limit to copy more than this in one request.
_COPY_BYTES = 256 * 1024 * 1024
# Fewer and larger ranges spare the server requests; these are enough to keep every worker busy to the end.
_SMALLEST_RANGE, _RANGES = 8 * 1024 * 1024, 32


class S3Store(Store):
    """The objects of a bucket below `prefix`. `client` is a low-level client of botocore as `s3_client` makes them.

    `part_bytes` (at least 5 MiB) is the size of an upload's parts, enlarged for files beyond 10,000 of them, and what
    is sent in one request; `range_bytes` the largest of a download's ranges; `workers` how many of either are under way
    at once. `copy_bytes` is the most that one request copies of an object. `retry` counts for each request.
    `credentials` names the variables that messages speak of.
    """

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str = "",
        *,
        retry: RetryPolicy = _RETRY,
        part_bytes: int = PART_BYTES,
        range_bytes: int = ranged.PART_BYTES,
        workers: int = WORKERS,
        copy_bytes: int = _COPY_BYTES,
        credentials: CredentialNames = _NAMES,
    ) -> None:
        if not bucket or "/" in bucket:
            raise ConfigError(f"invalid bucket name {bucket!r}: must be a name without s3:// and without a path")
        if workers < 1 or range_bytes < 1 or copy_bytes < MIN_PART_BYTES:
            raise ConfigError(
                f"s3://{bucket}: workers={workers} and range_bytes={range_bytes} must be positive, and "
                f"copy_bytes={copy_bytes} at least 5 MiB"
            )
        # Only for its refusal of small parts: here, and not at the first large upload.
        plan_parts(0, part_bytes=part_bytes)
        check_client(client)
        prefix = prefix.strip("/")
        prefix = f"{check_key(prefix)}/" if prefix else ""
        self._bucket = S3Bucket(client, bucket, prefix, retry=retry, credentials=credentials)
        self._composer = Composer(self._bucket, workers=workers, copy_bytes=copy_bytes)
        self._part_bytes = part_bytes
        self._range_bytes = range_bytes
        self._workers = workers

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    @property
    def url(self) -> str:
        return self._bucket.url

    def head(self, key: str) -> ObjectInfo | None:
        answer = self._bucket.head(key)
        return None if answer is None else self._bucket.info(key, answer)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        below = self._bucket.prefix
        label = f"list of {self._bucket.label(prefix)}"
        last = b""
        for item in self._bucket.pages("list_objects_v2", "Contents", label, Prefix=below + prefix):
            name = item["Key"].encode()
            # This also ends a listing that goes in circles.
            if name <= last:
                raise TransferError(f"{label}: the store's listing is not sorted by key, or has a key twice")
            last = name
            key = item["Key"].removeprefix(below)
            # Consoles make empty objects that end in a slash, to show a folder. One with bytes is data.
            if key and not (key.endswith("/") and item["Size"] == 0):
                yield ObjectInfo(key=key, bytes=item["Size"], version=etag_of(item))

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        check_range(start, stop, self._bucket.label(key))
        self._bucket.key_of(key)
        return Stream(bucket=self._bucket, key=key, position=start, stop=stop, version=version).blocks()

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> ObjectInfo:
        label, view = self._bucket.label(key), memoryview(data)
        if if_absent and if_version is not None:
            raise ConfigError(f"{label}: if_absent and if_version cannot be combined")
        metadata = {DIGEST: hashlib.sha256(data).hexdigest()}
        if not if_absent and if_version is None:
            return put_whole(self._bucket, key, view, metadata, {})
        # An answer can be lost after the write was done; the next try then meets its own object.
        metadata[WRITE] = secrets.token_hex(16)
        condition = {"IfNoneMatch": "*"} if if_absent else {"IfMatch": f'"{if_version}"'}
        try:
            return put_whole(self._bucket, key, view, metadata, condition)
        except RefusedError:
            found = self._bucket.head(key)
            if found is not None and found.get("Metadata", {}).get(WRITE) == metadata[WRITE]:
                self._check_md5(plain_md5(found), hashlib.md5(data, usedforsecurity=False).hexdigest(), label)
                return self._bucket.info(key, found)
            raise conflict(label, if_version, found and etag_of(found)) from None

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        size, sha256, label = path.stat().st_size, sha256.lower(), self._bucket.label(key)
        if size <= self._part_bytes:
            data = path.read_bytes()
            if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
                raise IntegrityError(
                    f"{label}: {path} does not have sha256 {sha256}. The file changed, or its record belongs to "
                    "other bytes. Build it again. Nothing was published"
                )
            info = put_whole(self._bucket, key, memoryview(data), {DIGEST: sha256}, {})
            if progress is not None and size:
                progress(size)
            return info
        return send_file(
            self._bucket,
            path,
            key,
            sha256=sha256,
            part_bytes=self._part_bytes,
            workers=self._workers,
            progress=progress,
        )

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        label = self._bucket.label(key)

        def fetch(info: ObjectInfo, report: Progress) -> str:
            wanted = sha256 or info.sha256
            return ranged.download(
                lambda start, stop: read_range(self._bucket, info, start, stop),
                size=info.bytes,
                target=target,
                sha256=wanted,
                # Only without a SHA-256, because it reads the file once more.
                verify=None if wanted else lambda path, _: etag_complaint(self._bucket, info, path),
                label=label,
                part_bytes=self._step(info.bytes),
                workers=self._workers,
                retry=self._bucket.retry,
                progress=report,
            )

        return ranged.download_pinned(lambda: self.head(key), fetch, label=label, progress=progress)

    def compose(self, keys: Sequence[str], key: str, *, sha256: str | None = None) -> ObjectInfo:
        if not keys:
            raise ConfigError(f"{self._bucket.label(key)}: compose needs at least one source")
        return self._composer.compose(keys, key, sha256 and sha256.lower())

    def copy(self, source: str, key: str) -> ObjectInfo:
        return self._composer.copy(source, key)

    def delete(self, key: str) -> None:
        self._bucket.remove(key)

    def sweep(self, prefix: str = "", *, older_than_seconds: float = 0.0) -> int:
        # Some stores round up the time of an upload: without an age limit there is nothing to compare.
        latest = datetime.now(UTC).timestamp() - older_than_seconds if older_than_seconds else math.inf
        swept = 0
        for upload in self._bucket.unfinished(self._bucket.prefix + prefix):
            name, identity = upload["Key"], upload["UploadId"]
            if upload["Initiated"].timestamp() > latest:
                continue
            # one that began long ago may be at work all the same: a large file, a slow line
            if older_than_seconds and self._bucket.newest_part(name, identity) > latest:
                continue
            self._bucket.abort(name, identity)
            swept += 1
        return swept

    def _check_md5(self, actual: str | None, expected: str, label: str) -> None:
        if actual is not None and actual != expected:
            raise TransferError(f"{label}: the object has MD5 {actual}, but {expected} was sent. Remove it")

    def _step(self, size: int) -> int:
        """The size of a download's ranges: small enough that all workers have some, a function of the size alone."""
        # An interrupted download resumes only if the next run cuts the object alike.
        return min(self._range_bytes, max(_SMALLEST_RANGE, -(-size // _RANGES)))
