"""Compressed source files as a stream of large decompressed blocks.

The purpose of this module is never to mistake a truncated file for a short one. A zstd file must end exactly at the end
of a frame (python-zstandard's own readers end silently inside one), every frame is read, a gzip file must end at a
trailer, and the bytes are digested while they are read, so that the caller can compare them with the manifest.
"""

import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from dataprep_assets.errors import ConfigError, CorruptSourceError

_READ = 256 << 10
_BLOCK = 4 << 20
_LARGEST_STEP = 16 << 20
_SMALLEST_STEP = 1024
"""Compressed bytes per step: they expand to at most 32 MiB, because a zstd block of 128 KiB takes four bytes."""
WINDOW_BYTES = 128 << 20
"""Largest window of a frame, as in the zstd command: more needs `--long=31` there, the environment variable here."""
WINDOW = "DATAPREP_ZSTD_WINDOW_BYTES"


class _Decompressor(Protocol):
    def decompress(self, data: bytes) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


def window_bytes() -> int:
    """Most bytes of memory for the window of a zstd frame: 128 MiB, or what the environment variable says.

    Raises ConfigError for a variable that is not a number of bytes from 1 KiB to 2 GiB.
    """
    text = os.environ.get(WINDOW) or str(WINDOW_BYTES)
    if not text.isascii() or not text.isdigit() or not 1024 <= int(text) <= 1 << 31:
        raise ConfigError(f"{WINDOW}: {text!r} is not a number of bytes from 1024 to {1 << 31}")
    return int(text)


class BlockReader:
    """Iterates over the decompressed blocks of one file; after the last one, `sha256` is that of the file as stored.

    `compression` is `"zstd"`, `"gzip"` or None. Blocks have no particular boundaries. Raises CorruptSourceError, naming
    the file and the byte, for a truncated, damaged or foreign file.
    """

    def __init__(self, path: Path, compression: str | None, label: str | None = None) -> None:
        self.path, self.compression = path, compression
        self.label = label or str(path)
        self.bytes_read = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the bytes read so far; of the whole file once iteration has ended."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        return self._joined(_BLOCK)

    def pieces(self) -> Iterator[bytes]:
        """The same in smaller blocks, most of them as they come from the decompressor: joining them is a copy."""
        return self._joined(_READ)

    def _joined(self, least: int) -> Iterator[bytes]:
        pieces: list[bytes] = []
        size = 0
        for piece in self._plain() if self.compression is None else self._decompressed():
            pieces.append(piece)
            size += len(piece)
            if size >= least:
                data = b"".join(pieces)
                pieces, size = [], 0
                if len(data) < 2 * _BLOCK:
                    yield data
                else:  # one step of highly compressible input: the output can take many times the memory of a block
                    yield from (data[start : start + _BLOCK] for start in range(0, len(data), _BLOCK))
                del data
        if pieces:
            yield b"".join(pieces)

    def _stored(self, file: "object", size: int) -> bytes:
        data: bytes = file.read(size)  # type: ignore[attr-defined]
        self._digest.update(data)
        self.bytes_read += len(data)
        return data

    def _plain(self) -> Iterator[bytes]:
        with open(self.path, "rb", buffering=0) as file:
            while data := self._stored(file, _BLOCK):
                yield data

    def _frame(self) -> _Decompressor:
        if self.compression == "zstd":
            import zstandard

            return zstandard.ZstdDecompressor(max_window_size=window_bytes()).decompressobj()
        return zlib.decompressobj(wbits=31)

    def _too_wide(self) -> CorruptSourceError:
        return CorruptSourceError(
            f"{self.label}: a zstd frame that ends after byte {self.bytes_read - 1} needs a window of more than "
            f"{window_bytes():,} bytes of memory. Compress it again with `zstd --long=27`; or, if you trust it and "
            f"every worker has the memory, set {WINDOW}={1 << 31}"
        )

    def _decompressed(self) -> Iterator[bytes]:
        import zstandard

        step = _SMALLEST_STEP  # how far the data expands is not known yet
        frame, started = self._frame(), False
        with open(self.path, "rb", buffering=0) as file:
            while data := self._stored(file, step):
                produced = 0
                taken = len(data)
                while data:
                    try:
                        out = frame.decompress(data)
                    except (zstandard.ZstdError, zlib.error) as error:
                        if "too much memory" in str(error):
                            raise self._too_wide() from None
                        at = self.bytes_read - len(data)
                        raise CorruptSourceError(
                            f"{self.label}: {self.compression} data is damaged in the {taken} bytes from byte {at}: "
                            f"{error}. "
                            "Fetch the file again and compare its sha256 with the source's"
                        ) from error
                    started = True
                    produced += len(out)
                    if out:
                        yield out
                    data = b""
                    if frame.eof:
                        data, frame, started = frame.unused_data, self._frame(), False
                # highly compressible input: take smaller steps, so that memory stays bounded by the block
                step = max(_SMALLEST_STEP, min(_READ, 4 * taken, int(taken * _LARGEST_STEP / max(produced, 1))))
        if started or self.bytes_read == 0:
            raise CorruptSourceError(
                f"{self.label}: truncated: the file ends at byte {self.bytes_read}, inside a {self.compression} frame. "
                "Fetch it again: what was read so far would pass for a shorter file"
            )
