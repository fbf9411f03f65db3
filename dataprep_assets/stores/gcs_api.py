"""One bucket's JSON API, one request per method; every failure becomes an error of this project.

It goes through the session of a `google.cloud.storage.Client` (dagster-gcp's `GCSResource.get_client()`), which brings
credentials, their renewal and the endpoint, `STORAGE_EMULATOR_HOST` included. It does not go through `Blob`, for three
reasons seen in google-cloud-storage 3.17: a `Blob` gives a range whole or to a file, never as a stream to read from; it
sends an upload in one `sendall`, whose time limit covers the whole body, so that a slow link can never send a large
part; and its own retries would multiply with ours. Bodies here go out in blocks, each with a time limit of its own.

Temporary failures raise RetryableError. A failed precondition raises ConflictError. 401, 403 and a missing bucket raise
SourceError with what to do. Messages repeat only the status and reason code of a server's answer.
"""

import base64
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

from dataprep_assets.errors import SourceError
from dataprep_assets.stores.client_logs import keep_secrets_from_logs
from dataprep_assets.stores.retry import RetryableError, parse_retry_after
from dataprep_assets.stores.store import ConflictError

keep_secrets_from_logs()
# A download of 128 MiB took 0.22 s of processor time with blocks of 256 KiB and 0.25 s with 1 MiB, an upload 0.24 and
# 0.25 s (medians of five runs in turns, loopback); see `s3_bucket` for why.
_BLOCK = 256 * 1024
_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
_FIELDS = "name,size,generation,md5Hash,crc32c,metadata,updated"

CREDENTIALS_REMEDY = (
    "Set GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account that has roles/storage.objectUser on the "
    "bucket, or run `gcloud auth application-default login`"
)


class NoObjectError(Exception):
    """The object (or that generation of it) is not there."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """An object's metadata: `crc32c` unsigned, `md5` hex (None: composed), `updated` in seconds since 1970."""

    name: str
    bytes: int
    generation: int
    crc32c: int
    md5: str | None
    metadata: Mapping[str, str]
    updated: float


