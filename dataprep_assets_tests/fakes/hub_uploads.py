"""Owns the upload half of the local hub: creation, uploads of LFS files, commits and tags.

It serves::

    POST /api/repos/create                       {name, organization, visibility}
    POST /api/validate-yaml
    POST /api/{type}s/{id}/preupload/{rev}       which files are LFS files
    POST /[datasets/]{id}.git/info/lfs/objects/batch
    PUT  <storage>/upload/{oid}[/{part}]         a whole LFS file, or one part
    POST <storage>/upload/{oid}                  the end of an upload in parts
    POST /api/{type}s/{id}/commit/{rev}          NDJSON; 412 unless `parentCommit` is the branch's commit
    POST /api/{type}s/{id}/tag/{rev}             409 for a tag that exists

Sources: `huggingface_hub` (``_commit_api.py``, ``lfs.py``, ``hf_api.py``). The names of these requests in the log and
for faults are ``create``, ``validate``, ``preupload``, ``batch``, ``upload``, ``complete``, ``commit`` and ``tag``.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from dataprep_assets_tests.fakes.hub_server import _Handler

_ATTRIBUTES = b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"


class Uploads(BaseHTTPRequestHandler):
    """The handlers of uploads; a part of the handler of `HubServer`."""

    def do_POST(self: "_Handler") -> None:
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        api = f"/api/{hub.repo_type}s/{hub.repo_id}/"
        body = self._read_body("POST", path)
        if body is None:
            return
        if path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            errors = [] if b"license_name: refused" not in body else [{"message": "unknown license"}]
            self._answer_validation(errors)
        elif path.startswith("/upload/"):
            self._complete(path.removeprefix("/upload/"))
        elif not hub.exists:
            self._refuse("unknown", 404, {"X-Error-Code": "RepoNotFound"})
        elif path.startswith(api + "preupload/"):
            self._preupload(json.loads(body))
        elif path.endswith(f"{hub.repo_id}.git/info/lfs/objects/batch"):
            self._batch(json.loads(body))
        elif path.startswith(api + "commit/"):
            self._add_commit([json.loads(line) for line in body.splitlines() if line])
        elif path.startswith(api + "tag/"):
            self._tag(path.removeprefix(api + "tag/"), json.loads(body)["tag"])
        elif path.startswith(api + "paths-info/"):
            fields = parse_qs(body.decode())
            self.find_entries(path.removeprefix(api + "paths-info/"), fields.get("paths", []))
        else:
            self._refuse("unknown", 404, {"X-Error-Code": "RepoNotFound"})

    def do_PUT(self: "_Handler") -> None:
        hub, path = self.server.hub, unquote(urlsplit(self.path).path)
        body = self._read_body("PUT", path)
        if body is None:
            return
        oid, _, part = path.removeprefix("/upload/").partition("/")
        if part:
            hub.parts[oid, int(part)] = body
        elif hashlib.sha256(body).hexdigest() != oid:
            self._refuse("upload", 400, {})
            return
        else:
            hub.lfs[oid] = body
        self._note("upload", 200)
        self._send(200, {"ETag": f'"{hashlib.md5(body).hexdigest()}"'}, b"", None)

    def _read_body(self: "_Handler", method: str, path: str) -> bytes | None:
        """Return the request's body; None if a fault answered the request."""
        name = _name_request(path, method)
        fault = self.server.hub.strike(method, name)
        if fault is not None and fault.kind == "reset":
            self.rfile.read(int(self.headers.get("Content-Length", "0")) // 2)
            self._note(name, 0)
            self._reset()
            return None
        if self.headers.get("Transfer-Encoding") == "chunked":
            blocks = []
            while size := int(self.rfile.readline().strip(), 16):
                blocks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(blocks)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if fault is not None and fault.kind == "lost":
            # The request takes effect, but the client never learns of it.
            self.lost = True
            return body
        if fault is not None:
            self._refuse_for(fault, name)
            return None
        return body

    def _answer_validation(self: "_Handler", errors: list[dict[str, str]]) -> None:
        self._note("validate", 400 if errors else 200)
        body = json.dumps({"errors": errors, "warnings": []}).encode()
        self._send(400 if errors else 200, {"Content-Type": "application/json"}, body, None)

    def _create(self: "_Handler", asked: Mapping[str, Any]) -> None:
        hub = self.server.hub
        if f"{asked.get('organization')}/{asked['name']}" != hub.repo_id:
            self._refuse("create", 403, {})
        elif hub.exists:
            self._refuse("create", 409, {})
        else:
            hub.private = asked.get("visibility") == "private" or asked.get("private") is True
            hub.move_branch({".gitattributes": _ATTRIBUTES})
            self._json("create", {"url": f"{hub.endpoint}/datasets/{hub.repo_id}"})

    def _preupload(self: "_Handler", asked: Mapping[str, Any]) -> None:
        hub = self.server.hub
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] >= hub.lfs_bytes else "regular",
                "shouldIgnore": False,
            }
            for file in asked["files"]
        ]
        self._json("preupload", {"files": files})

    def _batch(self: "_Handler", asked: Mapping[str, Any]) -> None:
        hub, objects = self.server.hub, []
        stored = {blob.sha256 for tree in hub.commits.values() for blob in tree.values()} | hub.lfs.keys()
        for wanted in asked["objects"]:
            answer: dict[str, Any] = {"oid": wanted["oid"], "size": wanted["size"]}
            href = f"{hub.storage_endpoint}/upload/{wanted['oid']}"
            if wanted["oid"] not in stored:
                upload: dict[str, Any] = {"href": href}
                if wanted["size"] > hub.part_bytes:
                    parts = -(-wanted["size"] // hub.part_bytes)
                    urls = {str(part): f"{href}/{part}" for part in range(1, parts + 1)}
                    upload["header"] = {"chunk_size": str(hub.part_bytes), **urls}
                answer["actions"] = {"upload": upload}
            objects.append(answer)
        self._json("batch", {"transfer": "basic", "objects": objects})

    def _complete(self: "_Handler", oid: str) -> None:
        hub = self.server.hub
        content = b"".join(hub.parts[key] for key in sorted(key for key in hub.parts if key[0] == oid))
        if hashlib.sha256(content).hexdigest() != oid:
            self._refuse("complete", 400, {})
            return
        hub.lfs[oid] = content
        self._json("complete", {})

    def _add_commit(self: "_Handler", lines: list[dict[str, Any]]) -> None:
        hub, header = self.server.hub, lines[0]["value"]
        with hub.lock:
            if header.get("parentCommit") not in (None, hub.commit):
                self._refuse("commit", 412, {})
                return
            tree, operations = hub.tree, []
            known = {blob.sha256: blob.content for one in hub.commits.values() for blob in one.values()} | hub.lfs
            for line in lines[1:]:
                value = line["value"]
                operations.append((line["key"], value["path"]))
                if line["key"] == "file":
                    tree[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    tree[value["path"]] = known[value["oid"]]
                else:
                    del tree[value["path"]]
            hub.operations.append(operations)
            commit = hub.move_branch(tree, parent=hub.commit)
        url = f"{hub.endpoint}/datasets/{hub.repo_id}/commit/{commit}"
        self._answer("commit", {"commitOid": commit, "commitUrl": url})

    def _tag(self: "_Handler", revision: str, tag: str) -> None:
        hub, commit = self.server.hub, self._commit(revision)
        if tag in hub.tags or commit is None:
            self._refuse("tag", 409 if tag in hub.tags else 404, {})
            return
        hub.tags[tag] = commit
        self._answer("tag", {})

    def _answer(self: "_Handler", name: str, value: object) -> None:
        """Answer a request that took effect, unless a fault loses the answer."""
        if self.lost:
            self._note(name, 0)
            self._reset()
        else:
            self._json(name, value)


def _name_request(path: str, method: str) -> str:
    if path.startswith("/upload/"):
        return "upload" if method == "PUT" else "complete"
    if path.endswith("/batch"):
        return "batch"
    names = ("create", "validate", "preupload", "commit", "tag")
    return next((name for name in names if f"/{name}" in path), "unknown")
