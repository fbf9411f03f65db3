"""Owns the local hub: a real HTTP server that speaks the parts of the Hugging Face Hub's API that this project needs.

Usable as ``HF_ENDPOINT`` (with ``HF_HUB_DISABLE_XET=1``) by ``huggingface_hub``'s own client. It serves::

    GET      /api/{type}s/{id}/revision/{rev}
    GET      /api/{type}s/{id}/tree/{sha}[/{folder}]          in pages, with Link headers; ?recursive=true
    GET      /api/{type}s/{id}/refs
    POST     /api/{type}s/{id}/paths-info/{sha}
    HEAD|GET /[datasets/]{id}/resolve/{rev}/{path}            ETag, X-Repo-Commit, X-Linked-Etag, X-Linked-Size, Range

and the requests of uploads, which `hub_uploads` describes.

With ``storage_host=True`` LFS files are redirected to signed URLs on a second origin, as the real hub does. Faults are
programmed per path and request number with :meth:`HubServer.fail`; :attr:`HubServer.log` says what was asked for.
"""

import hashlib
import json
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal
from urllib.parse import parse_qs, quote, unquote, urlsplit

from dataprep_assets_tests.fakes.hub_uploads import Uploads
from dataprep_assets_tests.fakes.programmed import Fault, Programmed
from dataprep_assets_tests.fakes.ranges import parse_range

# status    answer with `status` and, if set, Retry-After
# reset     half of the body (nothing for a request of the API), then a TCP reset
# truncate  half of the body under the full Content-Length, then an orderly close
# short     half of the body under a Content-Length that agrees with it
# flip      the right length, the last byte wrong
# stall     the headers and half of the body, then silence
# missing   404, EntryNotFound
# lost      for a commit or a tag: it is made, then a TCP reset
# expired   403, as a storage host answers a signed URL that is too old
Kind = Literal["status", "reset", "truncate", "short", "flip", "stall", "missing", "expired", "lost"]

_CHUNK = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Logged:
    """A logged request: ``name`` is a file's path in the repository, or ``revision`` or ``tree``; ``span`` is
    half-open.
    """

    method: str
    name: str
    span: tuple[int, int] | None
    status: int
    storage: bool
    authorization: str | None


@dataclass(frozen=True, kw_only=True)
class _Blob:
    content: bytes
    git_sha1: str
    sha256: str | None

    @property
    def etag(self) -> str:
        return self.sha256 or self.git_sha1


