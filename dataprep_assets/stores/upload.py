"""What all uploads in parts share: cutting into parts, one ordered pass over the file, digests, bounded memory.

A file is read once, in order, under a lock; each lane holds one part's buffer, so memory is lanes x part size whatever
the file's size. The SHA-256 of the whole is computed in that same pass and compared before anything is published.

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

# The multipart limits of AWS S3 and Cloudflare R2 (each one's documentation, "Multipart upload").
MIN_PART_BYTES = 5 * MiB
MAX_PARTS = 10_000
MAX_OBJECT_BYTES = 5 * 1024 * 1024 * MiB

# Bytes sent with one system call. The socket's timeout applies to each, not to a whole part.
_BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True)
class UploadPart:
    """The bytes [start, stop) of a file, as part `number` (from 1) of an upload."""

    number: int
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        """Its length."""
        return self.stop - self.start


@dataclass(frozen=True)
class Piece:
    """The bytes [start, stop) of the source with this index."""

    source: int
    start: int
    stop: int

    @property
    def bytes(self) -> int:
        """Its length."""
        return self.stop - self.start


def plan_parts(size: int, *, part_bytes: int) -> list[UploadPart]:
    """Cut `size` bytes into equal parts but the last (R2's rule): at least 5 MiB each, at most 10,000.

    Parts are `part_bytes` long, or as many whole MiB as 10,000 of them need. Raises ConfigError for parts under 5 MiB,
    and for a size beyond 5 TiB.
    """
    if part_bytes < MIN_PART_BYTES:
        raise ConfigError(
            f"part_bytes={part_bytes}: must be at least {MIN_PART_BYTES} (5 MiB), the minimum of object stores"
        )
    if size > MAX_OBJECT_BYTES:
        raise ConfigError(
            f"{count_of(size, 'byte')}: an object can have at most {MAX_OBJECT_BYTES} (5 TiB). Split the file"
        )
    return cut_parts(size, max(part_bytes, _whole_mib(-(-size // MAX_PARTS))))


def cut_parts(size: int, step: int) -> list[UploadPart]:
    """Cut `size` bytes into parts of `step` bytes and what is left."""
    return [UploadPart(n, start, min(start + step, size)) for n, start in enumerate(range(0, size, step), 1)]


def plan_concatenation(sizes: Sequence[int]) -> list[tuple[Piece, ...]]:
    """The parts that concatenate sources of these sizes; each part is the pieces it is made of, in order.

    A part of one piece can be copied by the server; one of several has to be put together by the client. All parts but
    the last are equal, as small as 10,000 parts of at least 5 MiB allow, so that at most one small part per boundary
    between sources goes through the client.

    Raises ConfigError beyond 5 TiB.
    """
    total = sum(sizes)
    if total > MAX_OBJECT_BYTES:
        raise ConfigError(f"{count_of(total, 'byte')} in total: an object can have at most {MAX_OBJECT_BYTES} (5 TiB)")
    step = max(MIN_PART_BYTES, _whole_mib(-(-total // MAX_PARTS)))
    parts: list[list[Piece]] = [[] for _ in range(-(-total // step))]
    offset = 0
    for source, size in enumerate(sizes):
        position = 0
        while position < size:
            # A piece ends with its source, or with the part of the result that it lies in.
            stop = min(size, position + step - (offset + position) % step)
            parts[(offset + position) // step].append(Piece(source, position, stop))
            position = stop
        offset += size
    return [tuple(pieces) for pieces in parts]


def _whole_mib(size: int) -> int:
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
    """Read `path` once, in order, and `send` each of `parts` on one of `lanes` threads; the answers, in their order.

    The bytes that `send` gets are valid during its call only. `label` names the object in messages, `stop` is set when
    the group ends. Raises IntegrityError when the file's SHA-256 is not `sha256` (hex) or its size not that of the
    parts, and the first error that `send` raised.
    """
    answers: dict[int, T] = {}
    with path.open("rb", buffering=0) as stream:
        reader = _OrderedReader(path=path, stream=stream, parts=parts)

        def lane(_: int) -> None:
            buffer = bytearray(max(part.bytes for part in parts))
            while not stop.is_set() and (part := reader.read_next(buffer)) is not None:
                answers[part.number] = send(part, memoryview(buffer)[: part.bytes])

        count = min(lanes, len(parts))
        run_all(lane, range(count), count, stop)
        # Bytes that were appended meanwhile are in no part, so that only the size shows them.
        actual = reader.digest.hexdigest()
        if actual != sha256.lower() or os.fstat(stream.fileno()).st_size != parts[-1].stop:
            raise IntegrityError(
                f"{label}: {path}: expected sha256 {sha256.lower()}, but found {actual}. The file changed, or its "
                "record belongs to other bytes. Build it again. Nothing was published"
            )
    return [answers[part.number] for part in parts]


class _OrderedReader:
    """Hands out the parts of a file in order, to many threads, and digests them."""

    def __init__(self, *, path: Path, stream: io.FileIO, parts: Sequence[UploadPart]) -> None:
        self.path = path
        self.digest = hashlib.sha256()
        self._stream = stream
        self._parts = iter(parts)
        self._lock = threading.Lock()

    def read_next(self, buffer: bytearray) -> UploadPart | None:
        with self._lock:
            # Reading and digesting are both under the lock: a digest needs the bytes in order. Sending is not.
            part = next(self._parts, None)
            if part is None:
                return None
            view = memoryview(buffer)[: part.bytes]
            filled = 0
            while filled < part.bytes:
                count = self._stream.readinto(view[filled:])
                if not count:
                    raise IntegrityError(
                        f"{self.path}: expected {count_of(part.stop, 'byte')}, but found {part.start + filled}. The "
                        "file changed during the upload. Nothing was published"
                    )
                filled += count
            self.digest.update(view)
            return part


class PartBody(io.RawIOBase):
    """One part as a request's body: seekable, read in blocks whose size the reader does not choose.

    An HTTP client sends a plain buffer with one call, for all of which the socket's timeout counts: a large part on a
    slow link could then never be sent. Blocks of 256 KiB make the timeout count for each of them.
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
