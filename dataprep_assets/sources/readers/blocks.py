"""Compressed source files as a stream of large decompressed blocks.

This module never accepts a truncated file as a shorter one. A zstd file must end exactly at the end of a frame
(python-zstandard's own readers end silently inside a frame). Every frame and every member is read. A gzip, xz or bzip2
file must end at a trailer. The bytes are digested while they are read, so that the caller can compare them with the
manifest. The first bytes of a file determine its compression, independent of its name (`contents`).
"""

import codecs
import hashlib
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dataprep_assets.bounds import report_progress
from dataprep_assets.errors import ConfigError, CorruptSourceError, count_of
from dataprep_assets.sources.readers.contents import (
    EMPTY,
    HEAD,
    detect_compression,
    detect_encoding,
    detect_foreign,
    detect_pointer,
)

_READ = 256 << 10
"""Maximum number of compressed bytes per step."""
_BLOCK = 4 << 20
# Size of a member's first step. Each next step is four times as large, up to `_READ`.
_SMALLEST_STEP = 1024
_ZSTD_BLOCK = 128 << 10
"""Maximum output of a block in a zstd frame; even a block of four bytes can have this output."""
_ZSTD_FRAME, _ZSTD_SKIPPABLE = b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"
WINDOW_BYTES = 128 << 20
"""Maximum window of a frame, as in the zstd command.

Larger windows need `--long=31` there, and the environment variable here.
"""
WINDOW = "DATAPREP_ZSTD_WINDOW_BYTES"


def read_max_window_bytes() -> int:
    """Return the maximum memory for the window of a zstd frame: 128 MiB, or the value of the environment variable.

    Raises ConfigError if the variable is not a number of bytes from 1 KiB to 2 GiB.
    """
    text = os.environ.get(WINDOW) or str(WINDOW_BYTES)
    if not text.isascii() or not text.isdigit() or not 1024 <= int(text) <= 1 << 31:
        raise ConfigError(f"{WINDOW}={text!r}: must be a number of bytes, 1024 to {1 << 31}")
    return int(text)


