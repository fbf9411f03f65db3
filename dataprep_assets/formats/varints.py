"""Decodes packed varints, as protobuf has them, many at a time: seven bits a byte from the lowest on, the top bit of a
byte says that another follows.

Entry points: `unpacked`; `unpacked_rows`, which also says whether rows have as many values as they should.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import FormatError

_SHORT = 4
"""Bytes of a varint that fits in a word of 32 bits."""


def unpacked(packed: npt.NDArray[np.uint8], name: str) -> npt.NDArray[Any]:
    """The values of packed varints, the last of which is whole.

    uint8, uint16 or uint32 where no varint is longer than four bytes, int64 otherwise.
    """
    goes_on = packed >= 0x80
    longest = _longest(goes_on)
    if longest > _SHORT:
        return _unpack_long(packed, name)
    return packed if longest == 1 else _unpack_short(packed, np.flatnonzero(~goes_on), longest)


def unpacked_rows(packed: npt.NDArray[np.uint8], sizes: list[int], length: int) -> npt.NDArray[Any] | None:
    """As `unpacked`, for rows of ``sizes`` bytes; None unless each has ``length`` whole varints that are short."""
    goes_on = packed >= 0x80
    longest = _longest(goes_on)
    if longest == 1:
        return packed if all(size == length for size in sizes) else None
    ends = np.flatnonzero(~goes_on)
    # each row ends where every `length`-th varint does
    even = ends.size == len(sizes) * length and np.array_equal(ends[length - 1 :: length] + 1, np.cumsum(sizes))
    return _unpack_short(packed, ends, longest) if even and longest <= _SHORT else None


def _longest(goes_on: npt.NDArray[np.bool_]) -> int:
    """Bytes of the longest varint, by whether another byte follows each; one more than `_SHORT` for any longer one."""
    longest, run = 1, goes_on
    while longest <= _SHORT and run.any():
        # then `run[i]` says that byte i and the `longest` - 1 behind it all go on: a varint there is longer still
        longest, run = longest + 1, run[1:] & goes_on[:-longest]
    return longest


def _unpack_short(packed: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], longest: int) -> npt.NDArray[Any]:
    """The values of varints of up to 2 or up to 4 bytes, each of which ends at one of ``ends``: uint16 or uint32."""
    word = np.dtype("<u2" if longest == 2 else "<u4")
    width = word.itemsize
    # the word that ends with each varint: bytes before the varint are in its low bits, and are shifted out at the end
    padded = np.concatenate([np.zeros(width - 1, np.uint8), packed])
    words = np.ndarray(packed.shape, word, padded, strides=(1,)).take(ends, mode="clip")
    values: npt.NDArray[Any] = words & word.type(0x7F)
    for byte in range(1, width):
        # shifted by one more for each byte, so that groups of 7 bits close up over the top bits
        words >>= word.type(1)
        values |= words & word.type(0x7F << 7 * byte)
    used = np.empty(ends.size, word)
    used[0] = ends[0] + 1
    np.subtract(ends[1:], ends[:-1], out=used[1:], casting="unsafe")
    values >>= word.type(7) * (word.type(width) - used)
    return values


def _unpack_long(packed: npt.NDArray[np.uint8], name: str) -> npt.NDArray[Any]:
    """As `unpacked`, where a varint has five bytes or more: int64."""
    ends = np.flatnonzero(packed < 0x80)
    values: npt.NDArray[Any] = packed[ends].astype(np.uint64)
    more = np.ones(ends.size, np.bool_)
    for back in range(1, 11):
        # Before the first varint this wraps around to the last byte, which ends a varint as any other would.
        before = packed[ends - back]
        more &= before >= 0x80
        if not more.any():
            return values.view(np.int64)
        values = np.where(more, values << np.uint64(7) | (before & np.uint8(0x7F)), values)
    raise FormatError(f"column {name!r}: value {more.argmax()} is a varint of more than ten bytes")