@dataclass(frozen=True, kw_only=True)
class Range:
    """An answer with bytes: where they begin, the object's size and generation, and the bytes in blocks."""

    start: int
    total: int
    generation: int
    blocks: Iterator[bytes]


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A copy under way: the token of its next step, and the bytes copied so far."""

    token: str
    bytes: int


class RangeBeyondEndError(Exception):
    """The range begins at or after the end of the object."""


@dataclass(frozen=True, kw_only=True)
class GcsApi:
    """`timeout_seconds` limits each connect, each block sent and each wait for bytes, never a whole transfer."""

    client: Any = field(repr=False)
    bucket: str
    timeout_seconds: float

    def get(self, name: str) -> Resource | None:
        """The object's resource, or None."""
        try:
            return _resource(self._json("GET", self._object(name), "storage.objects.get", {"fields": _FIELDS}))
        except NoObjectError:
            return None

    def page(self, prefix: str, token: str | None) -> tuple[list[Resource], str | None]:
        """Up to 1000 objects whose names begin with `prefix`, and where the next page begins."""
        query = {"prefix": prefix, "fields": f"items({_FIELDS}),nextPageToken"}
        if token is not None:
            query["pageToken"] = token
        answer = self._json("GET", f"/storage/v1/b/{quote(self.bucket, safe='')}/o", "storage.objects.list", query)
        items, following = answer.get("items", []), answer.get("nextPageToken")
        if not isinstance(items, list) or not (following is None or isinstance(following, str)):
            raise RetryableError("the answer is not a page of a listing")
        return [_resource(item) for item in items], following

    def insert(
        self,
        name: str,
        data: bytes,
        *,
        crc32c: int,
        metadata: Mapping[str, str],
        if_generation: int | None = None,
    ) -> Resource:
        """Write `data` as the object `name` in one request; the server refuses it unless its CRC32C is `crc32c`.

        `metadata` is kept with the object. With `if_generation` the write is refused (ConflictError) unless that is
        the present generation; 0 stands for no object.
        """
        about = {
            "name": name,
            "contentType": "application/octet-stream",
            "crc32c": base64.b64encode(crc32c.to_bytes(4, "big")).decode(),
            "metadata": dict(metadata),
        }
        body = _MultipartBody(about, data)
        query = {"uploadType": "multipart", "fields": _FIELDS, **_condition(if_generation)}
        path = f"/upload/storage/v1/b/{quote(self.bucket, safe='')}/o"
        headers = {"Content-Type": body.content_type}
        return _resource(self._json("POST", path, "storage.objects.create", query, body=body, headers=headers))

    def compose(
        self, sources: Sequence[tuple[str, int]], name: str, *, metadata: Mapping[str, str] | None = None
    ) -> Resource:
        """Concatenate 1 to 32 `sources`, each (name, generation), into the object `name` with this `metadata`.

        Raises NoObjectError or ConflictError when a source does not have that generation.
        """
        request = {
            "sourceObjects": [
                {
                    "name": source,
                    "generation": str(generation),
                    "objectPreconditions": {"ifGenerationMatch": str(generation)},
                }
                for source, generation in sources
            ],
            "destination": {"contentType": "application/octet-stream", "metadata": dict(metadata or {})},
        }
        path = f"{self._object(name)}/compose"
        return _resource(self._send_json(path, {"fields": _FIELDS}, request))

    def rewrite(self, source: str, generation: int, name: str, token: str | None) -> "Resource | Unfinished":
        """One step of a copy of `source`, at this generation, to the object `name`; metadata kept.

        `token` is that of the step before, None for the first. Returns the new object, or what the next step needs.
        """
        fields = f"done,rewriteToken,totalBytesRewritten,resource({_FIELDS})"
        query = {"sourceGeneration": str(generation), "fields": fields}
        if token is not None:
            query["rewriteToken"] = token
        path = f"{self._object(source)}/rewriteTo/b/{quote(self.bucket, safe='')}/o/{quote(name, safe='')}"
        answer = self._send_json(path, query, None)
        if answer.get("done") is True:
            return _resource(answer.get("resource"))
        following = answer.get("rewriteToken")
        if not isinstance(following, str):
            raise RetryableError("the answer neither ends the copy nor says how it goes on")
        return Unfinished(token=following, bytes=_number(answer.get("totalBytesRewritten")))

    def delete(self, name: str, generation: int | None = None) -> None:
        """Remove an object (with `generation` only that one); no error when it does not exist."""
        try:
            self._json("DELETE", self._object(name), "storage.objects.delete", _condition(generation), empty=True)
        except (NoObjectError, ConflictError):
            return

    @contextmanager
    def media(self, name: str, start: int, stop: int | None, generation: int | None) -> Iterator[Range]:
        """The stored bytes of the object `name` from `start` to `stop` (None: the end).

        With `generation` of that one and no other. Raises NoObjectError, ConflictError, RangeBeyondEndError.
        """
        headers = {
            "Range": f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}",
            # Also keeps the server from unpacking objects that are stored with Content-Encoding gzip.
            "Accept-Encoding": "gzip",
        }
        query = {"alt": "media", **_condition(generation)}
        with (
            self._answer("GET", f"/download{self._object(name)}", query, headers=headers, stream=True) as response,
            network(),
        ):
            if response.status_code == 416:
                raise RangeBeyondEndError
            _demand(response, "storage.objects.get", self.bucket)
            begins, total = _content_range(response.headers)
            found = _number(response.headers.get("X-Goog-Generation"))
            if generation is not None and found != generation:
                raise ConflictError(f"the server sends generation {found}, {generation} was asked for")
            if begins != start:
                raise RetryableError(f"asked for the bytes from {start}, the answer begins at {begins}")
            yield Range(
                start=begins,
                total=total,
                generation=found,
                blocks=response.raw.stream(_BLOCK, decode_content=False),
            )

    def _object(self, name: str) -> str:
        return f"/storage/v1/b/{quote(self.bucket, safe='')}/o/{quote(name, safe='')}"

    def _send_json(self, path: str, query: Mapping[str, str], request: Mapping[str, Any] | None) -> Mapping[str, Any]:
        body = b"" if request is None else json.dumps(request).encode()
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        return self._json("POST", path, "storage.objects.create", query, body=body, headers=headers)

    def _json(
        self,
        method: str,
        path: str,
        permission: str,
        query: Mapping[str, str],
        *,
        body: "bytes | _MultipartBody | None" = None,
        headers: Mapping[str, str] | None = None,
        empty: bool = False,
    ) -> Mapping[str, Any]:
        with self._answer(method, path, query, body=body, headers=headers or {}) as response:
            _demand(response, permission, self.bucket)
            if empty:
                return {}
            try:
                answer = json.loads(response.content)
            except ValueError:
                answer = None
            if not isinstance(answer, dict):
                raise RetryableError("the answer is not the JSON object that it should be")
            return answer

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: "bytes | _MultipartBody | None" = None,
        headers: Mapping[str, str],
        stream: bool = False,
    ) -> Iterator[Any]:
        with network():
            response = self.client._http.request(
                method,
                f"{self.client.api_endpoint}{path}",
                params=dict(query),
                data=body,
                headers=dict(headers),
                timeout=(self.timeout_seconds, self.timeout_seconds),
                stream=stream,
                allow_redirects=False,
            )
        try:
            yield response
        finally:
            response.close()


