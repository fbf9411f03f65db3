"""What would tell whoever has a copy of some bytes that they were read: their digests, as programs write them."""

import base64
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator

import google_crc32c
import xxhash

__all__ = ["PlainDigests"]

_SHOWN = 12
"""Digits of a SHA-256 that messages show."""


def _digests(data: bytes) -> Iterator[bytes]:
    """Cryptographic digests and long hashes: their bytes."""
    yield from (hashlib.new(name, data, usedforsecurity=False).digest() for name in ("sha256", "sha1", "md5", "sha512"))
    yield hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).digest()  # git's
    yield from (hashlib.blake2b(data, digest_size=size).digest() for size in (16, 32, 64))
    yield from (xxhash.xxh3_64_digest(data), xxhash.xxh64_digest(data), xxhash.xxh3_128_digest(data))


def _checksums(data: bytes) -> Iterator[int]:
    """Numbers of 32 bits, which are looked for as text: four bytes are in any large file."""
    yield zlib.crc32(data)
    yield zlib.adler32(data)
    yield int(google_crc32c.value(data))
    yield xxhash.xxh32_intdigest(data)


class PlainDigests:
    """All digests of some contents, in the forms that they are written in: hex, base64, decimal, bytes."""

    def __init__(self, contents: Iterable[bytes]) -> None:
        """The contents whose digests nothing may tell; short ones too."""
        raw, words, numbers = set[bytes](), set[bytes](), set[int]()
        self.contents = frozenset(contents)
        for content in self.contents:
            for digest in _digests(content):
                # a number of 64 bits is written in either order
                raw |= {digest, digest[::-1]} if len(digest) == 8 else {digest}
                words |= {digest.hex()[:_SHOWN].encode(), base64.b64encode(digest)[:_SHOWN]}
                words |= {base64.urlsafe_b64encode(digest)[:_SHOWN]}
                if len(digest) == 8:
                    words.add(str(int.from_bytes(digest, "big")).encode())
            numbers |= set(_checksums(content))
        whole = {text for n in numbers for text in (b"%08x" % n, b"%d" % n, base64.b64encode(n.to_bytes(4, "big")))}
        alone = b"(?<![0-9A-Za-z+/])(?:" + b"|".join(map(re.escape, sorted(whole))) + b")(?![0-9A-Za-z+/])"
        # a set looked up by beginnings is a hundred times as fast as one search for each
        self._words = {length: {w for w in words if len(w) == length} for length in {len(w) for w in words}}
        self._raw, self._alone = raw, re.compile(alone)

    def found(self, data: bytes) -> bytes | None:
        """The first digest that is written in `data`; None where there is none."""
        for run in {*re.findall(rb"[0-9A-Za-z+/_=-]{12,}", data)}:
            for text in {run, run.lower()}:
                for length, words in self._words.items():
                    if found := words.intersection(text[at : at + length] for at in range(len(text) - length + 1)):
                        return found.pop()
        if number := self._alone.search(data):
            return number[0]
        return next((digest for digest in self._raw if digest in data), None)
