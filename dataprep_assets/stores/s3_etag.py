"""What the ETag of an S3 object says about its bytes, and what our own objects record in addition.

A plain ETag is the MD5 of the content, that of a multipart object the MD5 of its parts' MD5s with their number. Under
SSE-KMS or a customer's key an ETag has the same form and is neither.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

MD5 = re.compile(r"[0-9a-f]{32}")
COMPOSITE = re.compile(r"([0-9a-f]{32})-([1-9][0-9]{0,4})")
SHA256 = re.compile(r"[0-9a-f]{64}")

DIGEST = "sha256"
"""Metadata of our objects: the digest of the content."""

WRITE = "dataprep-write"
"""Metadata of our objects: which conditional write made them."""

PART_BYTES = "dataprep-part-bytes"
"""Metadata of objects that were assembled on the server: the size of all their parts but the last."""


def etag_of(answer: Mapping[str, Any]) -> str:
    """The ETag of an answer, without its quotes."""
    return str(answer.get("ETag", "")).strip('"')


def is_opaque(answer: Mapping[str, Any]) -> bool:
    """Whether its ETag looks like a digest but is not: KMS and customer keys."""
    # `aws:kms` or `aws:kms:dsse`; with a key of the store itself (`AES256`) an ETag is an MD5 as ever
    return str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in answer


def plain_md5(answer: Mapping[str, Any]) -> str | None:
    """The MD5 (hex) of the object's content, where its ETag says it."""
    etag = etag_of(answer)
    return etag if MD5.fullmatch(etag) and not is_opaque(answer) else None


def composite(md5s: Sequence[str | None]) -> str | None:
    """The ETag of an object of parts with these MD5s (hex); None if one of them is not known."""
    if None in md5s:
        return None
    digests = b"".join(bytes.fromhex(md5 or "") for md5 in md5s)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(md5s)}"


def recorded_sha256(answer: Mapping[str, Any]) -> str | None:
    """The SHA-256 (hex) that our upload recorded."""
    # Metadata are whatever a writer set: a value that is no digest counts as none.
    sha256 = answer.get("Metadata", {}).get(DIGEST, "")
    return sha256 if SHA256.fullmatch(sha256) else None
