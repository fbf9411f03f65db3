"""Sample ids: one 64-bit name per sample of a shard, derived only from its tokens.

The id of a sample is BLAKE2b with an 8-byte digest over its token ids as little-endian uint32, read as a little-endian
uint64 (tplr-ai/templar, `scripts/dataset_prep/02_consolidate_shards.py`, `tokens_handler`). It does not depend on the
dtype of the shard, because uint16 ids are widened first. A file of ids has no header. A file written by `np.save` is
refused, because its 128-byte header would be read as 16 ids.

Samples are hashed in several threads. For samples of 2,048 tokens, two free cores are nearly twice as fast as one.

Entry points: `compute_sample_id`, `compute_sample_ids`, `write`, `open_sample_ids`, `find_differing`.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.flat_bins import map_file
from dataprep_assets.stores.files import create_file

ID_BYTES = 8
"""Bytes per id: the digest length that templar's script passes to BLAKE2b."""
_DTYPE = np.dtype("<u8")
_WIDE = np.dtype("<u4")
# hashlib releases the interpreter lock only for buffers of more than 2,047 bytes (CPython, `Modules/hashlib.h`,
# HASHLIB_GIL_MINSIZE). Samples of 512 tokens or more are therefore hashed in parallel; threads do not help for shorter
# samples.
_UNLOCKED_BYTES = 2047
# Number of bytes that a thread hashes at a time, small enough that the widened copy of uint16 ids fits in the
# processor's cache.
_BLOCK_BYTES = 1 << 20


def compute_sample_id(tokens: npt.NDArray[Any]) -> int:
    """Return the id of one sample, given its token ids (integers, shape `(sequence_length,)`)."""
    return int.from_bytes(blake2b(_widen_tokens(tokens).data, digest_size=ID_BYTES).digest(), "little")


def compute_sample_ids(
    tokens: npt.NDArray[Any], sequence_length: int, *, threads: int | None = None
) -> npt.NDArray[np.uint64]:
    """Return the ids of all samples of consecutive tokens: shape `(tokens / sequence_length,)`, uint64.

    `tokens` is a one-dimensional array of `<u2` or `<u4`, which may be memory-mapped. Each sample has `sequence_length`
    tokens. `threads` defaults to the number of cores, and the result does not depend on it. Raises FormatError if the
    tokens are not whole sequences.
    """
    if sequence_length < 1 or tokens.ndim != 1 or len(tokens) % sequence_length:
        raise FormatError(f"tokens of shape {tokens.shape} cannot be divided into sequences of {sequence_length}")
    samples, width = len(tokens) // sequence_length, sequence_length * _WIDE.itemsize
    ids = np.empty(samples, dtype=_DTYPE)
    step = max(1, _BLOCK_BYTES // width)

    def hash_block(first_sample: int) -> None:
        stop = min(first_sample + step, samples)
        # The samples are slices of one buffer, so they are not copied. Each block writes only to its own part of `ids`,
        # so no lock is needed.
        block = _widen_tokens(tokens[first_sample * sequence_length : stop * sequence_length]).data.cast("B")
        digests = [
            blake2b(block[start : start + width], digest_size=ID_BYTES).digest()
            for start in range(0, len(block), width)
        ]
        ids[first_sample:stop] = np.frombuffer(b"".join(digests), dtype=_DTYPE)

    firsts = range(0, samples, step)
    workers = min(len(firsts), threads or len(os.sched_getaffinity(0)))
    if workers > 1 and width > _UNLOCKED_BYTES:
        with ThreadPoolExecutor(workers, thread_name_prefix="sample-ids") as pool:
            for _ in pool.map(hash_block, firsts):
                pass
    else:
        for first_sample in firsts:
            hash_block(first_sample)
    return ids


def _widen_tokens(tokens: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(tokens, dtype=_WIDE)


def write(path: Path, ids: Sequence[npt.NDArray[np.uint64]]) -> None:
    """Write ids (uint64 arrays, in order) to the new headerless file `path`. Raises FileExistsError if it exists."""
    with create_file(path) as file:
        for part in ids:
            file.write(np.ascontiguousarray(part, dtype=_DTYPE).tobytes())


def open_sample_ids(path: Path, samples: int) -> npt.NDArray[np.uint64]:
    """Return the ids of a shard of `samples` samples: shape `(samples,)`, uint64, read-only, memory-mapped.

    Raises FormatError if the file has a different size or a `.npy` header. templar's reader uses the smaller of the two
    counts, which silently drops samples.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise FormatError(
                f"{path}: has a .npy header, but a file of sample ids must be headerless. Rebuild the shard"
            )
    if size != samples * ID_BYTES:
        raise FormatError(
            f"{path}: has {count_of(size, 'byte')}, or {size / ID_BYTES:g} ids, but the shard has "
            f"{count_of(samples, 'sample')}. The file is truncated, or belongs to a different shard or sequence "
            "length. Download or rebuild the shard"
        )
    return map_file(path, _DTYPE, samples)


def find_differing(
    tokens: npt.NDArray[Any],
    ids: npt.NDArray[np.uint64],
    sequence_length: int,
    *,
    sample: int | None = None,
    threads: int | None = None,
) -> list[int]:
    """Return the numbers of the samples whose entry in `ids` is not the id of their tokens, ascending.

    For `tokens`, `sequence_length` and `threads` see `compute_sample_ids`; `ids` is uint64, shape `(samples,)`. With
    `sample`, only this many samples are compared, evenly spaced and including the first and the last. Raises
    FormatError if the number of ids differs from the number of samples.
    """
    samples = len(tokens) // sequence_length
    if len(ids) != samples:
        raise FormatError(
            f"expected one id per sample ({count_of(samples, 'sample')} of {count_of(sequence_length, 'token')}), but "
            f"found {count_of(len(ids), 'id')}"
        )
    if sample is None or sample >= samples:
        return [int(k) for k in np.flatnonzero(compute_sample_ids(tokens, sequence_length, threads=threads) != ids)]
    numbers = np.unique(np.linspace(0, samples - 1, sample).astype(np.int64))
    return [
        int(k)
        for k in numbers
        if compute_sample_id(tokens[k * sequence_length : (k + 1) * sequence_length]) != int(ids[k])
    ]