class HubServer(Programmed[Kind, Logged]):
    """One repository on a loopback port, as a context manager.

    Files of at least ``lfs_bytes`` are LFS files. ``seconds_per_chunk`` slows bodies down, per 64 KiB. If ``tree`` is
    None, the repository does not exist until a client creates it. LFS files above ``part_bytes`` are uploaded in parts.
    """

    def __init__(
        self,
        tree: Mapping[str, bytes] | None,
        *,
        repo_id: str = "org/data",
        repo_type: Literal["dataset", "model"] = "dataset",
        branch: str = "main",
        lfs_bytes: int = 1024,
        page_size: int = 1000,
        seconds_per_chunk: float = 0.0,
        storage_host: bool = False,
        part_bytes: int = 1 << 30,
    ) -> None:
        super().__init__()
        self.repo_id = repo_id
        self.repo_type = repo_type
        self.lfs_bytes = lfs_bytes
        self.page_size = page_size
        self.seconds_per_chunk = seconds_per_chunk
        self.storage_host = storage_host
        self.commits: dict[str, dict[str, _Blob]] = {}
        self.branches: dict[str, str] = {}
        self.branch = branch
        self.part_bytes = part_bytes
        self.tags: dict[str, str] = {}
        self.private = False
        self.lfs: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.operations: list[list[tuple[str, str]]] = []
        self._servers = [_Server(self, storage=False), _Server(self, storage=True)]
        if tree is not None:
            self.move_branch(tree)

    def __enter__(self) -> "HubServer":
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def storage_endpoint(self) -> str:
        return f"http://127.0.0.1:{self._servers[1].server_port}"

    @property
    def commit(self) -> str:
        """The commit to which the branch points."""
        return self.branches[self.branch]

    @property
    def exists(self) -> bool:
        """Whether the repository exists."""
        return self.branch in self.branches

    @property
    def tree(self) -> dict[str, bytes]:
        """The files of the branch."""
        return {path: blob.content for path, blob in self.commits[self.commit].items()}

    def move_branch(self, tree: Mapping[str, bytes], parent: str = "") -> str:
        """Commit ``tree`` and move the branch to it; earlier commits stay readable by their hash."""
        blobs = {path: self._blob(content) for path, content in tree.items()}
        listing = parent + "".join(f"{path}\0{blobs[path].etag}\n" for path in sorted(blobs))
        commit = hashlib.sha1(listing.encode()).hexdigest()
        self.commits[commit] = blobs
        self.branches[self.branch] = commit
        return commit

    def fail(self, name: str, kind: Kind, *, method: str = "GET", **how: Any) -> None:
        """Make requests for ``name`` (a path, ``revision`` or ``tree``) fail; ``how`` has the fields of `Fault`."""
        self.program(Fault(operation=method, kind=kind, within=name, whole=True, **how))

    def spans(self, name: str, since: int = 0) -> list[tuple[int, int]]:
        """Return the requested byte ranges in GETs of ``name``, from log entry ``since`` on."""
        asked = self.asked(lambda entry: entry.name == name, since)
        return [entry.span for entry in asked if entry.span is not None]

    def count(self, name: str, method: str = "GET", since: int = 0) -> int:
        """Return the number of requests for ``name``, from log entry ``since`` on."""
        return len(self.asked(lambda entry: entry.name == name and entry.method == method, since))

    def _blob(self, content: bytes) -> _Blob:
        return _Blob(
            content=content,
            git_sha1=hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
            sha256=hashlib.sha256(content).hexdigest() if len(content) >= self.lfs_bytes else None,
        )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Raise the backlog, because with the default of 5, connections are reset when many workers connect at once.
    request_queue_size = 128

    def __init__(self, hub: HubServer, *, storage: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub = hub
        self.storage = storage

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing, because clients that are killed on purpose drop their connections."""


class _Handler(Uploads, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server
    lost = False

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because HubServer.log is the log."""

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def _route(self) -> None:
        hub = self.server.hub
        url = urlsplit(self.path)
        path = unquote(url.path)
        api = f"/api/{hub.repo_type}s/{hub.repo_id}/"
        # On the Hub, the URLs of a dataset's files begin with `/datasets`, but the URLs of a model's files begin with
        # the name of the model.
        resolve = f"{'/datasets' if hub.repo_type == 'dataset' else ''}/{hub.repo_id}/resolve/"
        if self.server.storage and path.startswith("/storage/"):
            _, _, commit, name = path.split("/", 3)
            self._file(commit, name)
        elif path == api + "refs":
            self._refs()
        elif path == api.rstrip("/") and hub.exists:
            self._revision(hub.branch)
        elif path.startswith(api + "revision/"):
            self._revision(path.removeprefix(api + "revision/"))
        elif path.startswith(api + "tree/"):
            self._tree(path.removeprefix(api + "tree/"), parse_qs(url.query))
        elif path.startswith(resolve):
            revision, _, name = path.removeprefix(resolve).partition("/")
            self._resolve(revision, name)
        else:
            self._refuse("unknown", 404, {"X-Error-Code": "RepoNotFound"})

    def _commit(self, revision: str) -> str | None:
        hub = self.server.hub
        commit = {**hub.branches, **hub.tags}.get(revision, revision)
        return commit if commit in hub.commits else None

    def _refs(self) -> None:
        hub = self.server.hub
        if self._struck("refs"):
            return

        def listed(kind: str, refs: Mapping[str, str]) -> list[dict[str, str]]:
            return [
                {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit} for name, commit in refs.items()
            ]

        branches, tags = listed("heads", hub.branches), listed("tags", hub.tags)
        self._json("refs", {"branches": branches, "tags": tags, "converts": []})

    def _revision(self, revision: str) -> None:
        hub = self.server.hub
        if self._struck("revision"):
            return
        commit = self._commit(revision)
        if commit is None:
            error = "RevisionNotFound" if hub.exists else "RepoNotFound"
            self._refuse("revision", 404, {"X-Error-Code": error})
            return
        siblings = [{"rfilename": path} for path in sorted(hub.commits[commit])]
        self._json(
            "revision", {"id": hub.repo_id, "sha": commit, "private": hub.private, "tags": [], "siblings": siblings}
        )

    def _tree(self, path: str, query: dict[str, list[str]]) -> None:
        hub = self.server.hub
        if self._struck("tree"):
            return
        revision, _, folder = path.partition("/")
        commit = self._commit(revision)
        if commit is None:
            self._refuse("tree", 404, {"X-Error-Code": "RevisionNotFound"})
            return
        prefix = f"{folder}/" if folder else ""
        entries = [entry for entry in list_entries(hub.commits[commit]) if str(entry["path"]).startswith(prefix)]
        recursive = query.get("recursive", ["false"])[0] == "true"
        if not recursive:
            entries = [entry for entry in entries if "/" not in str(entry["path"]).removeprefix(prefix)]
        start = int(query.get("cursor", ["0"])[0])
        page, following = entries[start : start + hub.page_size], start + hub.page_size
        headers = {}
        if following < len(entries):
            path = urlsplit(self.path).path
            headers["Link"] = (
                f'<{hub.endpoint}{path}?recursive={str(recursive).lower()}&cursor={following}>; rel="next"'
            )
        self._json("tree", page, headers)

    def find_entries(self, revision: str, paths: list[str]) -> None:
        """Answer with the entries of these paths that exist."""
        commit = self._commit(revision)
        if commit is None:
            self._refuse("paths-info", 404, {"X-Error-Code": "RevisionNotFound"})
            return
        entries = list_entries(self.server.hub.commits[commit])
        self._json("paths-info", [entry for entry in entries if entry["path"] in paths])

    def _resolve(self, revision: str, name: str) -> None:
        hub = self.server.hub
        commit = self._commit(revision)
        if commit is None:
            self._refuse(name, 404, {"X-Error-Code": "RevisionNotFound"})
            return
        blob = hub.commits[commit].get(name)
        if hub.storage_host and blob is not None and blob.sha256 is not None:
            if self._struck(name):
                return
            location = f"{hub.storage_endpoint}/storage/{commit}/{quote(name)}?signature=secret"
            headers = {**_object_headers(commit, blob), "Location": location}
            self._refuse(name, 302, headers)
        else:
            self._file(commit, name)

    def _file(self, commit: str, name: str) -> None:
        fault = self.server.hub.strike(self.command, name)
        blob = self.server.hub.commits[commit].get(name)
        if blob is None or (fault is not None and fault.kind == "missing"):
            self._refuse(name, 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        if fault is not None and fault.kind in ("status", "expired"):
            self._refuse_for(fault, name)
            return
        span = parse_range(self.headers, len(blob.content))
        start, end = span or (0, len(blob.content))
        body = blob.content[start:end]
        headers = {**_object_headers(commit, blob), "Accept-Ranges": "bytes"}
        if span is not None:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(blob.content)}"
        status = 200 if span is None else 206
        self._note(name, status, (start, end) if self.command == "GET" else None)
        self._send(status, headers, body, fault.kind if fault is not None else None)

    def _struck(self, name: str) -> bool:
        """Return whether a fault answered an API request."""
        fault = self.server.hub.strike(self.command, name)
        if fault is None:
            return False
        if fault.kind == "reset":
            self._note(name, 0)
            self._reset()
        else:
            self._refuse_for(fault, name)
        return True

    def _refuse_for(self, fault: Fault[Kind], name: str) -> None:
        if fault.kind == "missing":
            self._refuse(name, 404, {"X-Error-Code": "EntryNotFound"})
        elif fault.kind == "expired":
            self._refuse(name, 403, {})
        else:
            # Send a value that starts with a quote as the Hub's own header, `RateLimit: "api";r=0;t=55`.
            header = "RateLimit" if (fault.retry_after or "").startswith('"') else "Retry-After"
            self._refuse(name, fault.status, {header: fault.retry_after} if fault.retry_after else {})

    def _refuse(self, name: str, status: int, headers: Mapping[str, str]) -> None:
        self._note(name, status)
        self._send(status, headers, b"", None)

    def _json(self, name: str, value: object, headers: Mapping[str, str] | None = None) -> None:
        self._note(name, 200)
        self._send(200, {"Content-Type": "application/json", **(headers or {})}, json.dumps(value).encode(), None)

    def _note(self, name: str, status: int, span: tuple[int, int] | None = None) -> None:
        self.server.hub.note(
            Logged(
                method=self.command,
                name=name,
                span=span,
                status=status,
                storage=self.server.storage,
                authorization=self.headers.get("Authorization"),
            )
        )

    def _send(self, status: int, headers: Mapping[str, str], body: bytes, kind: Kind | None) -> None:
        declared = len(body) // 2 if kind == "short" else len(body)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(declared))
        self.end_headers()
        if self.command == "HEAD":
            return
        if kind == "flip" and body:
            body = body[:-1] + bytes([body[-1] ^ 1])
        self._pour(body[: len(body) // 2] if kind in ("reset", "truncate", "short", "stall") else body)
        if kind == "reset":
            self._reset()
        elif kind == "truncate":
            self.close_connection = True
        elif kind == "stall":
            self.server.hub.closing.wait(10)
            self.close_connection = True

    def _pour(self, body: bytes) -> None:
        pause = self.server.hub.seconds_per_chunk
        for start in range(0, len(body), _CHUNK):
            self.wfile.write(body[start : start + _CHUNK])
            if pause:
                time.sleep(pause)

    def _reset(self) -> None:
        # Set a linger of zero seconds, because close then sends RST instead of FIN.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True


def _object_headers(commit: str, blob: _Blob) -> dict[str, str]:
    headers = {"X-Repo-Commit": commit, "ETag": f'"{blob.etag}"'}
    if blob.sha256 is not None:
        headers |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(len(blob.content))}
    return headers


def list_entries(blobs: Mapping[str, _Blob]) -> list[dict[str, object]]:
    """Return the tree endpoint's entries, including folders, in path order."""
    folders = {
        "/".join(parts[:depth]) for path in blobs for parts in [path.split("/")] for depth in range(1, len(parts))
    }
    entries: list[dict[str, object]] = [
        {"type": "directory", "oid": hashlib.sha1(folder.encode()).hexdigest(), "size": 0, "path": folder}
        for folder in folders
    ]
    for path, blob in blobs.items():
        entry: dict[str, object] = {"type": "file", "oid": blob.git_sha1, "size": len(blob.content), "path": path}
        if blob.sha256 is not None:
            # For an LFS file, the Hub's oid identifies the pointer, which no client downloads.
            pointer = f"version 1\noid sha256:{blob.sha256}\n".encode()
            entry["oid"] = hashlib.sha1(pointer).hexdigest()
            entry["lfs"] = {"oid": blob.sha256, "size": len(blob.content), "pointerSize": len(pointer)}
        entries.append(entry)
    return sorted(entries, key=lambda entry: str(entry["path"]))
