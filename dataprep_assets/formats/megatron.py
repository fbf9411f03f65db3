"""Megatron's ``.idx``: the index that makes a token stream a Megatron-Core ``IndexedDataset``.

The ``.bin`` is the token stream itself, usually a hard link. This module only writes the index, from the document ends,
with one sequence per document. Layout, little-endian (Megatron-LM, ``megatron/core/datasets/indexed_dataset.py``,
``_IndexWriter``): 9 bytes ``MMIDIDX\\0\\0``; uint64 version 1; uint8 dtype code; uint64 sequences S; uint64 document
indices D; S int32 lengths in tokens; S int64 byte offsets into the ``.bin``; D int64 sequence ordinals, 0 to S. The
files are byte-identical to the files of ``IndexedDatasetBuilder`` with one ``add_document`` per document.

Megatron has no uint32. A uint32 stream gets the code of int32 (4), because ids below 2**31 have the same bytes in both
types. No vocabulary is that large, so this module does not check ids. uint16 has its own code (8).

A stream without documents has a valid index (S = 0, D = 1, as the builder writes). Megatron cannot open this pair
memory-mapped, because an empty ``.bin`` cannot be mapped. Leave it out of a blend, or read it with ``mmap=False``.

Megatron's reader is lenient: it ignores extra bytes, opens a wrong but known dtype code, and with ``mmap=False``
returns uninitialized memory for a truncated ``.bin``. `validate` refuses all three.

Entry points: `write_idx`, `read_idx`, `validate`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.formats.document_ends import BLOCK, Ends

DTYPE_CODES = {"uint32": 4, "uint16": 8}
"""Megatron's ``DType`` codes for token streams. A uint32 stream is declared as int32."""

_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
_LENGTH = np.dtype("<i4")
_OFFSET = np.dtype("<i8")
# Sequence lengths are int32 in the index.
_MAX_SEQUENCE_TOKENS = 2**31 - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class MegatronIndex:
    """An ``.idx`` file as read-only memory maps.

    ``dtype``: ``"uint16"`` or ``"uint32"``, the dtype of the token stream.
    ``lengths``: int32, shape ``(sequences,)``, tokens.
    ``pointers``: int64, shape ``(sequences,)``, byte offsets into the ``.bin``.
    ``document_indices``: int64, shape ``(documents + 1,)``, sequence ordinals.
    """

    dtype: str
    lengths: npt.NDArray[np.int32]
    pointers: npt.NDArray[np.int64]
    document_indices: npt.NDArray[np.int64]


def write_idx(path: Path, ends: Ends, *, dtype: str) -> None:
    """Write the index of a token stream of ``dtype`` with these document ends to the new file ``path``.

    ``ends`` (uint64 tokens) is an array, a memmap, or an iterable of blocks that is read once. Memory use is constant.
    Raises FormatError for ends that decrease, for a document of 2**31 tokens or more, and for a stream whose byte
    offsets do not fit in int64. Raises FileExistsError if ``path`` exists. After an error the file does not exist.
    """
    itemsize = flat_bins.token_dtype(dtype).itemsize
    with flat_bins.create_file(path) as handle:
        handle.write(bytes(_HEADER.size))
        sequences = _write_lengths(handle, ends, itemsize)
        _write_pointers(handle, sequences, itemsize)
        for start in range(0, sequences + 1, BLOCK):
            handle.write(np.arange(start, min(start + BLOCK, sequences + 1), dtype=_OFFSET).tobytes())
        # Write the header last, because the counts are known only now, and a file truncated by a crash must not begin
        # with the magic.
        handle.seek(0)
        handle.write(_HEADER.pack(_MAGIC, _VERSION, DTYPE_CODES[dtype], sequences, sequences + 1))


def _write_lengths(handle: BinaryIO, ends: Ends, itemsize: int) -> int:
    sequences = 0
    previous = np.uint64(0)
    for block in document_ends.check_blocks(ends):
        lengths = np.diff(block, prepend=previous)
        if lengths.max() > _MAX_SEQUENCE_TOKENS:
            i = int(lengths.argmax())
            raise FormatError(
                f"document {sequences + i} has {count_of(lengths[i], 'token')}, but Megatron's lengths are int32. "
                f"Split documents longer than {_MAX_SEQUENCE_TOKENS} tokens"
            )
        # Use Python integers, because a product of uint64 values could wrap around to a small offset.
        if int(block[-1]) * itemsize >= 1 << 63:
            raise FormatError(
                f"a stream of {count_of(block[-1], 'token')} of {count_of(itemsize, 'byte')} each has offsets that do "
                "not fit int64"
            )
        handle.write(lengths.astype(_LENGTH).tobytes())
        sequences += block.size
        previous = block[-1]
    return sequences


def _write_pointers(handle: BinaryIO, sequences: int, itemsize: int) -> None:
    """Write the pointers after the lengths, which are read back because `ends` may be an exhausted iterator."""
    pointer = 0
    for start in range(0, sequences, BLOCK):
        count = min(BLOCK, sequences - start)
        handle.seek(_HEADER.size + start * _LENGTH.itemsize)
        lengths = np.frombuffer(handle.read(count * _LENGTH.itemsize), dtype=_LENGTH)
        # Sum as int64, because byte offsets can exceed int32 even if every length fits in int32.
        stop_pointers = pointer + np.cumsum(lengths, dtype=np.int64) * itemsize
        handle.seek(_HEADER.size + sequences * _LENGTH.itemsize + start * _OFFSET.itemsize)
        handle.write((stop_pointers - lengths.astype(np.int64) * itemsize).astype(_OFFSET, copy=False).tobytes())
        pointer = int(stop_pointers[-1])


