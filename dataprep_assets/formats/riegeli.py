"""What an ArrayRecord file has beside its records, which its reader never looks at: the container's own bytes.

The reader of array_record finds records from the end of a file, and verifies the hashes of what it reads on the way.
The rest could be anything to it: the signature in front, the header of each block of 64 KiB, what pads records and end.
But Riegeli (``doc/riegeli_records_file_format.md``) leaves nothing of it free:

- A block header is 24 bytes: hash; distance back to the begin of the chunk that the block interrupts; distance to the
  end of that chunk. It stands in the midst of whatever the chunk has there.
- A chunk header is 40 bytes: hash, size of the data, its hash, type (1 byte) and records (7), size of them decoded.
- Chunks are the signature, records, the footer, padding to the end of a block, the postscript, and padding again.
  Padding is zeros.

Entry point: `defect`. The data of records, footer and postscript is left to the package, which verifies their hashes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.formats.highway import hash64

BLOCK = 64 << 10
_BLOCK_HEADER, _CHUNK_HEADER, _HASH = 24, 40, 8
_KEY = b"Riegeli/records\nRiegeli/records\n"
_TYPES = re.compile(r"s[r]+p?rp?")
"""Signature, records and footer, padding, postscript, padding."""
_NOTHING = np.zeros((1, 0), np.uint8)
Bytes = NDArray[np.uint8]


class _Chunk(NamedTuple):
    """Where a chunk begins and ends, where its data ends, which may be before, and its header."""

    begin: int
    stop: int
    end: int
    header: bytes

    @property
    def type(self) -> str:
        return chr(self.header[24])


def defect(path: Path) -> str | None:
    """What of the container's own bytes is not as it must be, with the byte where it is; None if all is.

    Raises OSError if the file cannot be read.
    """
    if not path.stat().st_size:
        return "it is empty"
    data = np.memmap(path, np.uint8, "r")
    return next(_defects(data), None)


def _defects(data: Bytes) -> Iterator[str]:
    if len(data) % BLOCK:
        yield f"its {len(data):,} bytes are no multiple of {BLOCK:,}"
        return
    chunks = list(_chunks(data))
    if (end := chunks[-1].end) != len(data):
        yield f"byte {chunks[-1].begin:,}: a chunk that would end at byte {end:,}, of {len(data):,}"
        return
    headers = np.frombuffer(b"".join(chunk.header for chunk in chunks), np.uint8).reshape(-1, _CHUNK_HEADER)
    for at in _other_hashes(headers):
        yield f"byte {chunks[at].begin:,}: a chunk header that is not what its hash says"
    if not _TYPES.fullmatch("".join(chunk.type for chunk in chunks)):
        yield "its chunks are not a signature, records, a footer and a postscript"
    yield from _block_defects(data, chunks)
    empty = hash64(_NOTHING, _KEY).tobytes()
    for chunk in chunks:
        if chunk.type == "s" and chunk.header[_HASH:] != bytes(8) + empty + b"s" + bytes(15):
            yield "its signature is another"
        if (free := _not_zero(data, chunk)) is not None:
            yield f"byte {free:,}: padding that is not zero"


def _chunks(data: Bytes) -> Iterator[_Chunk]:
    begin = 0
    while begin < len(data):
        # filled up with zeros where the file ends inside of a header: the chunk then ends beyond the file, and is told
        header = _without_block_headers(data, begin, _after(begin, _CHUNK_HEADER)).tobytes().ljust(_CHUNK_HEADER, b"\0")
        stop = _after(begin, _CHUNK_HEADER + int.from_bytes(header[8:16], "little"))
        # every record has a position of its own, counted from the chunk's begin
        end = max(stop, _possible_begin(begin + int.from_bytes(header[25:32], "little")))
        yield _Chunk(begin, stop, end, header)
        begin = end


def _after(begin: int, count: int) -> int:
    """The position behind so many bytes (at least one) from a position on, block headers left out."""
    # at the begin of a block its header comes first
    at = begin % BLOCK or _BLOCK_HEADER
    blocks, rest = divmod(at - _BLOCK_HEADER + count - 1, BLOCK - _BLOCK_HEADER)
    return begin - begin % BLOCK + blocks * BLOCK + _BLOCK_HEADER + rest + 1


def _possible_begin(position: int) -> int:
    """This position, or the next at which a chunk may begin: not inside of a block header, nor right behind it."""
    at = position % BLOCK
    return position + (_BLOCK_HEADER + 1 - at if 0 < at <= _BLOCK_HEADER else 0)


def _without_block_headers(data: Bytes, begin: int, end: int) -> Bytes:
    positions = np.arange(begin, min(end, len(data)))
    found: Bytes = data[positions[positions % BLOCK >= _BLOCK_HEADER]]
    return found


def _other_hashes(headers: Bytes) -> list[int]:
    """Which of some headers (a row each) do not begin with the hash of what follows."""
    told = np.ascontiguousarray(headers[:, :_HASH]).view("<u8")[:, 0]
    other: list[int] = np.flatnonzero(told != hash64(headers[:, _HASH:], _KEY)).tolist()
    return other


def _block_defects(data: Bytes, chunks: list[_Chunk]) -> Iterator[str]:
    positions = np.arange(0, len(data), BLOCK)
    begins, ends = (np.array(found) for found in zip(*((chunk.begin, chunk.end) for chunk in chunks), strict=True))
    # the chunk that each block header interrupts: the last that begins there or before
    of = np.searchsorted(begins, positions, "right") - 1
    headers = np.ascontiguousarray(data.reshape(-1, BLOCK)[:, :_BLOCK_HEADER])
    told = headers[:, _HASH:].view("<u8")
    other = (told[:, 0] != positions - begins[of]) | (told[:, 1] != ends[of] - positions)
    for at in np.flatnonzero(other).tolist():
        yield f"byte {positions[at]:,}: a block header that tells of other chunks"
    for at in _other_hashes(headers):
        yield f"byte {positions[at]:,}: a block header that is not what its hash says"


def _not_zero(data: Bytes, chunk: _Chunk) -> int | None:
    """The first byte of a chunk's padding that is not zero."""
    begin = _after(chunk.begin, _CHUNK_HEADER) if chunk.type == "p" else chunk.stop
    positions = np.arange(begin, chunk.end)
    wrong = positions[(data[begin : chunk.end] != 0) & (positions % BLOCK >= _BLOCK_HEADER)]
    return int(wrong[0]) if len(wrong) else None
