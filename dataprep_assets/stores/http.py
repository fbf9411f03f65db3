"""Read-only store of the objects that a web server serves below a URL: a mirror, a CDN or a Hugging Face repository.

A key is the path relative to that URL. The server must answer HEAD, and range requests for files larger than one part.
Each request follows the redirects again, so the signed URLs behind them never expire. A token is sent only to the
first server. Messages contain only the status of a response.

Entry points: :class:`HttpStore`, and `build_hub_url` for `hf://` addresses.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Never
from urllib.parse import quote, urlsplit

import httpx

from dataprep_assets.errors import ConfigError, IntegrityError, SourceError, count_of, raise_detached
from dataprep_assets.stores import ranged
from dataprep_assets.stores.client_logs import keep_secrets_from_logs
from dataprep_assets.stores.connect import format_bucket_urls
from dataprep_assets.stores.endpoints import check_endpoint
from dataprep_assets.stores.retry import RETRY_STATUS, RetryableError, RetryPolicy, parse_retry_after
from dataprep_assets.stores.store import (
    ConflictError,
    ObjectInfo,
    Progress,
    ReadOnlyStore,
    build_missing_object_error,
    check_key,
    check_range,
)

_BLOCK = 1024 * 1024
_RETRY = RetryPolicy()

keep_secrets_from_logs()


def build_hub_url(address: str, environment: Mapping[str, str]) -> str:
    """Return the URL of the files at `hf://[datasets/]organization/name[@revision][/folder]` (a dataset or a model).

    The Hub's URL is HF_ENDPOINT in `environment`, or https://huggingface.co. The default revision is `main`. Raises
    ConfigError for an address without a name.
    """
    parts = urlsplit(address)
    names = [name for name in f"{parts.netloc}{parts.path}".split("/") if name]
    kind = f"{names.pop(0)}/" if names[:1] == ["datasets"] else ""
    if len(names) < 2:
        raise ConfigError(f"{address!r} is not a repository URL. Use hf://datasets/organization/name@revision/folder")
    name, _, revision = names[1].partition("@")
    endpoint = environment.get("HF_ENDPOINT") or "https://huggingface.co"
    folder = "".join(f"/{quote(part)}" for part in names[2:])
    return f"{endpoint.rstrip('/')}/{kind}{names[0]}/{name}/resolve/{quote(revision or 'main', safe='')}{folder}"


class HttpStore(ReadOnlyStore):
    """Objects below the URL `base`; the module docstring describes the requirements on its server.

    Args:
        base: `https://host/folder` without a query. `http://` is allowed only for this machine, or with `allow_http`.
        token: Sent as `Authorization: Bearer …` to the host of `base`.
        token_name: Environment variable named in messages if access is refused.
        allow_http: Whether plain HTTP to other machines is allowed.
        retry: Retry policy of each request.
        workers: Number of parallel ranges of a download.
        range_bytes: Largest size of a range.
        timeout_seconds: Time limit of each connect, and of each wait for bytes.
    """

    def __init__(
        self,
        base: str,
        *,
        token: str | None = None,
        token_name: str = "",
        allow_http: bool = False,
        retry: RetryPolicy = _RETRY,
        workers: int = 8,
        range_bytes: int = ranged.PART_BYTES,
        timeout_seconds: float = 60.0,
    ) -> None:
        parts = urlsplit(base)
        if parts.query or parts.fragment:
            # The message omits the rest of the URL, because a query may contain a signature.
            raise ConfigError(
                f"{parts.scheme}://{parts.hostname}: the URL of a folder cannot have a query. Remove the query"
            )
        self._base = check_endpoint(base.rstrip("/"), "the URL of the release", allow_http=allow_http)
        self._token_name = token_name
        self._retry, self._workers, self._range_bytes = retry, workers, range_bytes
        # httpx drops the token when a redirect leads to a different host, and storage behind the Hub's redirects needs
        # none, because its URLs are signed. `identity` is required, because an encoded response has a different length
        # and different ranges.
        headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {token}"} if token else {})}
        self._client = httpx.Client(headers=headers, timeout=timeout_seconds, follow_redirects=True)

    def __repr__(self) -> str:
        return f"HttpStore({self._base!r})"

    @property
    def url(self) -> str:
        return self._base

    def head(self, key: str) -> ObjectInfo | None:
        label = self._format_label(key)
        return self._retry.run(lambda: self._request_head(key), label=label)

    def read(self, key: str, start: int = 0, stop: int | None = None, *, version: str | None = None) -> Iterator[bytes]:
        label = self._format_label(key)
        check_range(start, stop, label)
        info = self.head(key)
        if info is None:
            raise build_missing_object_error(label)
        if version is not None and info.version != version:
            raise ConflictError(f"{label}: expected version {version}, but found {info.version}. Run the command again")
        if max(start, stop or 0) > info.bytes:
            raise IntegrityError(
                f"{label}: has {count_of(info.bytes, 'byte')}, but bytes up to {stop or start} were requested"
            )
        end = info.bytes if stop is None else stop
        for offset in range(start, end, _BLOCK):
            block_end = min(offset + _BLOCK, end)
            yield self._retry.run(lambda a=offset, b=block_end: b"".join(self._read_range(info, a, b)), label=label)  # type: ignore[misc]

    def download(
        self, key: str, target: Path, *, sha256: str | None = None, progress: Progress | None = None
    ) -> ObjectInfo:
        label = self._format_label(key)

        def fetch(info: ObjectInfo, report: Progress) -> str:
            return ranged.download(
                lambda start, stop: self._read_range(info, start, stop),
                size=info.bytes,
                target=target,
                sha256=sha256,
                label=label,
                part_bytes=self._range_bytes,
                workers=self._workers,
                retry=self._retry,
                progress=report,
            )

        return ranged.download_pinned(lambda: self.head(key), fetch, label=label, progress=progress)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        raise ConfigError(f"{self._base}: a web server cannot list its files. Read only files that a manifest lists")

    def _refuse(self) -> Never:
        raise ConfigError(f"{self._base} is read-only. Publish to {format_bucket_urls('')}, or a folder")

    def _format_label(self, key: str) -> str:
        return f"{self._base}/{check_key(key)}"

    def _request_head(self, key: str) -> ObjectInfo | None:
        label = self._format_label(key)
        try:
            with self._request("HEAD", key, {}) as response:
                size = response.headers.get("Content-Length", "")
                if not size.isdigit():
                    raise SourceError(f"{label}: the server did not send a Content-Length. Use a server that sends one")
                return ObjectInfo(key=key, bytes=int(size), version=_identify_version(response.headers, int(size)))
        except FileNotFoundError:
            return None

    def _read_range(self, info: ObjectInfo, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes [start, stop) of the version in `info`; see `ranged.download`."""
        label = self._format_label(info.key)
        if start == stop:  # HTTP cannot request an empty range
            return
        try:
            with self._request("GET", info.key, {"Range": f"bytes={start}-{stop - 1}"}) as response:
                if response.status_code == 206:
                    expected_range = f"bytes {start}-{stop - 1}/{info.bytes}"
                    if response.headers.get("Content-Range") != expected_range:
                        raise ConflictError(
                            f"{label}: requested bytes {start}-{stop - 1} of {info.bytes}, but the server sent a "
                            "different range. Run the command again"
                        )
                # A server without range support sends the whole file. Accept it only if the requested range is the
                # whole file.
                elif (start, stop) != (0, info.bytes):
                    raise SourceError(
                        f"{label}: the server ignores ranges (HTTP {response.status_code}). Use a server that supports "
                        "ranges"
                    )
                # Compare the version of every response, because the file may be replaced between two ranges.
                if _identify_version(response.headers, info.bytes) != info.version:
                    raise ConflictError(f"{label}: replaced during the download. Run the command again")
                for block in response.iter_raw(_BLOCK):
                    start += len(block)
                    yield block
                if start < stop:
                    raise RetryableError(f"incomplete response: ended at byte {start}")
        except FileNotFoundError:
            raise ConflictError(f"{label}: no longer exists. Check the URL") from None

    @contextmanager
    def _request(self, method: str, key: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """Yield the response to one request before its body is read.

        Raises FileNotFoundError for 404, RetryableError for temporary failures, SourceError for a refusal.
        """
        label = self._format_label(key)
        try:
            with self._client.stream(method, f"{self._base}/{quote(key)}", headers=headers) as response:
                if not response.is_success:
                    raise self._build_refusal_error(response, label)
                yield response
        except httpx.HTTPError as error:
            # Do not chain the error, because the request after a redirect has a signed URL.
            host = urlsplit(self._base).netloc
            raise_detached(RetryableError(f"the connection to {host} failed ({type(error).__name__})"))

    def _build_refusal_error(self, response: httpx.Response, label: str) -> Exception:
        status = response.status_code
        if status == 404:
            return FileNotFoundError(label)
        if status in RETRY_STATUS:
            return RetryableError(f"HTTP {status}", parse_retry_after(response.headers.get("Retry-After")))
        if status == 416:
            return ConflictError(f"{label}: the object became shorter while it was being read. Run the command again")
        if status in (401, 403):
            remedy = f"Set {self._token_name} to a token with read access" if self._token_name else "Check the URL"
            return SourceError(f"{label}: the server refused access (HTTP {status}). {remedy}")
        return SourceError(f"{label}: the server answered HTTP {status}. Check the URL")


def _identify_version(headers: httpx.Headers, size: int) -> str:
    """Return an identifier of the object's current content: its ETag, or its modification time, or its size."""
    identifier = headers.get("ETag") or headers.get("Last-Modified") or ""
    return identifier.removeprefix("W/").strip('"') or f"{size} bytes"
