"""The JSON API of the local Google Cloud Storage."""

import base64
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from email.parser import BytesParser
from typing import Any
from urllib.parse import unquote

from dataprep_assets_tests.fakes.gcs_http import Answer, Transport, damaged
from dataprep_assets_tests.fakes.gcs_state import (
    RefusalError,
    Session,
    Stored,
    demand_preconditions,
    format_now,
)
from dataprep_assets_tests.fakes.ranges import parse_range

_CHUNK = 256 * 1024
_OBJECT = re.compile(r"(?:/download)?/storage/v1/b/([^/]+)/o/([^/]+)")
_COPY = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)")


class JsonApi(Transport):
    """Handlers for the requests of the JSON API."""

    def _operation(self) -> tuple[str, str]:
        """Return the requested operation and the name of its object."""
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

    def _do_bucket(self) -> Answer:
        self._demand_bucket(unquote(self.where.rpartition("/")[2]))
        return self._json(
            {"kind": "storage#bucket", "name": self.gcs.bucket, "location": "US", "storageClass": "STANDARD"}
        )

    def _do_list(self) -> Answer:
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

    def _do_get(self) -> Answer:
        return self._json(self._resource(self._found()))

    def _do_media(self) -> Answer:
        stored = self._found()
        size = len(stored.data)
        headers = {
            "Content-Type": stored.content_type,
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Metageneration": str(stored.metageneration),
            "X-Goog-Stored-Content-Length": str(size),
            "X-Goog-Hash": f"crc32c={stored.crc32c}" + (f",md5={stored.md5}" if stored.has_md5 else ""),
        }
        span = parse_range(self.headers, size)
        if span is None:
            return Answer(status=200, body=stored.data, headers=headers)
        start, stop = span
        if start >= size:
            raise RefusalError(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return Answer(status=206, body=stored.data[start:stop], headers=headers)

    def _do_insert(self) -> Answer:
        self._demand_bucket(unquote(self.where.split("/")[5]))
        how = self.query.get("uploadType")
        if how == "media":
            return self._create({"name": self.query["name"]}, self.body)
        if how == "multipart":
            return self._create(*self._multipart())
        if how != "resumable":
            raise RefusalError(400, "invalid", "uploadType is none of media, multipart, resumable")
        about = json.loads(self.body) if self.body else {}
        about.setdefault("name", self.query.get("name"))
        about.setdefault("contentType", self.headers.get("X-Upload-Content-Type"))
        identity = secrets.token_hex(16)
        with self.gcs.lock:
            demand_preconditions(self.gcs.objects.get(about["name"]), self.query)
            self.gcs.sessions[identity] = Session(about=about, query=self.query)
        location = f"{self.gcs.endpoint}{self.where}?uploadType=resumable&upload_id={identity}"
        return Answer(status=200, headers={"Location": location, "X-GUploader-UploadID": identity})

    def _do_resume(self) -> Answer:
        with self.gcs.lock:
            session = self.gcs.sessions.get(self.query["upload_id"])
            if session is None:
                raise RefusalError(404, "notFound", "There is no such upload")
            if self.command == "DELETE":
                del self.gcs.sessions[self.query["upload_id"]]
                return Answer(status=499)
            span = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", self.headers.get("Content-Range", ""))
            if span is not None and span[1] is not None:
                if int(span[1]) != len(session.data):
                    return self._incomplete(session)
                if span[3] == "*" and len(self.body) % _CHUNK:
                    raise RefusalError(400, "invalid", "A chunk but the last is a multiple of 256 KiB")
            session.data += self.body
            total = span[3] if span is not None else str(len(session.data))
            if total == "*" or len(session.data) < int(total):
                return self._incomplete(session)
            self.query = {**session.query, **self.query}
            answer = self._create(session.about, bytes(session.data))
            del self.gcs.sessions[self.query["upload_id"]]
            return answer

    def _incomplete(self, session: Session) -> Answer:
        return Answer(status=308, headers={"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {})

    def _do_compose(self) -> Answer:
        found = _OBJECT.fullmatch(self.where.removesuffix("/compose"))
        assert found is not None
        self._demand_bucket(unquote(found[1]))
        request = json.loads(self.body)
        sources, about = request.get("sourceObjects", []), request.get("destination", {})
        if not 1 <= len(sources) <= 32:
            raise RefusalError(400, "invalid", f"The number of source components ({len(sources)}) is not 1 to 32")
        with self.gcs.lock:
            parts = [self._source(source) for source in sources]
            data = b"".join(part.data for part in parts)
            self.gcs.joins += 1
            if self.gcs.joins in self.gcs.wrong_joins:
                data = damaged(data)
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
            raise RefusalError(404, "notFound", f"Object {source['name']} (generation: {wanted}) not found.")
        demanded = source.get("objectPreconditions", {}).get("ifGenerationMatch")
        if demanded is not None and int(demanded) != stored.generation:
            raise RefusalError(412, "conditionNotMet", "A source object's precondition does not hold")
        return stored

    def _do_rewrite(self) -> Answer:
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
            demand_preconditions(stored, conditions)
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

    def _do_delete(self) -> Answer:
        with self.gcs.lock:
            stored = self._found()
            del self.gcs.objects[stored.name]
        return Answer(status=204)

    def _do_patch(self) -> Answer:
        about = json.loads(self.body) if self.body else {}
        with self.gcs.lock:
            stored = self._found()
            metadata = {**stored.metadata, **(about.get("metadata") or {})}
            stored = replace(
                stored,
                metadata={name: value for name, value in metadata.items() if value is not None},
                content_type=about.get("contentType") or stored.content_type,
                metageneration=stored.metageneration + 1,
                updated=format_now(),
            )
            self.gcs.objects[stored.name] = stored
        return self._json(self._resource(stored))

    def _create(self, about: Mapping[str, Any], data: bytes) -> Answer:
        declared = {"crc32c": about.get("crc32c"), "md5": about.get("md5Hash")}
        self.demand_digests(data, declared)
        stored = self.gcs.store(
            about["name"],
            data,
            self.query,
            content_type=about.get("contentType") or "application/octet-stream",
            metadata=about.get("metadata") or {},
        )
        return self._json(self._resource(stored))

    def _found(self) -> Stored:
        """Return the object of the URL; refuse if it is missing or a precondition fails."""
        found = _OBJECT.fullmatch(self.where)
        assert found is not None
        self._demand_bucket(unquote(found[1]))
        name = unquote(found[2])
        with self.gcs.lock:
            stored = self.gcs.objects.get(name)
            if stored is None or self.query.get("generation", str(stored.generation)) != str(stored.generation):
                raise RefusalError(404, "notFound", f"No such object: {self.gcs.bucket}/{name}")
            demand_preconditions(stored, self.query)
            return stored

    def _demand_bucket(self, bucket: str) -> None:
        if bucket != self.gcs.bucket:
            raise RefusalError(404, "notFound", "The specified bucket does not exist.")

    def _multipart(self) -> tuple[dict[str, Any], bytes]:
        """Return the two parts of a multipart/related body."""
        boundary = (
            BytesParser().parsebytes(f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()).get_boundary()
        )
        marker = f"--{boundary}".encode()
        _, about, rest = self.body.split(marker, 2)
        head, data = rest.split(b"\r\n\r\n", 1)
        end = data.rindex(b"\r\n" + marker + b"--")
        content_type = BytesParser().parsebytes(head.lstrip() + b"\r\n\r\n")["Content-Type"]
        return {"contentType": content_type, **json.loads(about.split(b"\r\n\r\n", 1)[1])}, data[:end]

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

    def _json(self, value: dict[str, Any]) -> Answer:
        if "fields" in self.query:
            value = _select(value, self.query["fields"])
        return Answer(status=200, body=json.dumps(value).encode(), headers={"Content-Type": "application/json"})


def _select(value: Any, fields: str) -> Any:
    """Return the partial answer that `fields` selects: `a,b/c,d(e,f)`."""
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
