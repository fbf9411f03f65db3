"""Owns the local Google Cloud Storage: a real HTTP server with the parts of its JSON and XML APIs that a store needs.

Reached by ``STORAGE_EMULATOR_HOST`` with google-cloud-storage's own client. It serves::

    GET              /storage/v1/b/{bucket}
    GET              /storage/v1/b/{bucket}/o                 prefix, delimiter, pages
    GET|PATCH|DELETE /storage/v1/b/{bucket}/o/{object}        alt=media with Range; also below /download
    POST             /upload/storage/v1/b/{bucket}/o          uploadType media, multipart, resumable (PUT, 308, Range)
    POST             /storage/v1/b/{bucket}/o/{object}/compose
    POST             /storage/v1/b/{bucket}/o/{object}/rewriteTo|copyTo/b/{bucket}/o/{object}
    POST|PUT|DELETE|GET  /{bucket}/{object}?uploads|uploadId=|partNumber=    XML multipart uploads

As in the real service: every write makes a new generation; ifGenerationMatch and its kin hold for every method;
composed objects have a componentCount, a CRC32C and no MD5; a composition takes 1 to 32 sources; an upload whose
declared CRC32C or MD5 is wrong is refused; numbers of 64 bits are strings; `fields` selects; an upload shows nothing
before it is complete.

Faults are programmed per operation and request number with :meth:`GcsServer.fail`; :attr:`GcsServer.log` says what was
asked for.
"""

import base64
import hashlib
import json
import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.parser import BytesParser
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit
from urllib.request import urlopen
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import google_crc32c

from dataprep_assets_tests.fakes.ranges import requested_range

__all__ = ["Fault", "GcsServer", "Logged", "Stored"]

# status    answer with `status` and, if set, Retry-After; nothing is done
# reset     a TCP reset as soon as the request was read; nothing is done
# stall     silence as soon as the request was read; nothing is done
# lost      it is done, then a TCP reset instead of the answer
# cut       it is done, half of the answer's body, then a TCP reset
# truncate  it is done, half of the answer's body under its full Content-Length, then an orderly close
# short     it is done, half of the answer's body under a Content-Length that agrees with it
# hang      it is done, half of the answer's body, then silence
# flip      it is done, one byte in the middle of the answer's body is wrong
# corrupt   one byte in the middle of the request's body is wrong on arrival
Kind = Literal["status", "reset", "stall", "lost", "cut", "truncate", "short", "hang", "flip", "corrupt"]

_BLOCK = 64 * 1024
_CHUNK = 256 * 1024
_XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass(frozen=True, kw_only=True)
class Logged:
    """One request; ``operation`` as in :meth:`GcsServer.fail`, ``name`` an object's (or a listing's prefix)."""

    operation: str
    name: str
    status: int
    bytes_in: int