class BlockReader:
    """Iterator over the decompressed blocks of one file, followed by the digest of the stored file in `sha256`.

    `compression` is the compression according to the file's name: `zstd`, `gzip`, `xz`, `bzip2` or None. During
    iteration, it is the detected compression. Blocks have arbitrary boundaries. Raises CorruptSourceError, naming the
    file and the byte, for a truncated or damaged file, and for a pointer to a file.
    """

    def __init__(self, path: Path, compression: str | None, label: str | None = None) -> None:
        self.path, self.compression = path, compression
        self.label = label or str(path)
        self.bytes_read = 0
        self._digest = hashlib.sha256()
        # `_step` is the number of compressed bytes from the start of the current step to the last byte read. Messages
        # report these bytes as the location of the damage.
        self._step = 0

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the bytes read so far, and of the whole file after iteration."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        return self._join_pieces(_BLOCK)

    def pieces(self) -> Iterator[bytes]:
        """Yield smaller blocks, most of them directly from the decompressor, because joining them would copy them."""
        return self._join_pieces(_READ)

    def _join_pieces(self, min_bytes: int) -> Iterator[bytes]:
        pieces: list[bytes] = []
        size = 0
        for piece in self._open_file():
            pieces.append(piece)
            size += len(piece)
            if size >= min_bytes:
                data = b"".join(pieces)
                pieces, size = [], 0
                if len(data) < 2 * _BLOCK:
                    yield data
                else:  # highly compressible input can give far more output per step than a block
                    yield from (data[start : start + _BLOCK] for start in range(0, len(data), _BLOCK))
                del data  # release the memory before the next block is decompressed
        if pieces:
            yield b"".join(pieces)

    def _open_file(self) -> Iterator[bytes]:
        with open(self.path, "rb", buffering=0) as file:
            head = file.read(HEAD)
        if (kind := detect_pointer(head)) is not None:
            raise CorruptSourceError(f"{self.label}: {kind}", file=self.label)
        self.compression = detect_compression(head, self.compression)
        return self._read_plain_blocks() if self.compression is None else self._decompress_blocks()

    def _count_read(self, data: bytes) -> bytes:
        report_progress()
        self._digest.update(data)
        self.bytes_read += len(data)
        return data

    def _read_plain_blocks(self) -> Iterator[bytes]:
        with open(self.path, "rb", buffering=0) as file:
            while data := file.read(_BLOCK):
                yield self._count_read(data)

    def _build_too_wide_error(self) -> CorruptSourceError:
        command = "zstd --long=27" if self.compression == "zstd" else "xz -6"
        return CorruptSourceError(
            f"{self.label}: the {self.compression} frame that ends after byte {self.bytes_read - 1} needs a window of "
            f"more than {count_of(read_max_window_bytes(), 'byte')}. Compress the file again with `{command}`. If "
            f"you trust it and every worker has the memory, set {WINDOW}={1 << 31}",
            file=self.label,
            byte=self.bytes_read,
        )

    def _decompress_blocks(self) -> Iterator[bytes]:
        import zstandard

        with open(self.path, "rb", buffering=_READ) as file:
            try:
                is_complete = yield from self._read_frames(file)
            except (zstandard.ZstdError, zlib.error, _DamageError) as error:
                if "too much memory" in str(error) or "usage limit" in str(error):
                    raise self._build_too_wide_error() from None
                raise CorruptSourceError(
                    f"{self.label}: {self.compression} data is damaged in the {count_of(self._step, 'byte')} from "
                    f"byte {self.bytes_read - self._step}: {error}. Download the file again and compare its sha256 "
                    "with the source's",
                    file=self.label,
                    byte=self.bytes_read,
                ) from error
        if self.bytes_read == 0:
            raise CorruptSourceError(f"{self.label}: {EMPTY}", file=self.label)
        if not is_complete:
            raise CorruptSourceError(
                f"{self.label}: truncated: the file ends at byte {self.bytes_read}, inside a {self.compression} "
                "frame. Download it again",
                file=self.label,
                byte=self.bytes_read,
            )

    def _read_frames(self, file: BinaryIO) -> Generator[bytes, None, bool]:
        """Yield the decompressed data of the file; return whether it ends at the end of a frame."""
        if self.compression == "zstd":
            return self._decompress_zstd(file)
        make, open_frames = _KINDS[self.compression or ""]
        return self._decompress_members(file, make, open_frames)

    def _decompress_zstd(self, file: BinaryIO) -> Generator[bytes, None, bool]:
        """Decompress a zstd file, as `_read_frames` does."""
        import zstandard

        decompressor = zstandard.ZstdDecompressor(max_window_size=read_max_window_bytes())
        frames = decompressor.decompressobj(read_across_frames=True)
        steps = _ZstdSteps(file)
        for step in steps:
            self._step = len(self._count_read(step))
            if output := frames.decompress(step):
                yield output
        return steps.whole

    def _decompress_members(
        self, file: BinaryIO, make: Callable[[], Any], read_members: Callable[[Any, bytes], Iterator[bytes]]
    ) -> Generator[bytes, None, bool]:
        """Decompress the members of a file, as `_read_frames` does.

        Steps are small after the end of a member, because the rest of a step after a member is copied.
        """
        # `has_started` is true after the first bytes of the current member.
        member, has_started, limit = make(), False, _SMALLEST_STEP
        while data := file.read(_READ):
            self._count_read(data)
            offset = 0
            while offset < len(data):
                step = data[offset : offset + limit]
                self._step = len(data) - offset
                offset += len(step)
                if not has_started and not (step := self._strip_padding(step)):
                    continue
                has_started, limit = True, min(_READ, 4 * limit)
                yield from read_members(member, step)
                if member.eof:
                    offset -= len(member.unused_data)
                    member, has_started, limit = make(), False, _SMALLEST_STEP
        return not has_started

    def _strip_padding(self, step: bytes) -> bytes:
        # Zeros may follow an xz stream (The .xz File Format, section 2.2), and a gzip member, because tapes and tar
        # pad their blocks with zeros (gzip's manual, "Using gzip on tapes").
        return step if self.compression == "bzip2" else step.lstrip(b"\0")