def read_idx(path: Path) -> MegatronIndex:
    """Map an ``.idx`` file; only the header is read.

    Raises FormatError for a wrong magic or version, for a dtype code other than 4 and 8, and for a size that does not
    match the header's counts. An index with the optional multimodal section has such a size.
    """
    size = path.stat().st_size
    if size < _HEADER.size:
        raise FormatError(
            f"{path}: truncated: has {count_of(size, 'byte')}, but the header needs {_HEADER.size}. Rebuild the "
            "artifact"
        )
    with open(path, "rb") as handle:
        magic, version, code, sequences, indices = _HEADER.unpack(handle.read(_HEADER.size))
    if magic != _MAGIC:
        raise FormatError(f"{path}: not a Megatron index: must begin with {_MAGIC!r}, not {magic!r}")
    if version != _VERSION:
        raise FormatError(f"{path}: the version at byte 9 must be {_VERSION}, not {version}")
    dtype = next((name for name, known_code in DTYPE_CODES.items() if known_code == code), None)
    if dtype is None:
        codes = ", ".join(f"{known_code} ({name})" for name, known_code in DTYPE_CODES.items())
        raise FormatError(f"{path}: the dtype code at byte 17 must be one of {codes}, not {code}")
    expected_size = _HEADER.size + (_LENGTH.itemsize + _OFFSET.itemsize) * sequences + _OFFSET.itemsize * indices
    if size != expected_size:
        raise FormatError(
            f"{path}: has {count_of(size, 'byte')}, but {count_of(sequences, 'sequence')} and "
            f"{count_of(indices, 'document index needs', 'document indices need')} {expected_size}. The file is "
            "truncated, too long, or has a multimodal section. Rebuild the artifact"
        )
    content: npt.NDArray[Any] = np.memmap(path, dtype=np.uint8, mode="r")
    pointers_at = _HEADER.size + _LENGTH.itemsize * sequences
    indices_at = pointers_at + _OFFSET.itemsize * sequences
    return MegatronIndex(
        dtype=dtype,
        lengths=content[_HEADER.size : pointers_at].view(_LENGTH),
        pointers=content[pointers_at:indices_at].view(_OFFSET),
        document_indices=content[indices_at:].view(_OFFSET),
    )


def validate(bin_path: Path, idx_path: Path) -> None:
    """Raise FormatError unless the index describes the token stream exactly, one sequence per document.

    Checks in addition to `read_idx`: no length is negative. Each pointer is the sum of the lengths before it in bytes
    (which also finds a dtype code of the other width). The last sequence ends at the end of the ``.bin``. Document
    indices are 0 to S. Reads the index once, block by block, and only the size of the ``.bin``.
    """
    index = read_idx(idx_path)
    _check_document_indices(idx_path, index)
    end = _check_pointers(idx_path, index)
    size = bin_path.stat().st_size
    if size != end:
        raise FormatError(
            f"{bin_path}: has {count_of(size, 'byte')}, but {idx_path} describes {count_of(end, 'byte')} of "
            f"{index.dtype} tokens. Rebuild the artifact"
        )


def _check_document_indices(path: Path, index: MegatronIndex) -> None:
    if index.document_indices.size != index.lengths.size + 1:
        raise FormatError(
            f"{path}: must have {count_of(index.lengths.size + 1, 'document index', 'document indices')} (one per "
            f"sequence, and a leading 0), not {index.document_indices.size}"
        )
    for start, block in _cut_blocks(index.document_indices):
        wrong_indices = np.flatnonzero(block != np.arange(start, start + block.size))
        if wrong_indices.size:
            i = int(wrong_indices[0])
            raise FormatError(f"{path}: document index {start + i} is {block[i]}, expected {start + i}")


def _check_pointers(path: Path, index: MegatronIndex) -> int:
    """Check the pointers against the lengths, and return the byte where the last sequence ends."""
    itemsize = flat_bins.token_dtype(index.dtype).itemsize
    end = 0
    for start, lengths in _cut_blocks(index.lengths):
        if lengths.min() < 0:
            raise FormatError(
                f"{path}: sequence {start + int(lengths.argmin())} has a negative length, {lengths.min()}"
            )
        pointers = index.pointers[start : start + lengths.size]
        stop_pointers = end + np.cumsum(lengths, dtype=np.int64) * itemsize
        expected_pointers = stop_pointers - lengths.astype(np.int64) * itemsize
        wrong_indices = np.flatnonzero(pointers != expected_pointers)
        if wrong_indices.size:
            i = int(wrong_indices[0])
            raise FormatError(
                f"{path}: sequence {start + i} points to byte {pointers[i]}, but the {index.dtype} lengths before it "
                f"end at {expected_pointers[i]}. The dtype code is wrong, or the index is damaged. Rebuild the "
                "artifact"
            )
        end = int(stop_pointers[-1])
    return end


def _cut_blocks(values: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    for start in range(0, values.size, BLOCK):
        yield start, values[start : start + BLOCK]
