"""Refuses requests that a page of another site could send to Dagster's webserver, which does not check for them.

Dagster 1.13 has no login, executes a mutation that comes as GET or as `text/plain`, lets `/report_asset_…` forge
events, and accepts any WebSocket. A browser sends such requests for any page that its user visits, even to loopback.
But it also says where they come from, in headers that a page cannot change: `Origin`, `Sec-Fetch-Site`, and `Host`,
which reveals a name that was rebound to 127.0.0.1. Programs other than browsers send no `Origin`, and pass.

Entry point: `Guard`, ASGI middleware. It knows neither Dagster nor Starlette.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

HOSTS = "DATAPREP_UI_HOSTS"
"""Environment variable: comma-separated host names of the UI, in addition to loopback."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_INFORMATION = ("/server_info", "/dagit_info")
"""Paths that return only versions; health checks request them under the address of a container."""
_WITHOUT_PREFLIGHT = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
"""The content types that a page may send to another site without a CORS preflight request."""
_ADDED = (
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def hosts_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The names that the UI answers to: those of loopback, and those that the environment adds."""
    declared = (name.strip().lower() for name in environment.get(HOSTS, "").split(","))
    return (*LOOPBACK, *(name for name in declared if name))


def refusal(scope: Mapping[str, Any], hosts: Iterable[str]) -> str | None:
    """Return the reason for refusing a request, as a sentence for a legitimate user; None if the request may pass.

    Args:
        scope: The scope of an ASGI connection, of type `http` or `websocket`.
        hosts: Host names of the server; a name without a port matches every port.
    """
    headers = _headers(scope)
    path, method = str(scope["path"]), str(scope.get("method", "GET"))
    reads = scope["type"] == "http" and method in ("GET", "HEAD")
    if reads and path in _INFORMATION:
        return None
    # the server behind the guard could use a different one of them
    if any(len(values) > 1 for name, values in headers.items() if name in ("host", "origin", "content-type")):
        return "a header that must be unique occurs twice."
    host = _first_value(headers, "host").lower()
    if host not in hosts and _without_port(host) not in hosts:
        return f"unknown host name {host!r:.80}. If it is a name of this server, add it to {HOSTS}."
    origin = _first_value(headers, "origin").lower()
    # `null`, which a sandboxed frame or a file sends, has no host and is also refused
    if origin and urlsplit(origin).netloc != host:
        return "the request comes from a different origin."
    if not (_is_of_this_site(headers) or (reads and _opens_a_page(headers) and not _is_graphql(path))):
        return "the request comes from a different site."
    if scope["type"] == "websocket":
        return None
    if method not in ("GET", "HEAD", "POST"):
        return f"the method {method!r:.20} is not used here."
    if reads and _is_graphql(path) and "query" in parse_qs(bytes(scope.get("query_string", b"")).decode("latin-1")):
        return "GraphQL queries must use POST, because a link could contain a mutation."
    return _unsafe_content(headers) if method == "POST" else None


def _headers(scope: Mapping[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        # headers are bytes, all of which latin-1 decodes
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
    return found


def _first_value(headers: Mapping[str, Sequence[str]], name: str) -> str:
    return headers.get(name, [""])[0]


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _is_graphql(path: str) -> bool:
    return path.rstrip("/").endswith("/graphql")


def _is_of_this_site(headers: Mapping[str, Sequence[str]]) -> bool:
    """Whether the browser says so; `none` means that somebody typed the address.

    Other programs than browsers say nothing, and pass.
    """
    return _first_value(headers, "sec-fetch-site").lower() in ("", "same-origin", "none")


def _opens_a_page(headers: Mapping[str, Sequence[str]]) -> bool:
    """Whether somebody follows a link: the page with the link cannot read what is opened."""
    sought = _first_value(headers, "sec-fetch-mode").lower(), _first_value(headers, "sec-fetch-dest").lower()
    return sought == ("navigate", "document")


def _unsafe_content(headers: Mapping[str, Sequence[str]]) -> str | None:
    kind = _first_value(headers, "content-type").partition(";")[0].strip().lower()
    empty = _first_value(headers, "content-length") in ("", "0") and "transfer-encoding" not in headers
    # a page can also send content without a type, as that of a `Blob`, and needs no preflight for it
    if kind in _WITHOUT_PREFLIGHT or (not kind and not empty):
        return "the content type must be `application/json`."
    return None


class Guard:
    """See the module. Wraps an ASGI application."""

    def __init__(self, app: App, hosts: Iterable[str] = LOOPBACK) -> None:
        self._app, self._hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        why = refusal(scope, self._hosts)
        if why is None:
            await self._app(scope, receive, _adding(send))
        elif scope["type"] == "websocket":
            await receive()  # websocket.connect
            await send({"type": "websocket.close", "code": 1008})  # policy violation (RFC 6455)
        else:
            body = f"Refused: {why}\n".encode()
            kind = (b"content-type", b"text/plain; charset=utf-8")
            await _adding(send)({"type": "http.response.start", "status": 403, "headers": [kind]})
            await send({"type": "http.response.body", "body": body})


def _adding(send: Send) -> Send:
    """The same `send`, adding headers that forbid other sites to frame the response or to hold its window."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_ADDED]
        await send(message)

    return sending