class TextReader(BlockReader):
    """A `BlockReader` of UTF-8 text, which also decodes UTF-16 and UTF-32 with a byte order mark.

    Byte positions then refer to the text as UTF-8. Raises CorruptSourceError for other content, such as an HTML page or
    an archive, and names it.
    """

    def _join_pieces(self, min_bytes: int) -> Iterator[bytes]:
        blocks = super()._join_pieces(min_bytes)
        first_block = next(blocks, b"")
        if (encoding := detect_encoding(first_block)) is not None:
            blocks = self._decode_blocks(encoding, first_block, blocks)
            first_block = next(blocks, b"")
        if (kind := detect_foreign(first_block)) is not None:
            raise CorruptSourceError(f"{self.label}: {kind}", file=self.label)
        if first_block:
            yield first_block
        del first_block  # release the memory before the next blocks are decompressed
        yield from blocks

    def _decode_blocks(self, encoding: str, first_bytes: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
        decoder, byte, data = codecs.getincrementaldecoder(encoding)(), 0, first_bytes
        while True:
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise CorruptSourceError(
                    f"{self.label}: not {encoding.upper()} near byte {byte + error.start} of its content, despite "
                    "its byte order mark. Download the file again, or convert it to UTF-8",
                    file=self.label,
                    byte=byte + error.start,
                ) from None
            if text:
                yield text.encode()
            if not data:
                return
            byte += len(data)
            data = next(blocks, b"")


class _DamageError(Exception):
    """Error of a decompressor in the standard library.

    The library may raise it as an OSError, which then does not indicate an error of the disk.
    """


def _decompress(member: Any, step: bytes) -> Iterator[bytes]:
    """Yield the output of a decompressor for some bytes, at most a block at a time."""
    import lzma

    while True:
        try:
            output = member.decompress(step, _BLOCK)
        except (lzma.LZMAError, OSError, ValueError) as error:
            raise _DamageError(str(error)) from error
        if output:
            yield output
        if member.eof or member.needs_input:
            return
        step = b""


def _decompress_gzip(member: Any, step: bytes) -> Iterator[bytes]:
    """Yield the output of zlib, like `_decompress`; zlib does not keep unconsumed input."""
    output = member.decompress(step, _BLOCK)
    while output:
        yield output
        # `has_more` is true if more output may remain. Do not call a member again after its end, because it would add
        # the following bytes to `unused_data` a second time.
        has_more = not member.eof and (len(output) == _BLOCK or member.unconsumed_tail)
        output = member.decompress(member.unconsumed_tail, _BLOCK) if has_more else b""


def _open_gzip_member() -> Any:
    # `wbits=31` makes zlib require a gzip header and trailer.
    return zlib.decompressobj(wbits=31)


def _open_xz_member() -> Any:
    import lzma

    # The limit covers all memory of the decompressor: its window and a few hundred kilobytes more.
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=read_max_window_bytes() + (1 << 20))


def _open_bzip2_member() -> Any:
    import bz2

    return bz2.BZ2Decompressor()


_KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any, bytes], Iterator[bytes]]]] = {
    "gzip": (_open_gzip_member, _decompress_gzip),
    "xz": (_open_xz_member, _decompress),
    "bzip2": (_open_bzip2_member, _decompress),
}


class _ZstdSteps:
    """Steps of a zstd file, each of whole blocks with an output of at most about `_BLOCK` bytes.

    The header of a block limits its output (RFC 8878, section 3.1.1), so the limit is known before decompression. The
    decompressor validates the data. After iteration, `whole` is true if the file ended at the end of a frame.
    """

    def __init__(self, file: BinaryIO) -> None:
        # `_step` has the bytes read since the last yielded step.
        self._file, self._step = file, bytearray()
        # `_short` is true if the file ended before a read was complete.
        self.whole, self._short = False, False
        # `_step_output` is the maximum output of the current step in bytes.
        self._step_output = 0

    def __iter__(self) -> Iterator[bytes]:
        while magic := self._file.read(4):
            self._step += magic
            if magic[1:] == _ZSTD_SKIPPABLE and magic[0] & 0xF0 == 0x50:
                yield from self._read_raw(int.from_bytes(self._read_bytes(4), "little"))
            elif magic == _ZSTD_FRAME:
                yield from self._read_frame()
            else:
                self._step += self._file.read(_READ)  # let the decompressor report the wrong magic number
                self._short = len(magic) < 4
                break
            if self._short:
                break
        self.whole = not self._short
        if self._step:
            yield bytes(self._step)

    def _read_bytes(self, size: int) -> bytes:
        data = self._file.read(size)
        self._step += data
        self._short |= len(data) < size
        return data

    def _read_frame(self) -> Iterator[bytes]:
        # The descriptor (RFC 8878, 3.1.1.1.1) determines the lengths of the fields that follow it: window, dictionary
        # id and content size. The decompressor validates the values of these fields.
        descriptor = int.from_bytes(self._read_bytes(1), "little")
        single, checksum, content = descriptor >> 5 & 1, descriptor >> 2 & 1, descriptor >> 6
        self._read_bytes(1 - single + (0, 1, 2, 4)[descriptor & 3] + ((single, 2, 4, 8)[content]))
        is_last = False
        while not is_last and not self._short:
            header = int.from_bytes(self._read_bytes(3), "little")
            is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            # The header of a raw block (0) or a run (1, a single byte in the file) gives the size of the output. Count
            # the maximum for other blocks, whose output size is unknown.
            self._step_output += min(size, _ZSTD_BLOCK) if kind < 2 else _ZSTD_BLOCK
            self._read_bytes(1 if kind == 1 else size)
            if self._step_output >= _BLOCK or len(self._step) >= _READ:
                yield self._take_step()
        self._read_bytes(4 * checksum)
        if len(self._step) >= _READ:
            yield self._take_step()

    def _read_raw(self, size: int) -> Iterator[bytes]:
        while size and not self._short:
            size -= len(self._read_bytes(min(size, _READ)))
            if len(self._step) >= _READ:
                yield self._take_step()

    def _take_step(self) -> bytes:
        step, self._step, self._step_output = bytes(self._step), bytearray(), 0
        return step
