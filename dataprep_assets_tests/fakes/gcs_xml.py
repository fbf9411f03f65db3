"""The XML multipart uploads of the local Google Cloud Storage."""

import hashlib
import secrets
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from dataprep_assets_tests.fakes.gcs_http import Answer, Transport
from dataprep_assets_tests.fakes.gcs_state import (
    Multipart,
    RefusalError,
    crc32c_of,
    md5_of,
)

_XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"


class XmlApi(Transport):
    """Handlers for the requests of XML multipart uploads."""

    def _do_xml(self) -> Answer:
        bucket, _, name = self.where.removeprefix("/").partition("/")
        if unquote(bucket) != self.gcs.bucket:
            raise RefusalError(404, "NoSuchBucket", "The specified bucket does not exist.")
        if self.command == "POST" and "uploads" in self.query:
            return self._xml_start(unquote(name))
        with self.gcs.lock:
            upload = self.gcs.multiparts.get(self.query.get("uploadId", ""))
            if upload is None or upload.name != unquote(name):
                raise RefusalError(404, "NoSuchUpload", "The requested upload was not found.")
            if self.command == "PUT":
                return self._xml_part(upload)
            if self.command == "POST":
                return self._xml_complete(upload)
            if self.command == "DELETE":
                del self.gcs.multiparts[self.query["uploadId"]]
                return Answer(status=204)
            return self._xml_parts(upload)

    def _xml_start(self, name: str) -> Answer:
        prefix = "x-goog-meta-"
        metadata = {
            key.lower().removeprefix(prefix): value
            for key, value in self.headers.items()
            if key.lower().startswith(prefix)
        }
        identity = secrets.token_hex(16)
        content_type = self.headers.get("Content-Type", "application/octet-stream")
        with self.gcs.lock:
            self.gcs.multiparts[identity] = Multipart(name=name, content_type=content_type, metadata=metadata)
        return _xml(
            "InitiateMultipartUploadResult",
            f"<Bucket>{self.gcs.bucket}</Bucket><Key>{escape(name)}</Key><UploadId>{identity}</UploadId>",
        )

    def _xml_part(self, upload: Multipart) -> Answer:
        self.demand_digests(self.body, {})
        upload.parts[int(self.query["partNumber"])] = self.body
        hashes = f"crc32c={crc32c_of(self.body)},md5={md5_of(self.body)}"
        return Answer(status=200, headers={"ETag": etag_of(self.body), "X-Goog-Hash": hashes})

    def _xml_complete(self, upload: Multipart) -> Answer:
        chosen: list[bytes] = []
        for part in ElementTree.fromstring(self.body).iter():
            if not part.tag.endswith("Part"):
                continue
            number, etag = (
                next(node.text or "" for node in part if node.tag.endswith(tag)) for tag in ("Number", "ETag")
            )
            data = upload.parts.get(int(number))
            if data is None or etag_of(data).strip('"') != etag.strip('"'):
                raise RefusalError(400, "InvalidPart", "One or more of the specified parts could not be found.")
            chosen.append(data)
        if any(len(data) < self.gcs.min_part_bytes for data in chosen[:-1]):
            raise RefusalError(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum part size.")
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

    def _xml_parts(self, upload: Multipart) -> Answer:
        parts = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{etag_of(data)}</ETag><Size>{len(data)}</Size></Part>"
            for number, data in sorted(upload.parts.items())
        )
        return _xml("ListPartsResult", f"<Key>{escape(upload.name)}</Key><IsTruncated>false</IsTruncated>{parts}")


def _xml(root: str, inside: str, status: int = 200, namespace: str = f' xmlns="{_XMLNS}"') -> Answer:
    body = f"<?xml version='1.0' encoding='UTF-8'?><{root}{namespace}>{inside}</{root}>".encode()
    return Answer(status=status, body=body, headers={"Content-Type": "application/xml"})


def xml_refused(refusal: RefusalError) -> Answer:
    code = "BadDigest" if "doesn't match" in refusal.message else refusal.reason
    inside = f"<Code>{code}</Code><Message>{escape(refusal.message)}</Message><Details>none</Details>"
    return _xml("Error", inside, refusal.status, "")


def etag_of(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
