"""Receivers of failure messages: a webhook and a mail server on the loopback interface that store what they receive."""

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Webhook:
    """The received posts with their paths, and the answers to the next requests, each delayed by `slow` seconds.

    The next `failures` requests are answered with the status 503.
    """

    url: str = ""
    status: int = 204
    failures: int = 0
    slow: float = 0.0
    got: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@contextmanager
def run_webhook() -> Iterator[Webhook]:
    """Run a webhook and yield it."""
    made = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(made.slow)
            status = 503 if made.failures > 0 else made.status
            made.failures -= 1
            made.paths.append(self.path)
            if status < 300:
                made.got.append(json.loads(body))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with _served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
        yield made


@dataclass
class MailServer:
    """The received mails, each with its headers; `refuse` is the answer to RCPT TO, if set."""

    port: int = 0
    refuse: str = ""
    mails: list[str] = field(default_factory=list)


@contextmanager
def run_mail_server() -> Iterator[MailServer]:
    """Run a server with the part of SMTP that a client needs to send a mail (RFC 5321), without TLS."""
    made = MailServer()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 here")
            while line := self.rfile.readline():
                command = line.split(b" ")[0].strip().upper()
                if command == b"EHLO":
                    self._say("250 here")
                elif command == b"RCPT" and made.refuse:
                    self._say(made.refuse)
                elif command == b"DATA":
                    self._say("354 go on")
                    lines = []
                    while (text := self.rfile.readline()) not in (b".\r\n", b""):
                        lines.append(text)
                    made.mails.append(b"".join(lines).decode())
                    self._say("250 taken")
                elif command == b"QUIT":
                    self._say("221 bye")
                    return
                else:
                    self._say("250 ok")

        def _say(self, line: str) -> None:
            self.wfile.write(line.encode() + b"\r\n")

    with _served(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as server:
        made.port = server.server_address[1]
        yield made


@contextmanager
def _served(server: Any) -> Iterator[Any]:
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
