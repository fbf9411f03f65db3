"""Building blocks of multipart uploads: plans of parts, one ordered pass over the file, digests and bounded memory.

A file is read once, in order, under a lock. Each lane has a buffer for one part, so memory is lanes × part size for
files of any size. The same pass computes the SHA-256 of the file, which is compared before anything is published.

Entry points: :func:`plan_parts`, :func:`plan_concatenation`, :func:`send_parts`, :class:`PartBody`.
"""

import hashlib
import io
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dataprep_assets.errors import ConfigError, IntegrityError, count_of
from dataprep_assets.stores.pool import run_all

T = TypeVar("T")

MiB = 1024 * 1024

# Multipart limits of AWS S3 and Cloudflare R2, according to the "Multipart upload" page of their documentation.
MIN_PART_BYTES = 5 * MiB
MAX_PARTS = 10_000
MAX_OBJECT_BYTES = 5 * 1024 * 1024 * MiB

# Bytes sent per system call. The block is small, because the socket's timeout applies to each call, not to a whole
# part.
_BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True)
class UploadPart:
    """The bytes [start, stop) of a file, which are part `number` (from 1) of an upload."""

    number: int
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        """Length of the part in bytes."""
        return self.stop - self.start


@dataclass(frozen=True)
class Piece:
    """The bytes [start, stop) of the source with index `source`."""

    source: int
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        """Length of the piece in bytes."""
        return self.stop - self.start


def plan_parts(size: int, *, part_bytes: int) -> list[UploadPart]:
    """Split `size` bytes into at most 10,000 equal parts of at least 5 MiB; only the last may be smaller (R2's rule).

    Parts have `part_bytes`, or more (in whole MiB) if 10,000 such parts do not suffice. Raises ConfigError for parts
    under 5 MiB and for sizes over 5 TiB.
    """
    if part_bytes < MIN_PART_BYTES:
        raise ConfigError(
            f"part_bytes={part_bytes}: must be at least {MIN_PART_BYTES} (5 MiB), the minimum of object stores"
        )
    if size > MAX_OBJECT_BYTES:
        raise ConfigError(
            f"{count_of(size, 'byte')}: an object can have at most {MAX_OBJECT_BYTES} (5 TiB). Split the file"
        )
    return split_into_parts(size, max(part_bytes, _round_up_to_mib(-(-size // MAX_PARTS))))


def split_into_parts(size: int, step: int) -> list[UploadPart]:
    """Split `size` bytes into parts of `step` bytes; the last part has the remaining bytes."""
    return [UploadPart(n, start, min(start + step, size)) for n, start in enumerate(range(0, size, step), 1)]


def plan_concatenation(sizes: Sequence[int]) -> list[tuple[Piece, ...]]:
    """Return the parts of a concatenation of sources with these sizes; each part is a tuple of pieces in order.

    The server can copy a part with one piece; the client must assemble a part with several pieces. All parts except the
    last are equal, and as small as 10,000 parts of at least 5 MiB allow. So at most one small part per boundary between
    sources passes through the client.

    Raises ConfigError for more than 5 TiB.
    """
    total = sum(sizes)
    if total > MAX_OBJECT_BYTES:
        raise ConfigError(
            f"{count_of(total, 'byte')} in total: an object can have at most {MAX_OBJECT_BYTES} (5 TiB). Join fewer "
            "parts"
        )
    step = max(MIN_PART_BYTES, _round_up_to_mib(-(-total // MAX_PARTS)))
    parts: list[list[Piece]] = [[] for _ in range(-(-total // step))]
    offset = 0
    for source, size in enumerate(sizes):
        position = 0
        while position < size:
            # End a piece at the end of its source or of its part, because a piece belongs to one source and to one
            # part.
            stop = min(size, position + step - (offset + position) % step)
            parts[(offset + position) // step].append(Piece(source, position, stop))
            position = stop
        offset += size
    return [tuple(pieces) for pieces in parts]


def _round_up_to_mib(size: int) -> int:
    return -(-size // MiB) * MiB


def send_parts(
    path: Path,
    parts: Sequence[UploadPart],
    send: Callable[[UploadPart, memoryview], T],
    *,
    sha256: str,
    lanes: int,
    label: str,
    stop: threading.Event,
) -> list[T]:
    """Read `path` once, in order, call `send` for each part on `lanes` threads, and return the responses in part order.

    The bytes passed to `send` are valid only during the call. `label` names the object in messages. `stop` is set when
    the group ends. Raises IntegrityError if the file's SHA-256 is not `sha256` (hex) or its size is not the sum of the
    parts, and re-raises the first error of `send`.
    """
    responses: dict[int, T] = {}
    with path.open("rb", buffering=0) as stream:
        reader = _OrderedReader(path=path, stream=stream, parts=parts)

        def run_lane(_: int) -> None:
            buffer = bytearray(max(part.bytes for part in parts))
            while not stop.is_set() and (part := reader.read_next(buffer)) is not None:
                responses[part.number] = send(part, memoryview(buffer)[: part.bytes])

        count = min(lanes, len(parts))
        run_all(run_lane, range(count), count, stop)
        # Compare the size, because bytes appended during the upload are in no part, so no digest reveals them.
        actual = reader.digest.hexdigest()
        if actual != sha256.lower() or os.fstat(stream.fileno()).st_size != parts[-1].stop:
            raise IntegrityError(
                f"{label}: {path}: expected sha256 {sha256.lower()}, but found {actual}. The file changed after it was "
                "recorded. Rebuild the artifact. Nothing was published"
            )
    return [responses[part.number] for part in parts]


class _OrderedReader:
    """Reader that hands out a file's parts in order to many threads, and digests them."""

    def __init__(self, *, path: Path, stream: io.FileIO, parts: Sequence[UploadPart]) -> None:
        self.path = path
        self.digest = hashlib.sha256()
        self._stream = stream
        self._parts = iter(parts)
        self._lock = threading.Lock()

    def read_next(self, buffer: bytearray) -> UploadPart | None:
        with self._lock:
            # Hold the lock while reading and digesting, because a digest needs the bytes in order. Sending needs no
            # lock.
            part = next(self._parts, None)
            if part is None:
                return None
            view = memoryview(buffer)[: part.bytes]
            byte_count = 0
            while byte_count < part.bytes:
                count = self._stream.readinto(view[byte_count:])
                if not count:
                    raise IntegrityError(
                        f"{self.path}: expected {count_of(part.stop, 'byte')}, but found {part.start + byte_count}. "
                        "The file changed during the upload. Nothing was published. Run the command again"
                    )
                byte_count += count
            self.digest.update(view)
            return part


class PartBody(io.RawIOBase):
    """One part as the body of a request: seekable, and read in blocks of at least 256 KiB.

    An HTTP client sends a plain buffer in one call, and the socket's timeout applies to the whole call. A large part
    could then never be sent over a slow link. With blocks the timeout applies to each block.
    """

    def __init__(self, view: memoryview) -> None:
        super().__init__()
        self._view = view
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int | None = -1, /) -> memoryview:
        stop = len(self._view) if size is None or size < 0 else self._position + max(size, _BLOCK_BYTES)
        block = self._view[self._position : stop]
        self._position += len(block)
        return block

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position
