"""Hashes of many short slices of bytes at once, in NumPy arrays.

The hash is `XXH3_64bits`, as in `document_ids.hash_encoded`. A call of the library per word takes longer than all other
work on the word, so the formulas for up to 16 bytes are applied to arrays (the XXH3 specification, 0.8.3).

Entry point: `hash_slices`.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.tokenization.document_ids import hash_encoded

_PADDING = bytes(8)
BYTE_MASKS: NDArray[np.uint64] = np.append(
    (np.uint64(1) << np.arange(0, 64, 8, dtype=np.uint64)) - np.uint64(1), ~np.uint64(0)
)
"""Bits of the first bytes of a number, by the number of these bytes: ``(9,)``, uint64."""
_FLIPS_OF_3, _FLIPS_OF_8 = np.uint64(0x87275A9B), np.uint64(0xC73AB174C5ECD5A2)
_FLIPS_OF_16 = np.uint64(0x6782737BEA4239B9), np.uint64(0xAF56BC3B0996523A)
"""Constants from the specification's secret, for slices of up to 3, 8 and 16 bytes."""
_LOW = np.uint64(0xFFFFFFFF)


def hash_slices(data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the hash of each slice of some data: ``(slices,)``, uint64. No slice may be empty."""
    sizes = (ends - starts).view(np.uint64)
    padded = data + _PADDING
    eight_bytes = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
    words = eight_bytes[starts].astype(np.uint64, copy=False)
    words &= np.take(BYTE_MASKS, np.minimum(sizes, np.uint64(8)).view(np.int64))
    hashes = np.empty(len(sizes), np.uint64)
    indices = np.flatnonzero(sizes <= 2)
    hashes[indices] = np.take(_hash_pairs(), (words[indices] + (sizes[indices] << np.uint64(16))).view(np.int64))
    indices = np.flatnonzero(sizes == 3)
    hashes[indices] = _hash_up_to_3(words[indices], np.uint64(3))
    indices = np.flatnonzero((sizes >= 4) & (sizes <= 8))
    hashes[indices] = _hash_up_to_8(words[indices], sizes[indices])
    indices = np.flatnonzero((sizes > 8) & (sizes <= 16))
    last_words = eight_bytes[ends[indices] - 8].astype(np.uint64, copy=False)
    hashes[indices] = _hash_up_to_16(words[indices], last_words, sizes[indices])
    indices = np.flatnonzero(sizes > 16)
    slices = zip(starts[indices].tolist(), ends[indices].tolist(), strict=True)
    hashes[indices] = hash_encoded([data[start:end] for start, end in slices])
    return hashes


@cache
def _hash_pairs() -> NDArray[np.uint64]:
    """Return the hashes of all slices of one and two bytes, at the index of the slice plus 65,536 times its size."""
    words = np.arange(3 << 16, dtype=np.uint64)
    return _hash_up_to_3(words & np.uint64(0xFFFF), np.maximum(words >> np.uint64(16), np.uint64(1)))


def _hash_up_to_3(words: NDArray[np.uint64], sizes: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    byte = np.uint64(0xFF)
    head, middle = words & byte, words >> (sizes >> np.uint64(1) << np.uint64(3)) & byte
    tail = words >> (sizes - np.uint64(1) << np.uint64(3))
    values = head << np.uint64(16) | middle << np.uint64(24) | tail | sizes << np.uint64(8)
    values ^= _FLIPS_OF_3
    values ^= values >> np.uint64(33)
    values *= np.uint64(0xC2B2AE3D27D4EB4F)
    values ^= values >> np.uint64(29)
    values *= np.uint64(0x165667B19E3779F9)
    values ^= values >> np.uint64(32)
    return values


def _hash_up_to_8(words: NDArray[np.uint64], sizes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    factor = np.uint64(0x9FB21C651E98DF25)
    values = (words << np.uint64(32)) + (words >> (sizes - np.uint64(4) << np.uint64(3)))
    values ^= _FLIPS_OF_8
    values ^= (values << np.uint64(49) | values >> np.uint64(15)) ^ (values << np.uint64(24) | values >> np.uint64(40))
    values *= factor
    values ^= (values >> np.uint64(35)) + sizes
    values *= factor
    values ^= values >> np.uint64(28)
    return values


def _hash_up_to_16(
    words: NDArray[np.uint64], last_words: NDArray[np.uint64], sizes: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    head, tail = words ^ _FLIPS_OF_16[0], last_words ^ _FLIPS_OF_16[1]
    values: NDArray[np.uint64] = sizes + head.byteswap() + tail + _multiply_and_fold(head, tail)
    values ^= values >> np.uint64(37)
    values *= np.uint64(0x165667919E3779F9)
    values ^= values >> np.uint64(32)
    return values


def _multiply_and_fold(numbers: NDArray[np.uint64], factors: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the exclusive or of both halves of each product of 128 bits."""
    half = np.uint64(32)
    number_low, number_high, factor_low, factor_high = numbers & _LOW, numbers >> half, factors & _LOW, factors >> half
    low, cross = number_low * factor_low, number_high * factor_low
    middle = (low >> half) + (cross & _LOW) + number_low * factor_high
    high: NDArray[np.uint64] = number_high * factor_high + (cross >> half) + (middle >> half)
    high ^= middle << half | low & _LOW
    return high
