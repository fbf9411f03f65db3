"""Store of objects in a bucket of AWS S3, Cloudflare R2, MinIO or another S3-compatible store.

**Uploads.** Files larger than one part use a multipart upload, so nothing appears under the key before the request that
completes it. Each part has a Content-MD5, and the store rejects different bytes. The part's ETag is compared with that
MD5, and the finished object's ETag with the MD5 of the MD5s. All parts except the last are equal, as R2 requires. An
error aborts the upload, and a sweep aborts the uploads of killed processes.

**Compose** copies ranges on the server, but some bytes must pass through the client (`amazon.upload`).

**Conditional writes** (`if_absent`, `if_version`) need a store that supports `If-None-Match` and `If-Match` on
PutObject. AWS S3, R2 and MinIO do; OpenStack Swift rejects `If-Match` (501, a ConfigError here). A store that ignores
the headers is detected only by a second `if_absent` put of the same key, which must raise ConflictError.

**Reads** send `If-Match`, so bytes of two versions never mix. ETags under SSE-KMS or customer keys are not MD5s, and
are not used as such. A listing does not show how an object is encrypted, so `list` returns no `md5`.

obstore 0.12 is not used, here and for GCS, for these reasons:

- It sends GCS no digest and reads none back, so a damaged byte is stored
  (`test_a_byte_damaged_during_an_upload_is_refused_and_sent_again`).
- It finds no unfinished uploads (`test_a_killed_upload_is_invisible_and_is_swept`).
- It does not concatenate on the server, and does not copy objects larger than 5 GB
  (`test_a_copy_above_the_limit_of_one_request_is_done_in_parts`).
- It ignores Retry-After (`test_a_delay_requested_by_the_store_is_obeyed`).
- It does not show whether an ETag is an MD5 or was created by SSE-KMS.

Transfers of 512 MiB to OpenStack Swift on loopback, on two busy cores (medians of three, November 2026,
`tools/bench/transfers.py` of the tests):

- Upload: 9.2 s (boto3's transfer manager 10.1 s, obstore 11.5 s).
- Download: 8.2 s (boto3's transfer manager 10.5 s, obstore 8.1 s without a digest).

An upload needs memory for `workers` parts. Entry point: :class:`S3Store`; :mod:`dataprep_assets.stores.amazon.api`
creates clients.
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
    find_etag_mismatch,
    find_md5,
    read_etag,
    read_range,
)
from dataprep_assets.stores.amazon.upload import Composer, put_whole, send_file
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stores.store import ObjectInfo, Progress, Store, build_conflict_error, check_key, check_range
from dataprep_assets.stores.upload import MIN_PART_BYTES, plan_parts

# Size of an upload's parts. An upload holds one part per worker in memory, which is 192 MiB in total.
PART_BYTES = 16 * 1024 * 1024
WORKERS = 12

_RETRY = RetryPolicy()
_NAMES = CredentialNames()

# A server may need longer than the read timeout to copy more than this in one request.
_COPY_BYTES = 256 * 1024 * 1024
# Ranges of at least 8 MiB need few requests, and 32 ranges keep every worker busy until the end.
_SMALLEST_RANGE, _RANGES = 8 * 1024 * 1024, 32


class S3Store(Store):
    """Objects of a bucket below `prefix`.

    Args:
        client: A low-level botocore client, created by `create_s3_client`.
        bucket: Name of the bucket.
        prefix: Prefix of all keys.
        retry: Retry policy of each request.
        part_bytes: Size of an upload's parts (at least 5 MiB), and the largest upload sent in one request. It is
            increased for files of more than 10,000 parts.
        range_bytes: Largest range of a download.
        workers: Number of parallel parts or ranges.
        copy_bytes: Maximum number of bytes that one request copies.
        credentials: Environment variables named in messages.
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
        # Reject an invalid part size now, rather than at the first large upload.
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
        response = self._bucket.head(key)
        return None if response is None else self._bucket.info(key, response)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        store_prefix = self._bucket.prefix
        label = f"list of {self._bucket.label(prefix)}"
        last_name = b""
        for item in self._bucket.pages("list_objects_v2", "Contents", label, Prefix=store_prefix + prefix):
            name = item["Key"].encode()
            # This condition also rejects a listing that repeats its pages, which would otherwise never end.
            if name <= last_name:
                raise TransferError(
                    f"{label}: the store's listing is not sorted by key, or has a key twice. Use AWS S3, R2 or MinIO"
                )
            last_name = name
            key = item["Key"].removeprefix(store_prefix)
            # Skip empty objects whose key ends with a slash, because consoles create them to represent folders. If such
            # an object has content, it is data.
            if key and not (key.endswith("/") and item["Size"] == 0):
                yield ObjectInfo(key=key, bytes=item["Size"], version=read_etag(item))

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        check_range(start, stop, self._bucket.label(key))
        self._bucket.build_key(key)
        return Stream(bucket=self._bucket, key=key, position=start, stop=stop, version=version).blocks()

    def put(
        self,
        key: str,
        data: bytes,
        *,
        if_absent: bool = False,
        if_version: str | None = None,
        content_type: str | None = None,
    ) -> ObjectInfo:
        label, view = self._bucket.label(key), memoryview(data)
        if if_absent and if_version is not None:
            raise ConfigError(f"{label}: if_absent and if_version cannot be combined. Remove one of them")
        metadata = {DIGEST: hashlib.sha256(data).hexdigest()}
        if not if_absent and if_version is None:
            return put_whole(self._bucket, key, view, metadata, {}, content_type)
        # Mark a conditional write, so that the next attempt recognizes its own object if the response to a successful
        # write is lost.
        metadata[WRITE] = secrets.token_hex(16)
        condition = {"IfNoneMatch": "*"} if if_absent else {"IfMatch": f'"{if_version}"'}
        try:
            return put_whole(self._bucket, key, view, metadata, condition, content_type)
        except RefusedError:
            response = self._bucket.head(key)
            if response is not None and response.get("Metadata", {}).get(WRITE) == metadata[WRITE]:
                self._check_md5(find_md5(response), hashlib.md5(data, usedforsecurity=False).hexdigest(), label)
                return self._bucket.info(key, response)
            raise build_conflict_error(label, if_version, response and read_etag(response)) from None

    def upload(self, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        size, sha256, label = path.stat().st_size, sha256.lower(), self._bucket.label(key)
        if size <= self._part_bytes:
            data = path.read_bytes()
            if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
                raise IntegrityError(
                    f"{label}: {path} does not have sha256 {sha256}, so the file changed after it was recorded. "
                    "Rebuild the artifact. Nothing was published"
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
            expected_sha256 = sha256 or info.sha256
            return ranged.download(
                lambda start, stop: read_range(self._bucket, info, start, stop),
                size=info.bytes,
                target=target,
                sha256=expected_sha256,
                # Check the ETag only without a SHA-256, because the check reads the file a second time.
                verify=None if expected_sha256 else lambda path, _: find_etag_mismatch(self._bucket, info, path),
                label=label,
                part_bytes=self._choose_step(info.bytes),
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
        # Without an age limit, do not compare times, because some stores round up an upload's time.
        latest = datetime.now(UTC).timestamp() - older_than_seconds if older_than_seconds else math.inf
        swept = 0
        for upload in self._bucket.list_unfinished_uploads(self._bucket.prefix + prefix):
            name, identity = upload["Key"], upload["UploadId"]
            if upload["Initiated"].timestamp() > latest:
                continue
            # Also check the newest part, because an old upload may still be running, e.g., for a large file on a slow
            # network.
            if older_than_seconds and self._bucket.find_newest_part_time(name, identity) > latest:
                continue
            self._bucket.abort(name, identity)
            swept += 1
        return swept

    def _check_md5(self, actual: str | None, expected_md5: str, label: str) -> None:
        if actual is not None and actual != expected_md5:
            raise TransferError(f"{label}: the object has MD5 {actual}, but {expected_md5} was sent. Remove the object")

    def _choose_step(self, size: int) -> int:
        """Return the size of a download's ranges, which is small enough to give every worker some ranges."""
        return min(self._range_bytes, max(_SMALLEST_RANGE, -(-size // _RANGES)))
