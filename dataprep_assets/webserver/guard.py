"""Protection of Dagster's webserver against requests from pages of other sites, which Dagster itself accepts.

Dagster 1.13 has no login, executes mutations sent by GET or as `text/plain`, lets `/report_asset_…` forge events, and
accepts any WebSocket. A browser sends such requests for any page that its user visits, even to loopback.

However, the browser also sends the origin of a request in headers that a page cannot change: `Origin`, `Sec-Fetch-Site`
and `Host`. The last one reveals a name that was rebound to 127.0.0.1. Programs other than browsers send no `Origin`,
and their requests pass.

Entry point: `Guard`, ASGI middleware, which is independent of Dagster and Starlette.
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
"""Content types that a page may send to another site without a CORS preflight request."""
_ADDED = (
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def list_hosts(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the host names that the UI accepts: the names of loopback, and the names in the environment."""
    names = (name.strip().lower() for name in environment.get(HOSTS, "").split(","))
    return (*LOOPBACK, *(name for name in names if name))


def explain_refusal(scope: Mapping[str, Any], hosts: Iterable[str]) -> str | None:
    """Return the reason for refusing a request, as a sentence for a legitimate user; None if the request may pass.

    Args:
        scope: The scope of an ASGI connection, of type `http` or `websocket`.
        hosts: Host names of the server; a name without a port matches every port.
    """
    headers = _parse_headers(scope)
    path, method = str(scope["path"]), str(scope.get("method", "GET"))
    reads = scope["type"] == "http" and method in ("GET", "HEAD")
    if reads and path in _INFORMATION:
        return None
    # Refuse duplicates, because the server behind the guard could use a different one of the values.
    if any(len(values) > 1 for name, values in headers.items() if name in ("host", "origin", "content-type")):
        return "a header that must be unique occurs twice."
    host = _first_value(headers, "host").lower()
    if host not in hosts and _remove_port(host) not in hosts:
        return f"unknown host name {host!r:.80}. If it is a name of this server, add it to {HOSTS}."
    origin = _first_value(headers, "origin").lower()
    # This also refuses the origin `null`, which has no host. Sandboxed frames and local files send it.
    if origin and urlsplit(origin).netloc != host:
        return "the request comes from a different origin."
    if not (_is_of_this_site(headers) or (reads and _is_page_request(headers) and not _is_graphql(path))):
        return "the request comes from a different site."
    if scope["type"] == "websocket":
        return None
    if method not in ("GET", "HEAD", "POST"):
        return f"the method {method!r:.20} is not allowed."
    if reads and _is_graphql(path) and "query" in parse_qs(bytes(scope.get("query_string", b"")).decode("latin-1")):
        return "GraphQL queries must use POST, because a link could contain a mutation."
    return _describe_unsafe_content(headers) if method == "POST" else None


def _parse_headers(scope: Mapping[str, Any]) -> dict[str, list[str]]:
    values_by_name: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        # Decode as latin-1, because it can decode any byte.
        values_by_name.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
    return values_by_name


def _first_value(headers: Mapping[str, Sequence[str]], name: str) -> str:
    return headers.get(name, [""])[0]


def _remove_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _is_graphql(path: str) -> bool:
    return path.rstrip("/").endswith("/graphql")


def _is_of_this_site(headers: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the browser marks the request as same-origin, or as typed by the user (`none`).

    Programs other than browsers do not send the header, and their requests pass.
    """
    return _first_value(headers, "sec-fetch-site").lower() in ("", "same-origin", "none")


def _is_page_request(headers: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the request follows a link; the page with the link cannot read the opened page."""
    sought = _first_value(headers, "sec-fetch-mode").lower(), _first_value(headers, "sec-fetch-dest").lower()
    return sought == ("navigate", "document")


def _describe_unsafe_content(headers: Mapping[str, Sequence[str]]) -> str | None:
    kind = _first_value(headers, "content-type").partition(";")[0].strip().lower()
    empty = _first_value(headers, "content-length") in ("", "0") and "transfer-encoding" not in headers
    # Also refuse content without a type, such as a `Blob`, because a page can send it without a preflight request.
    if kind in _WITHOUT_PREFLIGHT or (not kind and not empty):
        return "the content type must be `application/json`."
    return None


class Guard:
    """ASGI middleware that refuses the requests described in the module's docstring."""

    def __init__(self, app: App, hosts: Iterable[str] = LOOPBACK) -> None:
        self._app, self._hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        reason = explain_refusal(scope, self._hosts)
        if reason is None:
            await self._app(scope, receive, _add_headers(send))
        elif scope["type"] == "websocket":
            await receive()  # this is `websocket.connect`, to which the next line responds
            await send({"type": "websocket.close", "code": 1008})  # 1008 is a policy violation (RFC 6455)
        else:
            body = f"Refused: {reason}\n".encode()
            kind = (b"content-type", b"text/plain; charset=utf-8")
            await _add_headers(send)({"type": "http.response.start", "status": 403, "headers": [kind]})
            await send({"type": "http.response.body", "body": body})


def _add_headers(send: Send) -> Send:
    """Wrap `send` to add headers that forbid other sites to frame the response or to keep a reference to its window."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_ADDED]
        await send(message)

    return sending
