"""A proxy on loopback in front of an S3 server that injects faults of networks and stores.

It forwards bytes unchanged, so signatures stay valid. `faults` is a list of rules: the first rule that matches a
request is applied and used up (`times`). `seen` records the requests.
"""

import hashlib
import http.client
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

Kind = Literal[
    "reset",  # the client gets a TCP reset instead of an answer, and nothing is forwarded
    "lost_answer",  # the request is carried out, but not answered
    "stall",  # the client gets no answer, and the connection stays open
    "cut_request",  # the server gets half of the body
    "truncate",  # the client gets half of the answer's body
    "flip",  # one byte of the request's body is changed, or of the answer's body if the request has none
    "503",
    "429",
    "400-timeout",  # the client gets status 400 with the code RequestTimeout
    "403",
    "drop",  # the request is acknowledged with the right ETag, but never forwarded to the server
]

_HOP = {"transfer-encoding", "connection", "content-length", "date", "server", "keep-alive"}
_BLOCK = 64 * 1024
_CODES = {
    "503": (503, "SlowDown"),
    "429": (429, "TooManyRequests"),
    "400-timeout": (400, "RequestTimeout"),
    "403": (403, "AccessDenied"),
}


@dataclass
class Fault:
    """A fault of a `kind` for the next `times` requests of an `operation`, after `skip` of them pass unchanged."""

    kind: Kind
    operation: str
    times: int = 1
    skip: int = 0
    retry_after: str | None = None


@dataclass(frozen=True)
class Seen:
    """A recorded request: `sent` counts the bytes of its body that were forwarded to the server."""

    operation: str
    path: str
    sent: int
    headers: dict[str, str] = field(hash=False)


def find_operation(method: str, target: str, headers: dict[str, str]) -> str:
    """Return the S3 operation of a request: `put`, `get`, `head`, `list`, `copy`, `part`, `part_copy`, `create`, …"""
    query = parse_qs(urlsplit(target).query, keep_blank_values=True)
    copied = any(name.lower() == "x-amz-copy-source" for name in headers)
    if method == "PUT":
        if "partNumber" in query:
            return "part_copy" if copied else "part"
        return "copy" if copied else "put"
    if method == "POST":
        return "create" if "uploads" in query else "complete"
    if method == "GET":
        for name, operation in (("list-type", "list"), ("uploads", "list_uploads"), ("uploadId", "list_parts")):
            if name in query:
                return operation
        return "get"
    if method == "DELETE":
        return "abort" if "uploadId" in query else "delete"
    return method.lower()


