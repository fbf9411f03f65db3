"""Digests of contents as programs write them, which would reveal to the owner of a copy that the contents were read."""

import base64
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow.parquet as pq
import xxhash
import zstandard
from numpy.typing import NDArray

_SHOWN = 12
"""The number of SHA-256 digits in messages."""
_TOKEN = re.compile(rb"[0-9A-Za-z+/]+={0,2}")
_BLOCK, _LONGEST, _BITS, _ODD = 1 << 20, 64, 22, np.uint64(0x9E3779B97F4A7C15)


def _digests(data: bytes) -> Iterator[bytes]:
    """Return cryptographic digests and long hashes as bytes."""
    yield from (hashlib.new(name, data, usedforsecurity=False).digest() for name in ("sha256", "sha1", "md5", "sha512"))
    # Git computes the ids of its blobs in this way.
    yield hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).digest()
    yield from (hashlib.blake2b(data, digest_size=size).digest() for size in (16, 32, 64))
    yield from (xxhash.xxh3_64_digest(data), xxhash.xxh64_digest(data), xxhash.xxh3_128_digest(data))


def _checksums(data: bytes) -> Iterator[int]:
    """Return 32-bit numbers, which are searched as text, because any four bytes occur in a large file."""
    yield zlib.crc32(data)
    yield zlib.adler32(data)
    yield int(google_crc32c.value(data))
    yield xxhash.xxh32_intdigest(data)


def contents_of(paths: Iterable[Path]) -> Iterator[bytes]:
    """Return each file unchanged and decompressed, each of its lines or rows, and each text."""
    for path in paths:
        data = path.read_bytes()
        yield data
        if path.suffix == ".parquet":
            yield from (str(row["text"]).encode() for row in pq.read_table(path).to_pylist() if "text" in row)
            continue
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(data).read()
        elif path.suffix == ".gz":
            data = gzip.decompress(data)
        yield data
        for line in data.splitlines():
            yield line
            if b'"text"' in line and isinstance(text := json.loads(line).get("text"), str):
                yield text.encode()


class PlainDigests:
    """All digests of some contents in the forms in which they are written: hex, base64, decimal, bytes."""

    def __init__(self, contents: Iterable[bytes]) -> None:
        """Compute the digests of contents, including short ones, that nothing may reveal."""
        raw, words, numbers = set[bytes](), set[bytes](), set[int]()
        self.contents = frozenset(content for content in contents if content)
        for content in self.contents:
            for digest in _digests(content):
                # Search both byte orders of a 64-bit number, because a file may contain either.
                raw |= {digest, digest[::-1]} if len(digest) == 8 else {digest}
                words |= {digest.hex()[:_SHOWN].encode(), base64.b64encode(digest)[:_SHOWN]}
                words |= {base64.urlsafe_b64encode(digest)[:_SHOWN]}
                if len(digest) == 8:
                    words.add(str(int.from_bytes(digest, "big")).encode())
            numbers |= set(_checksums(content))
        whole = {text for n in numbers for text in (b"%08x" % n, b"%d" % n, base64.b64encode(n.to_bytes(4, "big")))}
        self._numbers, self._patterns = whole, raw | words
        self._lengths = sorted({len(pattern) for pattern in self._patterns})
        heads = np.array([int.from_bytes(pattern[:8], "little") for pattern in self._patterns], np.uint64)
        self._maybe = np.zeros(1 << _BITS, np.bool_)
        self._maybe[_hashed(heads)] = True

    def found(self, data: bytes) -> bytes | None:
        """Return the first digest that is written in `data`; None if there is none."""
        if numbers := self._numbers.intersection(_TOKEN.findall(data)):
            return min(numbers)
        for start in range(0, len(data), _BLOCK):
            block = data[start : start + _BLOCK + _LONGEST]
            for text in (block, block.lower()):
                if (digest := self._in_block(text)) is not None:
                    return digest
        return None

    def _in_block(self, text: bytes) -> bytes | None:
        """Look up the first eight bytes at each position, and compare candidates completely."""
        windows = np.ndarray(max(0, len(text) - 7), "<u8", text, strides=(1,))
        for at in np.flatnonzero(self._maybe[_hashed(windows)]).tolist():
            for length in self._lengths:
                if text[at : at + length] in self._patterns:
                    return text[at : at + length]
        return None


def _hashed(heads: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return heads * _ODD >> np.uint64(64 - _BITS)
