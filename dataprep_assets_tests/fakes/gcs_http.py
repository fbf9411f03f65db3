"""The HTTP layer of the local Google Cloud Storage: it reads requests, sends answers, and applies the due faults."""

import json
import socket
import struct
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dataprep_assets_tests.fakes.gcs_state import GcsState, Kind, Logged, RefusalError, crc32c_of, md5_of

_BLOCK = 64 * 1024


@dataclass(kw_only=True)
class Answer:
    """The status, body and headers of an answer."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Listener(ThreadingHTTPServer):
    """The listening socket; `handler` answers each connection in its own thread."""

    daemon_threads = True
    # Raise the backlog, because with the default of 5, connections are reset when many workers connect at once.
    request_queue_size = 128

    def __init__(self, gcs: GcsState, handler: type["Transport"]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.gcs = gcs

    def process_request(self, request: Any, client_address: Any) -> None:
        # Register the connection here, because its own thread may start much later.
        self.gcs.connections.add(client_address)
        super().process_request(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing, because clients that are killed on purpose drop their connections."""


class Transport(BaseHTTPRequestHandler):
    """A connection that reads requests and writes answers. Subclasses parse the request and create the answer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Listener

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because GcsServer.log is the log."""

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
    def gcs(self) -> GcsState:
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
            self.body = damaged(self.body)
        if fault is not None and kind == "status":
            answer = refused(fault.status, "backendError", "a programmed fault")
            if fault.retry_after is not None:
                answer.headers["Retry-After"] = fault.retry_after
        else:
            answer = self._try(operation)
        self._note(operation, name, answer.status)
        self._send(answer, kind)

    def _operation(self) -> tuple[str, str]:
        """Return the requested operation and the name of its object."""
        raise NotImplementedError

    def _try(self, operation: str) -> Answer:
        """Return the answer to a request, or its refusal."""
        raise NotImplementedError

    def demand_digests(self, data: bytes, declared: dict[str, str | None]) -> None:
        for pair in self.headers.get("X-Goog-Hash", "").split(","):
            name, _, value = pair.strip().partition("=")
            if value:
                declared[name] = value
        if self.headers.get("Content-MD5"):
            declared["md5"] = self.headers["Content-MD5"]
        for name, actual in (("crc32c", crc32c_of(data)), ("md5", md5_of(data))):
            if declared.get(name) not in (None, actual):
                message = (
                    f'Provided {name.upper()} "{declared[name]}" doesn\'t match calculated {name.upper()} "{actual}".'
                )
                raise RefusalError(400, "invalid", message)

    def _read_body(self) -> bytes | None:
        """Return the whole body; None if it was interrupted."""
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
                # The client has disconnected, so the received bytes are not a request.
                raise ConnectionError("the request's body ended early")
            body += block
            left -= len(block)
            if self.gcs.seconds_per_block:
                time.sleep(self.gcs.seconds_per_block)
        return bytes(body)

    def _note(self, operation: str, name: str, status: int) -> None:
        self.gcs.note(Logged(operation=operation, name=name, status=status, bytes_in=len(self.body)))

    def _send(self, answer: Answer, kind: Kind | None) -> None:
        if kind == "lost":
            self._reset()
            return
        body = answer.body
        half = body[: len(body) // 2]
        if kind == "flip" and body:
            body = damaged(body)
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
        # Set a linger of zero seconds, because close then sends RST instead of FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True


def damaged(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def refused(status: int, reason: str, message: str) -> Answer:
    error = {"code": status, "message": message, "errors": [{"message": message, "domain": "global", "reason": reason}]}
    return Answer(
        status=status, body=json.dumps({"error": error}).encode(), headers={"Content-Type": "application/json"}
    )