class FaultProxy:
    """A proxy that injects faults, described in the module.

    `before` receives (operation, target) of a request before it is forwarded, and may return the answer (status, code).
    `one_put_at_a_time` makes conditional writes atomic for servers that check first and write later (Swift, moto).
    """

    def __init__(
        self,
        upstream: str,
        *,
        certificate: tuple[str, str] | None = None,
        before: Callable[[str, str], tuple[int, str] | None] | None = None,
        one_put_at_a_time: bool = False,
    ) -> None:
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self._upstream = urlsplit(upstream).netloc
        self._before = before
        self._put_lock = threading.Lock() if one_put_at_a_time else nullcontext()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._scheme = "http" if certificate is None else "https"
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Disable Nagle's algorithm, because an answer in two packets would wait 40 ms for the delayed
            # acknowledgement of the first packet.
            disable_nagle_algorithm = True
            wbufsize = 256 * 1024

            def _any(self) -> None:
                try:
                    proxy._serve(self)
                except OSError:
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815

            def handle_expect_100(self) -> bool:
                told = super().handle_expect_100()
                # Flush, because the client would otherwise wait a second for the response.
                self.wfile.flush()
                return told

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                # Print nothing, because clients that give up are expected here.
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        """The URL on which the proxy listens."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def count(self, operation: str) -> int:
        """Return the number of recorded requests of this operation."""
        return sum(seen.operation == operation for seen in self.seen)

    def sent(self, operation: str) -> int:
        """Return the number of bytes in bodies of this operation that were forwarded to the server."""
        return sum(seen.sent for seen in self.seen if seen.operation == operation)

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        headers = dict(request.headers.items())
        operation = find_operation(request.command, request.path, headers)
        if "Transfer-Encoding" in request.headers:
            # Refuse chunked requests, with which clients send trailers, because R2 and older stores also refuse
            # trailers.
            self._record(operation, request, 0, headers)
            self._refuse(request, 501, "NotImplemented")
            request.close_connection = True
            return
        fault = self._fault_for(operation)
        kind = fault.kind if fault is not None else None
        if kind == "reset":
            self._record(operation, request, 0, headers)
            _reset(request)
            return
        if kind == "stall":
            self._record(operation, request, 0, headers)
            self._over.wait()
            request.close_connection = True
            return
        if kind in _CODES and fault is not None:
            self._drain(request)
            self._record(operation, request, 0, headers)
            status, code = _CODES[kind]
            self._refuse(request, status, code, fault.retry_after)
            return
        if kind == "drop":
            body = self._drain(request)
            self._record(operation, request, 0, headers)
            self._acknowledge(request, body)
            return
        refusal = self._before(operation, request.path) if self._before is not None else None
        if refusal is not None:
            self._drain(request)
            self._record(operation, request, 0, headers)
            self._refuse(request, *refusal)
            return
        with self._put_lock if operation == "put" else nullcontext():
            self._forward(request, operation, headers, kind)

    def _fault_for(self, operation: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.operation == operation and fault.times > 0:
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    return fault
        return None

    def _record(self, operation: str, request: BaseHTTPRequestHandler, sent: int, headers: dict[str, str]) -> None:
        with self._lock:
            self.seen.append(Seen(operation, request.path, sent, headers))

    def _forward(
        self, request: BaseHTTPRequestHandler, operation: str, headers: dict[str, str], kind: Kind | None
    ) -> None:
        length = int(headers.get("Content-Length", "0"))
        connection = http.client.HTTPConnection(self._upstream, timeout=60)
        sent = 0
        try:
            connection.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                # Drop `Expect`, because the client was already told to continue.
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders()
            goal = length // 2 if kind == "cut_request" else length
            while sent < goal:
                block = request.rfile.read(min(_BLOCK, goal - sent))
                if not block:
                    request.close_connection = True
                    return
                if kind == "flip" and sent == 0:
                    block = bytes([block[0] ^ 1]) + block[1:]
                connection.send(block)
                sent += len(block)
            if kind == "cut_request":
                _reset(request)
                return
            response = connection.getresponse()
            self._record(operation, request, sent, headers)
            sent = -1
            if kind == "lost_answer":
                response.read()
                _reset(request)
                return
            self._answer(request, response, kind, flip=kind == "flip" and not length)
        except (OSError, http.client.HTTPException):
            request.close_connection = True
        finally:
            if sent >= 0:
                self._record(operation, request, sent, headers)
            connection.close()

    def _answer(
        self, request: BaseHTTPRequestHandler, response: http.client.HTTPResponse, kind: Kind | None, *, flip: bool
    ) -> None:
        length = response.getheader("Content-Length")
        whole = response.read() if length is None and request.command != "HEAD" else None
        total = len(whole) if whole is not None else int(length or "0")
        request.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in _HOP:
                request.send_header(name, value)
        request.send_header("Content-Length", str(total))
        request.end_headers()
        if request.command == "HEAD":
            return
        goal = total // 2 if kind == "truncate" else total
        done = 0
        while done < goal:
            block = whole[done:goal] if whole is not None else response.read(min(_BLOCK, goal - done))
            if not block:
                break
            if flip and done == 0:
                block = bytes([block[0] ^ 1]) + block[1:]
            request.wfile.write(block)
            done += len(block)
        request.wfile.flush()
        if done < total:
            request.close_connection = True

    def _drain(self, request: BaseHTTPRequestHandler) -> bytes:
        return request.rfile.read(int(request.headers.get("Content-Length", "0")))

    def _refuse(self, request: BaseHTTPRequestHandler, status: int, code: str, retry_after: str | None = None) -> None:
        # Put a key id into the message, as real stores sometimes do, because a test verifies that no error shows it.
        body = f"<Error><Code>{code}</Code><Message>AKIA-SAID-BY-THE-STORE may not</Message></Error>".encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/xml")
        request.send_header("Content-Length", str(len(body)))
        if retry_after is not None:
            request.send_header("Retry-After", retry_after)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def _acknowledge(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        request.send_response(200)
        request.send_header("ETag", f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')
        request.send_header("Content-Length", "0")
        request.end_headers()


def _reset(request: BaseHTTPRequestHandler) -> None:
    """Close the connection with a TCP reset."""
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.connection.close()
    request.close_connection = True


def require_equal_parts(client: Any, bucket: str) -> Callable[[str, str], tuple[int, str] | None]:
    """Return R2's rule for `before`: all parts except the last have the same size, at least 5 MiB, and the last is not
    larger.

    Source: Cloudflare's documentation, "Multipart upload, limitations". A violation is refused on
    CompleteMultipartUpload as InvalidPart or EntityTooSmall. `client` lists the parts that the server has.
    """

    def before(operation: str, target: str) -> tuple[int, str] | None:
        if operation != "complete":
            return None
        parts = urlsplit(target)
        key = re.sub(rf"^/{re.escape(bucket)}/", "", parts.path)
        upload = parse_qs(parts.query)["uploadId"][0]
        pages = client.get_paginator("list_parts").paginate(Bucket=bucket, Key=key, UploadId=upload)
        sizes = [part["Size"] for page in pages for part in page.get("Parts", ())]
        if any(size != sizes[0] for size in sizes[:-1]) or (sizes and sizes[-1] > sizes[0]):
            return 400, "InvalidPart"
        if len(sizes) > 1 and sizes[0] < 5 * 1024 * 1024:
            return 400, "EntityTooSmall"
        return None

    return before