@dataclass(kw_only=True)
class Fault:
    """What happens to the requests ``first`` to ``first + times - 1`` (counted from 1) that match."""

    operation: str
    kind: Kind
    within: str
    first: int
    times: int | None
    status: int
    retry_after: str | None
    seen: int = 0
    struck: int = 0

    def strikes(self, operation: str, name: str) -> bool:
        if operation != self.operation or self.within not in name:
            return False
        self.seen += 1
        due = self.seen >= self.first and (self.times is None or self.seen < self.first + self.times)
        self.struck += due
        return due


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One object as it is kept."""

    name: str
    data: bytes
    generation: int
    metageneration: int = 1
    content_type: str = "application/octet-stream"
    metadata: Mapping[str, str] = field(default_factory=dict)
    components: int | None = None
    has_md5: bool = True
    updated: str = ""

    @cached_property
    def crc32c(self) -> str:
        return _crc32c(self.data)

    @cached_property
    def md5(self) -> str:
        return _md5(self.data)


@dataclass(kw_only=True)
class _Session:
    """A resumable upload under way."""

    about: dict[str, Any]
    query: dict[str, str]
    data: bytearray = field(default_factory=bytearray)


@dataclass(kw_only=True)
class _Multipart:
    """An XML multipart upload under way."""

    name: str
    content_type: str
    metadata: dict[str, str]
    parts: dict[int, bytes] = field(default_factory=dict)


class _RefusalError(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class GcsServer:
    """One bucket on a loopback port, as a context manager.

    ``page_size`` caps a page of a listing; ``rewrite_bytes`` is what one rewrite request copies at most;
    ``seconds_per_block`` slows request and answer bodies down, per 64 KiB; ``receive_buffer`` (bytes) keeps the kernel
    from taking in what the server has not read.
    """

    def __init__(
        self,
        *,
        bucket: str = "bucket",
        page_size: int = 1000,
        rewrite_bytes: int = 1 << 40,
        seconds_per_block: float = 0.0,
        min_part_bytes: int = 5 * 1024 * 1024,
        receive_buffer: int | None = None,
    ) -> None:
        self.bucket = bucket
        self.page_size = page_size
        self.rewrite_bytes = rewrite_bytes
        self.seconds_per_block = seconds_per_block
        self.min_part_bytes = min_part_bytes
        self.objects: dict[str, Stored] = {}
        self.sessions: dict[str, _Session] = {}
        self.multiparts: dict[str, _Multipart] = {}
        self.rewrites: dict[str, int] = {}
        # Which compositions (counted from 1) have a wrong byte in the middle.
        self.wrong_joins: set[int] = set()
        self.joins = 0
        # What happens half-way through the next request bodies beyond 64 KiB: no more reading, or a TCP reset.
        self.interruptions: list[Literal["deaf", "hangup"]] = []
        self.log: list[Logged] = []
        # The clients' addresses on which requests may still come or be at work.
        self.connections: set[tuple[str, int]] = set()
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self._last = 0
        self._faults: list[Fault] = []
        self._server = _Server(self)
        if receive_buffer is not None:
            self._server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)

    def __enter__(self) -> "GcsServer":
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """The value of ``STORAGE_EMULATOR_HOST``."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def fail(
        self,
        operation: str,
        kind: Kind,
        *,
        within: str = "",
        first: int = 1,
        times: int | None = 1,
        status: int = 503,
        retry_after: str | None = None,
    ) -> None:
        """Let requests of an operation fail whose object's name has ``within``; ``times=None`` means from then on.

        Operations: bucket, list, get, media, insert, resume, compose, rewrite, delete, patch, xml.
        """
        fault = Fault(
            operation=operation,
            kind=kind,
            within=within,
            first=first,
            times=times,
            status=status,
            retry_after=retry_after,
        )
        with self.lock:
            self._faults.append(fault)

    def heal(self) -> None:
        """Forget every fault."""
        with self.lock:
            self._faults.clear()

    def unspent(self) -> list[Fault]:
        """The faults that have not struck as often as they should; a test that leaves some has tested nothing."""
        with self.lock:
            return [fault for fault in self._faults if fault.struck < (fault.times or 1)]

    def count(self, operation: str, within: str = "", since: int = 0) -> int:
        """How many requests of an operation came, from log entry ``since`` on."""
        with self.lock:
            return sum(entry.operation == operation and within in entry.name for entry in self.log[since:])

    def await_the_end_of_connections_beside(self, known: Set[tuple[str, int]]) -> None:
        """Wait until what killed clients had sent was read and done; a request that hears silence is not waited for."""
        # Connections are accepted in the order in which they came: after this one, all of them are known.
        with urlopen(f"{self.endpoint}/storage/v1/b/{self.bucket}", timeout=30):
            pass
        deadline = time.monotonic() + 30
        while self.connections - known:
            assert time.monotonic() < deadline, f"connections are still open: {self.connections - known}"
            time.sleep(0.01)

    def strike(self, operation: str, name: str) -> Fault | None:
        """The first fault due for this request; every matching fault counts it."""
        with self.lock:
            due = [fault for fault in self._faults if fault.strikes(operation, name)]
        return due[0] if due else None

    def store(self, name: str, data: bytes, query: Mapping[str, str] | None = None, **about: Any) -> Stored:
        """Make a new generation of an object, if the preconditions in ``query`` hold."""
        if not 0 < len(name.encode()) <= 1024:
            raise _RefusalError(400, "invalid", "Object names are 1 to 1024 bytes of UTF-8")
        with self.lock:
            _demand_preconditions(self.objects.get(name), query or {})
            self._last = max(self._last + 1, time.time_ns() // 1000)
            stored = Stored(name=name, data=data, generation=self._last, updated=datetime.now(UTC).isoformat(), **about)
            self.objects[name] = stored
            return stored


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # The default backlog of 5 resets connections of its own when many workers arrive at once.
    request_queue_size = 128

    def __init__(self, gcs: GcsServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gcs = gcs

    def process_request(self, request: Any, client_address: Any) -> None:
        # Here and not by the connection's thread, which may begin much later.
        self.gcs.connections.add(client_address)
        super().process_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Silence: clients that are killed on purpose drop their connections."""


@dataclass(kw_only=True)
class _Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)")
_COPY = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Silence; GcsServer.log is the log."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    @property
    def gcs(self) -> GcsServer:
        return self.server.gcs

    def finish(self) -> None:
        self.gcs.connections.discard(self.client_address)
        super().finish()

    def _serve(self) -> None:
        url = urlsplit(self.path)
        self.where = url.path
        self.query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        body = self._read_body()
        if body is None:
            self._reset()
            return
        self.body = body
        operation, name = self._operation()
        fault = self.gcs.strike(operation, name)
        kind = fault.kind if fault is not None else None
        if kind in ("reset", "stall"):
            self._note(operation, name, 0)
            if kind == "stall":
                self.gcs.connections.discard(self.client_address)
                self.gcs.closing.wait(30)
            self._reset()
            return
        if kind == "corrupt":
            self.body = _damaged(self.body)
        if fault is not None and kind == "status":
            answer = _refused(fault.status, "backendError", "a programmed fault")
            if fault.retry_after is not None:
                answer.headers["Retry-After"] = fault.retry_after
        else:
            answer = self._try(operation)
        self._note(operation, name, answer.status)
        self._send(answer, kind)

    def _try(self, operation: str) -> _Answer:
        try:
            answer: _Answer = getattr(self, f"_do_{operation}")()
            return answer
        except _RefusalError as refusal:
            if operation == "xml":
                return _xml_refused(refusal)
            if operation == "media":
                return _Answer(status=refusal.status, body=refusal.message.encode())
            return _refused(refusal.status, refusal.reason, refusal.message)

    def _operation(self) -> tuple[str, str]:
        """What is asked for, and of which object."""
        if re.fullmatch(r"/storage/v1/b/[^/]+", self.where):
            return "bucket", ""
        if re.fullmatch(r"/storage/v1/b/[^/]+/o", self.where):
            return "list", self.query.get("prefix", "")
        if self.where.startswith("/upload/"):
            return ("resume" if "upload_id" in self.query else "insert"), self._upload_name()
        if (copy := _COPY.fullmatch(self.where)) is not None:
            return "rewrite", unquote(copy[4])
        if self.where.endswith("/compose") and self.command == "POST":
            found = _OBJECT.fullmatch(self.where.removesuffix("/compose"))
            return "compose", unquote(found[2]) if found is not None else ""
        if (found := _OBJECT.fullmatch(self.where)) is not None:
            reads = "media" if self.query.get("alt") == "media" else "get"
            return {"GET": reads, "DELETE": "delete"}.get(self.command, "patch"), unquote(found[2])
        return "xml", unquote(self.where.removeprefix("/").partition("/")[2])

    def _upload_name(self) -> str:
        if "upload_id" in self.query:
            session = self.gcs.sessions.get(self.query["upload_id"])
            return session.about["name"] if session is not None else ""
        if self.query.get("uploadType") == "multipart":
            return str(self._multipart()[0].get("name", self.query.get("name", "")))
        if self.query.get("uploadType") == "resumable" and self.body:
            return str(json.loads(self.body).get("name", self.query.get("name", "")))
        return self.query.get("name", "")

    # The JSON API.

    def _do_bucket(self) -> _Answer:
        self._demand_bucket(unquote(self.where.rpartition("/")[2]))
        return self._json(
            {"kind": "storage#bucket", "name": self.gcs.bucket, "location": "US", "storageClass": "STANDARD"}
        )

    def _do_list(self) -> _Answer:
        self._demand_bucket(unquote(self.where.split("/")[4]))
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        after = base64.urlsafe_b64decode(self.query["pageToken"]) if "pageToken" in self.query else b""
        most = min(self.gcs.page_size, int(self.query.get("maxResults", "1000")), 1000)
        with self.gcs.lock:
            names = sorted((name for name in self.gcs.objects if name.startswith(prefix)), key=str.encode)
            items: list[dict[str, Any]] = []
            folders: list[str] = []
            last, more = after, False
            for name in names:
                rest = name.removeprefix(prefix)
                folder = prefix + rest.partition(delimiter)[0] + delimiter if delimiter and delimiter in rest else None
                shown = (folder or name).encode()
                if shown <= after or (folder is not None and folder in folders):
                    continue
                if len(items) + len(folders) == most:
                    more = True
                    break
                if folder is None:
                    items.append(self._resource(self.gcs.objects[name]))
                else:
                    folders.append(folder)
                last = shown
        page: dict[str, Any] = {"kind": "storage#objects"}
        page |= {"items": items} if items else {}
        page |= {"prefixes": folders} if folders else {}
        page |= {"nextPageToken": base64.urlsafe_b64encode(last).decode()} if more else {}
        return self._json(page)

    def _do_get(self) -> _Answer:
        return self._json(self._resource(self._found()))

    def _do_media(self) -> _Answer:
        stored = self._found()
        size = len(stored.data)
        headers = {
            "Content-Type": stored.content_type,
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Metageneration": str(stored.metageneration),
            "X-Goog-Stored-Content-Length": str(size),
            "X-Goog-Hash": f"crc32c={stored.crc32c}" + (f",md5={stored.md5}" if stored.has_md5 else ""),
        }
        span = requested_range(self.headers, size)
        if span is None:
            return _Answer(status=200, body=stored.data, headers=headers)
        start, stop = span
        if start >= size:
            raise _RefusalError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return _Answer(status=206, body=stored.data[start:stop], headers=headers)

    def _do_insert(self) -> _Answer:
        self._demand_bucket(unquote(self.where.split("/")[5]))
        how = self.query.get("uploadType")
        if how == "media":
            return self._create({"name": self.query["name"]}, self.body)
        if how == "multipart":
            return self._create(*self._multipart())
        if how != "resumable":
            raise _RefusalError(400, "invalid", "uploadType is none of media, multipart, resumable")
        about = json.loads(self.body) if self.body else {}
        about.setdefault("name", self.query.get("name"))
        about.setdefault("contentType", self.headers.get("X-Upload-Content-Type"))
        identity = secrets.token_hex(16)
        with self.gcs.lock:
            _demand_preconditions(self.gcs.objects.get(about["name"]), self.query)
            self.gcs.sessions[identity] = _Session(about=about, query=self.query)
        location = f"{self.gcs.endpoint}{self.where}?uploadType=resumable&upload_id={identity}"
        return _Answer(status=200, headers={"Location": location, "X-GUploader-UploadID": identity})

    def _do_resume(self) -> _Answer:
        with self.gcs.lock:
            session = self.gcs.sessions.get(self.query["upload_id"])
            if session is None:
                raise _RefusalError(404, "notFound", "There is no such upload")
            if self.command == "DELETE":
                del self.gcs.sessions[self.query["upload_id"]]
                return _Answer(status=499)
            span = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers.get("Content-Range", ""))
            if span is not None and span[1] is not None:
                if int(span[1]) != len(session.data):
                    return self._incomplete(session)
                if span[3] == "*" and len(self.body) % _CHUNK:
                    raise _RefusalError(400, "invalid", "A chunk but the last is a multiple of 256 KiB")
            session.data += self.body
            total = span[3] if span is not None else str(len(session.data))
            if total == "*" or len(session.data) < int(total):
                return self._incomplete(session)
            self.query = {**session.query, **self.query}
            answer = self._create(session.about, bytes(session.data))
            del self.gcs.sessions[self.query["upload_id"]]
            return answer

    def _incomplete(self, session: _Session) -> _Answer:
        return _Answer(status=308, headers={"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {})

    def _do_compose(self) -> _Answer:
        found = _OBJECT.fullmatch(self.where.removesuffix("/compose"))
        assert found is not None
        self._demand_bucket(unquote(found[1]))
        request = json.loads(self.body)
        sources, about = request.get("sourceObjects", []), request.get("destination", {})
        if not 1 <= len(sources) <= 32:
            raise _RefusalError(400, "invalid", f"The number of source components ({len(sources)}) is not 1 to 32")
        with self.gcs.lock:
            parts = [self._source(source) for source in sources]
            data = b"".join(part.data for part in parts)
            self.gcs.joins += 1
            if self.gcs.joins in self.gcs.wrong_joins:
                data = _damaged(data)
            stored = self.gcs.store(
                unquote(found[2]),
                data,
                self.query,
                content_type=about.get("contentType") or parts[0].content_type,
                metadata=about.get("metadata") or {},
                components=sum(part.components or 1 for part in parts),
                has_md5=False,
            )
        return self._json(self._resource(stored))

    def _source(self, source: Mapping[str, Any]) -> Stored:
        stored = self.gcs.objects.get(source["name"])
        wanted = source.get("generation")
        if stored is None or (wanted is not None and int(wanted) != stored.generation):
            raise _RefusalError(404, "notFound", f"Object {source['name']} (generation: {wanted}) not found.")
        demanded = source.get("objectPreconditions", {}).get("ifGenerationMatch")
        if demanded is not None and int(demanded) != stored.generation:
            raise _RefusalError(412, "conditionNotMet", "A source object's precondition does not hold")
        return stored

    def _do_rewrite(self) -> _Answer:
        found = _COPY.fullmatch(self.where)
        assert found is not None
        source_bucket, source, bucket, name = (unquote(part) for part in found.groups())
        self._demand_bucket(source_bucket)
        self._demand_bucket(bucket)
        about = json.loads(self.body) if self.body else {}
        with self.gcs.lock:
            stored = self._source({"name": source, "generation": self.query.get("sourceGeneration")})
            conditions = {
                key.replace("ifSource", "if"): value for key, value in self.query.items() if key.startswith("ifSource")
            }
            _demand_preconditions(stored, conditions)
            size, limit = len(stored.data), self.gcs.rewrite_bytes
            copied = self.gcs.rewrites[self.query["rewriteToken"]] if "rewriteToken" in self.query else 0
            copied = size if "/copyTo/" in self.where else min(size, copied + limit)
            told = {"kind": "storage#rewriteResponse", "totalBytesRewritten": str(copied), "objectSize": str(size)}
            if copied < size:
                token = secrets.token_hex(16)
                self.gcs.rewrites[token] = copied
                return self._json({**told, "done": False, "rewriteToken": token})
            made = self.gcs.store(
                name,
                stored.data,
                self.query,
                content_type=about.get("contentType") or stored.content_type,
                metadata=about.get("metadata", stored.metadata),
                components=stored.components,
                has_md5=stored.has_md5,
            )
        resource = self._resource(made)
        return self._json(resource if "/copyTo/" in self.where else {**told, "done": True, "resource": resource})

    def _do_delete(self) -> _Answer:
        with self.gcs.lock:
            stored = self._found()
            del self.gcs.objects[stored.name]
        return _Answer(status=204)

    def _do_patch(self) -> _Answer:
        about = json.loads(self.body) if self.body else {}
        with self.gcs.lock:
            stored = self._found()
            metadata = {**stored.metadata, **(about.get("metadata") or {})}
            stored = replace(
                stored,
                metadata={name: value for name, value in metadata.items() if value is not None},
                content_type=about.get("contentType") or stored.content_type,
                metageneration=stored.metageneration + 1,
                updated=datetime.now(UTC).isoformat(),
            )
            self.gcs.objects[stored.name] = stored
        return self._json(self._resource(stored))

    def _create(self, about: Mapping[str, Any], data: bytes) -> _Answer:
        declared = {"crc32c": about.get("crc32c"), "md5": about.get("md5Hash")}
        self._demand_digests(data, declared)
        stored = self.gcs.store(
            about["name"],
            data,
            self.query,
            content_type=about.get("contentType") or "application/octet-stream",
            metadata=about.get("metadata") or {},
        )
        return self._json(self._resource(stored))

    def _demand_digests(self, data: bytes, declared: dict[str, str | None]) -> None:
        for pair in self.headers.get("X-Goog-Hash", "").split(","):
            name, _, value = pair.strip().partition("=")
            if value:
                declared[name] = value
        if self.headers.get("Content-MD5"):
            declared["md5"] = self.headers["Content-MD5"]
        for name, actual in (("crc32c", _crc32c(data)), ("md5", _md5(data))):
            if declared.get(name) not in (None, actual):
                message = (
                    f'Provided {name.upper()} "{declared[name]}" doesn\'t match calculated {name.upper()} "{actual}".'
                )
                raise _RefusalError(400, "invalid", message)

    def _found(self) -> Stored:
        """The object of the URL, if it is there and the preconditions hold."""
        found = _OBJECT.fullmatch(self.where)
        assert found is not None
        self._demand_bucket(unquote(found[1]))
        name = unquote(found[2])
        with self.gcs.lock:
            stored = self.gcs.objects.get(name)
            if stored is None or self.query.get("generation", str(stored.generation)) != str(stored.generation):
                raise _RefusalError(404, "notFound", f"No such object: {self.gcs.bucket}/{name}")
            _demand_preconditions(stored, self.query)
            return stored

    def _demand_bucket(self, bucket: str) -> None:
        if bucket != self.gcs.bucket:
            raise _RefusalError(404, "notFound", "The specified bucket does not exist.")

    def _multipart(self) -> tuple[dict[str, Any], bytes]:
        """The two parts of a multipart/related body."""
        boundary = (
            BytesParser().parsebytes(f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()).get_boundary()
        )
        marker = f"--{boundary}".encode()
        _, about, rest = self.body.split(marker, 2)
        data = rest.split(b"\r\n\r\n", 1)[1]
        end = data.rindex(b"\r\n" + marker + b"--")
        return json.loads(about.split(b"\r\n\r\n", 1)[1]), data[:end]

    def _resource(self, stored: Stored) -> dict[str, Any]:
        resource: dict[str, Any] = {
            "kind": "storage#object",
            "id": f"{self.gcs.bucket}/{stored.name}/{stored.generation}",
            "name": stored.name,
            "bucket": self.gcs.bucket,
            "generation": str(stored.generation),
            "metageneration": str(stored.metageneration),
            "contentType": stored.content_type,
            "size": str(len(stored.data)),
            "crc32c": stored.crc32c,
            "etag": f"{stored.generation}/{stored.metageneration}",
            "storageClass": "STANDARD",
            "timeCreated": stored.updated,
            "updated": stored.updated,
        }
        resource |= {"md5Hash": stored.md5} if stored.has_md5 else {}
        resource |= {"metadata": dict(stored.metadata)} if stored.metadata else {}
        resource |= {"componentCount": stored.components} if stored.components is not None else {}
        return resource

    def _json(self, value: dict[str, Any]) -> _Answer:
        if "fields" in self.query:
            value = _select(value, self.query["fields"])
        return _Answer(status=200, body=json.dumps(value).encode(), headers={"Content-Type": "application/json"})

    # XML multipart uploads.

    def _do_xml(self) -> _Answer:
        bucket, _, name = self.where.removeprefix("/").partition("/")
        if unquote(bucket) != self.gcs.bucket:
            raise _RefusalError(404, "NoSuchBucket", "The specified bucket does not exist.")
        if self.command == "POST" and "uploads" in self.query:
            return self._xml_start(unquote(name))
        with self.gcs.lock:
            upload = self.gcs.multiparts.get(self.query.get("uploadId", ""))
            if upload is None or upload.name != unquote(name):
                raise _RefusalError(404, "NoSuchUpload", "The requested upload was not found.")
            if self.command == "PUT":
                return self._xml_part(upload)
            if self.command == "POST":
                return self._xml_complete(upload)
            if self.command == "DELETE":
                del self.gcs.multiparts[self.query["uploadId"]]
                return _Answer(status=204)
            return self._xml_parts(upload)

    def _xml_start(self, name: str) -> _Answer:
        prefix = "x-goog-meta-"
        metadata = {
            key.lower().removeprefix(prefix): value
            for key, value in self.headers.items()
            if key.lower().startswith(prefix)
        }
        identity = secrets.token_hex(16)
        content_type = self.headers.get("Content-Type", "application/octet-stream")
        with self.gcs.lock:
            self.gcs.multiparts[identity] = _Multipart(name=name, content_type=content_type, metadata=metadata)
        return _xml(
            "InitiateMultipartUploadResult",
            f"<Bucket>{self.gcs.bucket}</Bucket><Key>{escape(name)}</Key><UploadId>{identity}</UploadId>",
        )

    def _xml_part(self, upload: _Multipart) -> _Answer:
        self._demand_digests(self.body, {})
        upload.parts[int(self.query["partNumber"])] = self.body
        hashes = f"crc32c={_crc32c(self.body)},md5={_md5(self.body)}"
        return _Answer(status=200, headers={"ETag": _etag(self.body), "X-Goog-Hash": hashes})

    def _xml_complete(self, upload: _Multipart) -> _Answer:
        chosen: list[bytes] = []
        for part in ElementTree.fromstring(self.body).iter():
            if not part.tag.endswith("Part"):
                continue
            number, etag = (
                next(node.text or "" for node in part if node.tag.endswith(tag)) for tag in ("Number", "ETag")
            )
            data = upload.parts.get(int(number))
            if data is None or _etag(data).strip('"') != etag.strip('"'):
                raise _RefusalError(400, "InvalidPart", "One or more of the specified parts could not be found.")
            chosen.append(data)
        if any(len(data) < self.gcs.min_part_bytes for data in chosen[:-1]):
            raise _RefusalError(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum part size.")
        stored = self.gcs.store(
            upload.name,
            b"".join(chosen),
            content_type=upload.content_type,
            metadata=upload.metadata,
            components=len(chosen),
            has_md5=False,
        )
        del self.gcs.multiparts[self.query["uploadId"]]
        answer = _xml("CompleteMultipartUploadResult", f"<Key>{escape(upload.name)}</Key>")
        answer.headers |= {"X-Goog-Generation": str(stored.generation), "X-Goog-Hash": f"crc32c={stored.crc32c}"}
        return answer

    def _xml_parts(self, upload: _Multipart) -> _Answer:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{_etag(data)}</ETag><Size>{len(data)}</Size></Part>"
            for number, data in sorted(upload.parts.items())
        )
        return _xml("ListPartsResult", f"<Key>{escape(upload.name)}</Key><IsTruncated>false</IsTruncated>{parts}")

    # Bodies, in and out.

    def _read_body(self) -> bytes | None:
        """The whole body; None when it was interrupted."""
        body = bytearray()
        if self.headers.get("Transfer-Encoding") == "chunked":
            while length := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(length)
                self.rfile.readline()
            self.rfile.readline()
            return bytes(body)
        left = int(self.headers.get("Content-Length", 0))
        with self.gcs.lock:
            interruption = self.gcs.interruptions.pop(0) if left > _BLOCK and self.gcs.interruptions else None
        half = left // 2
        while left:
            if interruption is not None and left <= half:
                if interruption == "deaf":
                    self.gcs.closing.wait(10)
                return None
            block = self.rfile.read(min(_BLOCK, left))
            if not block:
                # The client is gone: what it sent is no request.
                raise ConnectionError("the request's body ended early")
            body += block
            left -= len(block)
            if self.gcs.seconds_per_block:
                time.sleep(self.gcs.seconds_per_block)
        return bytes(body)

    def _note(self, operation: str, name: str, status: int) -> None:
        with self.gcs.lock:
            self.gcs.log.append(Logged(operation=operation, name=name, status=status, bytes_in=len(self.body)))

    def _send(self, answer: _Answer, kind: Kind | None) -> None:
        if kind == "lost":
            self._reset()
            return
        body = answer.body
        half = body[: len(body) // 2]
        if kind == "flip" and body:
            body = _damaged(body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(half if kind == "short" else body)))
        self.end_headers()
        if answer.status != 204:
            self._pour(half if kind in ("cut", "truncate", "short", "hang") else body)
        if kind == "cut":
            self._reset()
        elif kind == "truncate":
            self.close_connection = True
        elif kind == "hang":
            self.gcs.connections.discard(self.client_address)
            self.gcs.closing.wait(30)
            self.close_connection = True

    def _pour(self, body: bytes) -> None:
        for start in range(0, len(body), _BLOCK):
            self.wfile.write(body[start : start + _BLOCK])
            if self.gcs.seconds_per_block:
                time.sleep(self.gcs.seconds_per_block)

    def _reset(self) -> None:
        # Linger of zero seconds: the close sends RST instead of FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True


def _damaged(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _demand_preconditions(stored: Stored | None, query: Mapping[str, str]) -> None:
    generation, metageneration = (0, 0) if stored is None else (stored.generation, stored.metageneration)
    for name, actual in (("Generation", generation), ("Metageneration", metageneration)):
        if int(query.get(f"if{name}Match", actual)) != actual:
            raise _RefusalError(412, "conditionNotMet", "At least one of the pre-conditions did not hold.")
        if int(query.get(f"if{name}NotMatch", -1)) == actual:
            raise _RefusalError(304, "notModified", "Not Modified")


def _select(value: Any, fields: str) -> Any:
    """The partial answer that `fields` asks for: `a,b/c,d(e,f)`."""
    if isinstance(value, list):
        return [_select(item, fields) for item in value]
    chosen: dict[str, Any] = {}
    for item in re.findall(r"[^,()]+(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?", fields):
        name, _, inner = item.partition("(")
        name, slash, below = name.partition("/")
        if name == "*":
            return value
        if name in value:
            inner = inner.removesuffix(")") if inner else below if slash else ""
            chosen[name] = _select(value[name], inner) if inner else value[name]
    return chosen


def _refused(status: int, reason: str, message: str) -> _Answer:
    error = {"code": status, "message": message, "errors": [{"message": message, "domain": "global", "reason": reason}]}
    return _Answer(
        status=status, body=json.dumps({"error": error}).encode(), headers={"Content-Type": "application/json"}
    )


def _xml(root: str, inside: str, status: int = 200, namespace: str = f' xmlns="{_XMLNS}"') -> _Answer:
    body = f"<?xml version='1.0' encoding='UTF-8'?><{root}{namespace}>{inside}</{root}>".encode()
    return _Answer(status=status, body=body, headers={"Content-Type": "application/xml"})


def _xml_refused(refusal: _RefusalError) -> _Answer:
    code = "BadDigest" if "doesn't match" in refusal.message else refusal.reason
    inside = f"<Code>{code}</Code><Message>{escape(refusal.message)}</Message><Details>none</Details>"
    return _xml("Error", inside, refusal.status, "")


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
