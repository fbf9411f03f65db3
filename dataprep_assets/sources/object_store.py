"""Owns reading a prefix of an S3-compatible bucket (AWS S3, Cloudflare R2, MinIO) as the source of a corpus.

The manifest pins each object by its ETag, and every request for bytes carries it (`If-Match`), so an object that was
replaced since is refused, never mixed. The mirror has the keys' own paths, with a record beside each file::

    <cache_dir>/<bucket>/<prefix>/<relpath>          the object's bytes
    <cache_dir>/<bucket>/<prefix>/<relpath>.etag     {"etag", "size", "sha256"}: what was verified

An ETag of 32 hex digits is the MD5 of the content (unless the store encrypts with KMS or a customer's key) and is
verified. That of a multipart object (`…-N`) is no digest of the content: such an object is verified by its length and
by `If-Match` on every range. Either way the record holds our own SHA-256, and a mirrored file is reused only while its
bytes still have it.

The record is also the lock of its file: it is written in place and never replaced or removed, so that two processes
that want the same object (a snapshot, and the certificate's sample) fetch it once. It is emptied before its file is
touched, and a torn one is no record.

Credentials come from boto3's own chain (environment, profile, instance) and from nowhere else; no message here repeats
what a store answered beyond its error code. boto3 is imported inside functions: it is an extra (`r2`), and slow.

Entry point: :class:`ObjectStorePrefix`.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from dataprep_assets.errors import ConfigError, CorruptSourceError, SourceError
from dataprep_assets.planning.manifest import ManifestEntry, SourceFile
from dataprep_assets.sources.access import HEADROOM, Listing
from dataprep_assets.sources.hub import check_headroom
from dataprep_assets.stores import ranged
from dataprep_assets.stores.ranged import RetryableError, RetryPolicy

__all__ = ["ObjectStorePrefix"]

logger = logging.getLogger(__name__)

WORKERS = 8
"""Parallel requests over all files of one `fetch`."""

_URL = re.compile(r"s3://([A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9])(?:/(.*))?", re.DOTALL)
_MD5 = re.compile(r"[0-9a-f]{32}")
_CHUNK = 1024 * 1024
_POLL_SECONDS = 0.05

# Names that a mirrored file's own bookkeeping takes beside it.
_COMPANIONS = (".etag", ".part", ".part.json", ".part.json.new")

_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
# Stores say some of these with a status that would not tell: RequestTimeout is a 400.
_RETRY_CODES = {
    "InternalError",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
}


@dataclass(frozen=True, kw_only=True)
class ObjectStorePrefix:
    """The objects below `url` (`s3://bucket/prefix`), mirrored on demand below `cache_dir`; a `SourceAccess`.

    `endpoint_url` names the store (None: AWS, or boto3's own AWS_ENDPOINT_URL). `region` `auto` is what R2 wants;
    without an `endpoint_url` it leaves the region to boto3's own chain. `timeout_seconds` limits each connect and each
    wait for bytes, never a whole transfer.
    """

    url: str
    cache_dir: Path
    endpoint_url: str | None = None
    region: str = "auto"
    timeout_seconds: float = 30.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    part_bytes: int = ranged.PART_BYTES
    mirrored = True

    def __post_init__(self) -> None:
        found = _URL.fullmatch(self.url)
        if found is None or (found[2] and not _is_inside(found[2].removesuffix("/"))):
            raise ConfigError(f"source.url: {self.url!r} is not s3://bucket or s3://bucket/prefix")
        if self.endpoint_url is not None:
            parts = urlsplit(self.endpoint_url)
            if "@" in parts.netloc:
                # Not repeated: what stands before the @ is a secret.
                raise ConfigError(
                    "source.endpoint_url: it holds credentials; leave only https://host and give the credentials to "
                    "boto3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
                )
            if parts.scheme not in ("http", "https") or not parts.netloc:
                raise ConfigError(f"source.endpoint_url: {self.endpoint_url!r} is not http(s)://host[:port]")

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self._parts[0]

    @property
    def prefix(self) -> str:
        """What every key begins with: empty, or ending in `/`."""
        return self._parts[1]

    @property
    def _parts(self) -> tuple[str, str]:
        found = _URL.fullmatch(self.url)
        assert found is not None
        prefix = (found[2] or "").removesuffix("/")
        return found[1], f"{prefix}/" if prefix else ""

    @property
    def storage(self) -> Path:
        """The folder of the mirror."""
        return self.cache_dir / self.bucket / self.prefix

    def list(self) -> Listing:
        """All objects below the prefix but folder markers (keys that end in `/`); their ETags pin them."""
        client, label = self._client(), f"list of s3://{self.bucket}/{self.prefix}"
        files: list[SourceFile] = []
        token: str | None = None
        while True:
            page = self.retry.run(partial(self._page, client, token, label), label=label)
            for item in page.get("Contents", ()):
                if item["Key"].endswith("/"):
                    continue
                relpath = item["Key"].removeprefix(self.prefix)
                files.append(
                    SourceFile(relpath=relpath, size_bytes=item["Size"], etag=item.get("ETag", "").strip('"') or None)
                )
            if not page.get("IsTruncated"):
                return Listing(files=tuple(files), url_prefix=f"s3://{self.bucket}/{self.prefix}")
            last, token = token, page.get("NextContinuationToken")
            if token is None or token == last:
                raise SourceError(f"{label}: the store says that there is more and does not say where it goes on")

    def bytes_to_fetch(self, entries: Sequence[ManifestEntry]) -> int:
        """Bytes of the files that are absent or not those of the entries, less what a broken-off fetch left on disk."""
        needed = 0
        for entry in _unique(entries):
            path = self.path(entry)
            if _size_of(path) == entry.size_bytes and _read_record(_record_of(path)).get("etag") == entry.etag:
                continue
            part, _ = ranged.partial_paths(path)
            held = part.stat().st_blocks * 512 if part.is_file() else 0
            needed += max(0, entry.size_bytes - held)
        return needed

    def fetch(self, entries: Sequence[ManifestEntry], progress: Callable[[int], None] | None = None) -> None:
        """Mirror the entries; what is there is read again and reused while its bytes are the verified ones.

        `progress` gets byte counts, reused ones included (see `stores.ranged.download`). Raises SourceError (no room,
        no access, an object gone or changed since the manifest), TransferError and CorruptSourceError, each naming the
        object. What arrived stays, and the next call goes on from there.
        """
        wanted = _unique(entries)
        if not wanted:
            return
        _check_names(wanted)
        check_headroom(self.storage, self.bytes_to_fetch(wanted), HEADROOM)
        lock = threading.Lock()

        def report(count: int) -> None:
            if progress is not None:
                with lock:
                    progress(count)

        # Many files share the workers one each; fewer files than workers get several ranges at a time.
        at_once = min(WORKERS, len(wanted))
        fetcher = _Fetcher(source=self, client=self._client(), workers=WORKERS // at_once, report=report)
        ranged.run_all(fetcher, wanted, at_once, fetcher.stop)

    def path(self, entry: ManifestEntry) -> Path:
        """Where the mirrored file lies; SourceError for a key that is no path below the mirror."""
        if not _is_inside(entry.relpath):
            raise SourceError(
                f"{self.object_url(entry)}: this key cannot be a file's path (an empty part, '.' or '..'). Rename the "
                "object, or leave it out with `include`"
            )
        return self.storage / entry.relpath

    def object_url(self, entry: ManifestEntry) -> str:
        """`s3://bucket/key`, for messages."""
        return f"s3://{self.bucket}/{self.prefix}{entry.relpath}"

    def _client(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise ConfigError(
                "source.kind: object_store needs the extra `r2`: pip install 'dataprep-assets[r2]'"
            ) from error
        config = Config(
            connect_timeout=self.timeout_seconds,
            read_timeout=self.timeout_seconds,
            # One attempt: the retries are ours, which know 429 and Retry-After and go on from the last byte.
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=WORKERS,
            # R2 and older stores refuse the checksums that botocore adds by itself.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        # AWS has no region `auto`.
        region = None if self.region == "auto" and self.endpoint_url is None else self.region
        try:
            # A session of its own: boto3's default one is shared by the process and not safe to make clients with.
            return boto3.session.Session().client(
                "s3", endpoint_url=self.endpoint_url, region_name=region, config=config
            )
        except (BotoCoreError, ValueError) as error:
            # Only its type: a credential process's own words could be in the text.
            raise ConfigError(
                f"source {self.url}: boto3 cannot make a client ({type(error).__name__}). Check AWS_PROFILE, "
                "~/.aws/config, endpoint_url and region"
            ) from None

    def _page(self, client: Any, token: str | None, label: str) -> Mapping[str, Any]:
        request = {"Bucket": self.bucket, "Prefix": self.prefix, **({"ContinuationToken": token} if token else {})}
        with _translated(label, f"s3:ListBucket on {self.bucket}"):
            page: Mapping[str, Any] = client.list_objects_v2(**request)
            return page


@dataclass(kw_only=True)
class _Fetcher:
    """Makes sure of one file of the mirror: reused if its bytes are the verified ones, fetched if not."""

    source: ObjectStorePrefix
    client: Any = field(repr=False)
    workers: int
    report: Callable[[int], None]
    stop: threading.Event = field(default_factory=threading.Event)

    def __call__(self, entry: ManifestEntry) -> None:
        if self.stop.is_set():
            return
        path, label = self.source.path(entry), self.source.object_url(entry)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(_record_of(path), label, self.stop.is_set) as record:
                self._ensure(entry, path, record, label)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise SourceError(
                f"{label}: {error.filename} is in the way of its mirror. One key is a folder of another's path; rename "
                "one of the objects, or remove what is there"
            ) from error

    def _ensure(self, entry: ManifestEntry, path: Path, record: int, label: str) -> None:
        if entry.etag is None:
            raise SourceError(f"{label}: the manifest has no ETag of it; materialize `manifest` again")
        if self._usable(entry, path, label):
            # A kill right after the rename can leave the transfer's sidecar behind.
            ranged.discard_partial(path)
            self.report(entry.size_bytes)
            return
        os.ftruncate(record, 0)
        path.unlink(missing_ok=True)
        remote = _RemoteObject(source=self.source, client=self.client, entry=entry, label=label)
        digest = self._download(entry, path, remote, label)
        content = json.dumps({"etag": entry.etag, "size": entry.size_bytes, "sha256": digest}).encode()
        os.pwrite(record, content, 0)
        os.fsync(record)

    def _download(self, entry: ManifestEntry, path: Path, remote: "_RemoteObject", label: str) -> str:
        """Fetch the file and verify what its ETag says of it, twice at most; returns its SHA-256."""
        actual = ""
        for _ in range(2):
            digest = ranged.download(
                remote.read_range,
                size=entry.size_bytes,
                target=path,
                sha256=None,
                etag=entry.etag,
                label=label,
                part_bytes=self.source.part_bytes,
                workers=self.workers,
                retry=self.source.retry,
                progress=self.report,
                stop=self.stop,
            )
            if remote.encrypted or not _MD5.fullmatch(entry.etag or ""):
                return digest
            actual = _md5_file(path, self.stop.is_set)
            if actual == entry.etag:
                return digest
            path.unlink(missing_ok=True)
            self.report(-entry.size_bytes)
        raise CorruptSourceError(
            f"{label}: MD5 {actual}, the ETag says {entry.etag}, twice in a row. The store (or a proxy on the way) "
            "serves wrong bytes of the right length; nothing was kept"
        )

    def _usable(self, entry: ManifestEntry, path: Path, label: str) -> bool:
        known = _read_record(_record_of(path))
        if {_size_of(path), known.get("size")} != {entry.size_bytes} or known.get("etag") != entry.etag:
            return False
        actual = ranged.digest_file(path, stopped=self.stop.is_set)
        if actual == known.get("sha256"):
            return True
        logger.warning(
            "%s: the mirrored file %s has sha256 %s, %s was verified; fetching it again",
            label,
            path,
            actual,
            known.get("sha256"),
        )
        return False


@dataclass(kw_only=True)
class _RemoteObject:
    """Ranged reads of one object, as the manifest pinned it."""

    source: ObjectStorePrefix
    client: Any = field(repr=False)
    entry: ManifestEntry
    label: str
    # Set by the first answer: with such encryption an ETag has the form of an MD5 and is none.
    encrypted: bool = False

    def read_range(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes [start, end); raises RetryableError for what may pass."""
        with _translated(self.label, f"s3:GetObject on {self.label.removeprefix('s3://')}"):
            answer = self.client.get_object(
                Bucket=self.source.bucket,
                Key=self.source.prefix + self.entry.relpath,
                Range=f"bytes={start}-{end - 1}",
                IfMatch=f'"{self.entry.etag}"',
            )
            body = answer["Body"]
            try:
                self._check(answer, start, end)
                yield from body.iter_chunks(_CHUNK)
            finally:
                body.close()

    def _check(self, answer: Mapping[str, Any], start: int, end: int) -> None:
        # Also here, for a store that ignores If-Match.
        if (etag := answer.get("ETag", "").strip('"')) != self.entry.etag:
            raise _changed(self.label, f"the store serves ETag {etag}, the manifest says {self.entry.etag}")
        expected, actual = f"bytes {start}-{end - 1}/{self.entry.size_bytes}", answer.get("ContentRange")
        whole = start == 0 and end == self.entry.size_bytes == answer.get("ContentLength")
        if actual is None and not whole:
            raise SourceError(
                f"{self.label}: the store ignored the range {start}-{end - 1}; it must support ranged reads"
            )
        if actual is not None and actual != expected:
            raise RetryableError(f"asked for {expected!r}, the answer holds {actual!r}")
        if str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or answer.get("SSECustomerAlgorithm"):
            self.encrypted = True


@contextmanager
def _translated(label: str, permission: str) -> Iterator[None]:
    """Turn botocore's errors into this project's: RetryableError for what may pass, SourceError for an answer.

    Without the cause in the chain: its text is the store's or a credential provider's, and may repeat a key id.
    """
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ClientError as error:
        raise _from_answer(error.response, label, permission) from None
    except (HTTPClientError, IncompleteReadError, HTTPError, ConnectionError, TimeoutError) as error:
        raise RetryableError(type(error).__name__) from None
    except BotoCoreError as error:
        raise SourceError(
            f"{label}: boto3 cannot sign or send the request ({type(error).__name__}). Give it credentials with "
            f"{permission}: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        ) from None


def _from_answer(response: Mapping[str, Any], label: str, permission: str) -> Exception:
    meta = response.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode", 0))
    code = str(response.get("Error", {}).get("Code", "")) or "no code"
    said = f"HTTP {status}, {code}"
    if status in _RETRY_STATUS or code in _RETRY_CODES:
        return RetryableError(said, ranged.parse_retry_after(meta.get("HTTPHeaders", {}).get("retry-after")))
    if code == "NoSuchBucket":
        return SourceError(f"{label}: the store has no such bucket ({said}). Check source.url and source.endpoint_url")
    if status == 404:
        return SourceError(
            f"{label}: the object is gone ({said}). Restore it, or materialize `manifest` again if that was meant"
        )
    if status in (412, 416):
        return _changed(label, said)
    if code == "InvalidObjectState":
        return SourceError(f"{label}: the object is archived ({said}). Restore it from the archive first")
    if status in (401, 403):
        return SourceError(
            f"{label}: the store refuses access ({said}). The credentials that boto3 finds need {permission} (on R2 a "
            "token with Object Read for this bucket)"
        )
    return SourceError(f"{label}: the store answered {said}. Check source.url, endpoint_url and region")


def _changed(label: str, said: str) -> SourceError:
    return SourceError(
        f"{label}: the object changed since the manifest was made ({said}). Materialize `manifest` again if that was "
        "meant; otherwise restore the object"
    )


@contextmanager
def _locked(record: Path, label: str, stopped: Callable[[], bool]) -> Iterator[int]:
    """The open record, one process or thread at a time; without effect where the file system has no locks."""
    descriptor = os.open(record, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stopped():
                    raise ranged.StoppedError(f"{label}: stopped while another process fetches it") from None
                time.sleep(_POLL_SECONDS)
            except OSError:
                # Some network file systems have no locks; then two processes at worst fetch the file twice.
                break
        yield descriptor
    finally:
        os.close(descriptor)


def _record_of(path: Path) -> Path:
    return path.with_name(path.name + ".etag")


def _read_record(record: Path) -> dict[str, Any]:
    """What was verified of a file; empty when nothing was, or when the record is torn."""
    try:
        value = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _check_names(entries: Sequence[ManifestEntry]) -> None:
    """Raise SourceError if one object's path is taken by another's folder or bookkeeping."""
    names = {entry.relpath for entry in entries}
    folders = {str(folder): name for name in sorted(names) for folder in PurePosixPath(name).parents}
    taken = names | folders.keys()
    for name in sorted(names):
        if name in folders:
            raise SourceError(
                f"{name} and {folders[name]}: one key is a folder of the other's path, which no file system can hold. "
                "Rename one of the objects, or leave it out with `include`"
            )
        for suffix in _COMPANIONS:
            if name + suffix in taken:
                raise SourceError(
                    f"{name} and {name + suffix}: a mirror keeps its own files under the second name. Rename that "
                    "object, or leave it out with `include`"
                )


def _md5_file(path: Path, stopped: Callable[[], bool]) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(4 * _CHUNK):
            digest.update(chunk)
            if stopped():
                raise ranged.StoppedError(f"{path}: stopped while its digest was computed")
    return digest.hexdigest()


def _is_inside(relpath: str) -> bool:
    return not any(part in ("", ".", "..") for part in relpath.split("/")) and "\0" not in relpath


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _unique(entries: Sequence[ManifestEntry]) -> list[ManifestEntry]:
    return list({entry.relpath: entry for entry in entries}.values())
