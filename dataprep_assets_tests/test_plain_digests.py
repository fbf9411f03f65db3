"""The search for digests finds them in each form in which programs write them, and reports nothing else."""

import base64
import hashlib
import zlib

import google_crc32c
import pytest
import xxhash

from dataprep_assets_tests.plain_digests import PlainDigests

NOTE = b"the text of a note"
SHA = hashlib.sha256(NOTE)


@pytest.mark.parametrize(
    "written",
    [
        SHA.hexdigest().encode(),
        SHA.hexdigest().upper().encode(),
        f"sha256 {SHA.hexdigest()[:12]}…".encode(),
        SHA.digest(),
        base64.b64encode(SHA.digest()),
        base64.urlsafe_b64encode(hashlib.md5(NOTE).digest()),
        hashlib.sha1(b"blob 18\0" + NOTE).hexdigest().encode(),
        xxhash.xxh3_64_digest(NOTE),
        xxhash.xxh3_64_digest(NOTE)[::-1],
        f'"hash": {xxhash.xxh64_intdigest(NOTE)}'.encode(),
        f"crc32: {zlib.crc32(NOTE):08x}".encode(),
        f"crc32: {zlib.crc32(NOTE)},".encode(),
        base64.b64encode(google_crc32c.value(NOTE).to_bytes(4, "big")),
    ],
)
@pytest.mark.parametrize("before", [0, (1 << 20) - 10])
def test_a_digest_is_found_in_every_form(written: bytes, before: int) -> None:
    digests = PlainDigests([NOTE, b"another note"])
    assert digests.found(b" " * before + b" " + written + b" ") is not None


def test_other_text_is_not_reported() -> None:
    digests = PlainDigests([NOTE])
    other = hashlib.sha256(b"another note")
    assert digests.found(b"") is None
    assert digests.found(NOTE + other.hexdigest().encode() + other.digest() * 1000) is None
    assert digests.found(b"x%dx" % zlib.crc32(NOTE)) is None, "as a part of another number or word"