class _MultipartBody:
    """A `multipart/related` body that is sent in blocks and never copied; may be sent again."""

    def __init__(self, about: Mapping[str, Any], data: bytes) -> None:
        # Unguessable, so that no data can hold it.
        boundary = secrets.token_hex(24)
        self.content_type = f"multipart/related; boundary={boundary}"
        self._head = (
            f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(about)}\r\n"
            f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        ).encode()
        self._data = data
        self._tail = f"\r\n--{boundary}--\r\n".encode()

    def __len__(self) -> int:
        return len(self._head) + len(self._data) + len(self._tail)

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self._head
        view = memoryview(self._data)
        for start in range(0, len(view), _BLOCK):
            yield view[start : start + _BLOCK]
        yield self._tail


@contextmanager
def network() -> Iterator[None]:
    """Translate failures below HTTP, without chaining their cause: its text may contain a URL or an answer."""
    from google.auth.exceptions import GoogleAuthError
    from google.auth.exceptions import TransportError as AuthTransportError
    from requests.exceptions import RequestException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (RequestException, HTTPError, ConnectionError, TimeoutError, AuthTransportError) as error:
        raise RetryableError(_cause(error)) from None
    except GoogleAuthError as error:
        if getattr(error, "retryable", False):
            raise RetryableError(type(error).__name__) from None
        raise SourceError(f"Google credentials cannot be used ({type(error).__name__}). {CREDENTIALS_REMEDY}") from None


def _cause(error: Exception) -> str:
    """The class names of an error and its cause: `ConnectionError (ConnectionResetError)`."""
    inner: BaseException = error
    while isinstance(following := inner.__cause__ or inner.__context__, BaseException):
        inner = following
    return type(error).__name__ if inner is error else f"{type(error).__name__} ({type(inner).__name__})"


def _demand(response: Any, permission: str, bucket: str) -> None:
    """Raise unless the answer is a success."""
    status = response.status_code
    if 200 <= status < 300:
        return
    reason, message = _refusal(response)
    code = f"HTTP {status}{f', {reason}' if reason else ''}"
    if status in _RETRY_STATUS:
        raise RetryableError(code, parse_retry_after(response.headers.get("Retry-After")))
    if status == 400 and ("crc32c" in message or "md5" in message):
        raise RetryableError(f"{code}: the bytes that arrived are not the ones that were sent")
    if status in (401, 403):
        raise SourceError(f"bucket {bucket}: access refused ({code}); {permission} is needed. {CREDENTIALS_REMEDY}")
    if status == 404 and ("bucket does not exist" in message or permission == "storage.objects.list"):
        raise SourceError(f"there is no bucket {bucket} ({code}). Create it, or correct the name of the bucket")
    if status == 404:
        raise NoObjectError
    if status == 412:
        raise ConflictError(f"the object is another version than the request demands ({code})")
    raise SourceError(f"bucket {bucket}: the server refused a request of {permission} ({code})")


def _refusal(response: Any) -> tuple[str, str]:
    """The reason code and the message, in lower case, of an error answer; empty if it has none."""
    with network():
        content = response.content
    try:
        error = json.loads(content)["error"]
        message, details = str(error.get("message", "")), error.get("errors", [])
        reason = str(details[0].get("reason", "")) if details else ""
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        # Media answers are plain text.
        return "", content[:1000].decode("utf-8", "replace").lower()
    return reason if reason.isalnum() else "", message.lower()


def _condition(generation: int | None) -> dict[str, str]:
    return {} if generation is None else {"ifGenerationMatch": str(generation)}


def _content_range(headers: Mapping[str, str]) -> tuple[int, int]:
    """First byte and total size, from an answer's `bytes 0-9/100` or from the length of a whole object."""
    told = headers.get("Content-Range")
    if told is None:
        return 0, _number(headers.get("Content-Length"))
    unit, _, rest = told.partition(" ")
    span, _, total = rest.partition("/")
    if unit != "bytes":
        raise RetryableError(f"the answer's range is {told!r}")
    return _number(span.partition("-")[0]), _number(total)


def _number(text: object) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdigit()):
        raise RetryableError(f"the answer has {text!r} where a number should be")
    return int(text)


def _resource(item: Any) -> Resource:
    try:
        metadata = item.get("metadata", {})
        return Resource(
            name=str(item["name"]),
            bytes=_number(item["size"]),
            generation=_number(item["generation"]),
            crc32c=int.from_bytes(_digest(item["crc32c"], 4), "big"),
            md5=_digest(item["md5Hash"], 16).hex() if "md5Hash" in item else None,
            metadata={str(name): str(value) for name, value in metadata.items()},
            updated=datetime.fromisoformat(item["updated"]).timestamp(),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RetryableError("the answer does not describe an object") from error


def _digest(text: str, length: int) -> bytes:
    digest = base64.b64decode(text, validate=True)
    if len(digest) != length:
        raise ValueError(f"a digest of {len(digest)} bytes")
    return digest
