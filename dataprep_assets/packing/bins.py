"""Bins: the items that share a row, as two flat arrays instead of a list of lists.

`Bins` are whole items; `Segments` are parts of items, for algorithms that split them. Both are in compressed row form:
bin ``b`` is ``offsets[b]`` to ``offsets[b + 1]`` of the other arrays. The order of the bins and the order inside a bin
are part of the result, because they determine the bytes of the rows.

Entry points: `Bins`, `Segments`, `measure_fill`; `group_by_bin`, `check_lengths` and `check_capacity` for the
algorithms.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, count_of

LARGEST_CAPACITY = 2**31 - 1
"""Maximum number of tokens per row, because positions are int32."""

Int64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Segments:
    """Parts of items, by bin.

    ``items``, ``starts``, ``stops``: int64, shape ``(segments,)``; a segment is tokens ``start`` to ``stop`` of
    the item, exclusive. ``offsets``: int64, shape ``(bins + 1,)``, with a leading 0.
    """

    items: Int64
    starts: Int64
    stops: Int64
    offsets: Int64

    def __len__(self) -> int:
        """Return the number of bins."""
        return self.offsets.size - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Bins:
    """Whole items, by bin.

    ``items``: int64, shape ``(items,)``, each index of the packed lengths once.
    ``offsets``: int64, shape ``(bins + 1,)``, with a leading 0. No bin is empty.
    """

    items: Int64
    offsets: Int64

    def __len__(self) -> int:
        """Return the number of bins."""
        return self.offsets.size - 1

    def segments(self, lengths: NDArray[Any]) -> Segments:
        """Return the bins as segments that are whole items; ``lengths`` are tokens, shape ``(all items,)``."""
        stops = lengths[self.items].astype(np.int64)
        return Segments(items=self.items, starts=np.zeros_like(stops), stops=stops, offsets=self.offsets)


def measure_fill(bins: Bins, lengths: NDArray[Any], capacity: int) -> float:
    """Return the share of the capacity that is filled with tokens, 0 to 1; 1 if there are no bins.

    ``bins`` have ``capacity`` tokens each; ``lengths`` are tokens of all items, shape ``(all items,)``.
    """
    room = len(bins) * capacity
    return int(lengths[bins.items].sum(dtype=np.int64)) / room if room else 1.0


def group_by_bin(order: Int64, placed: Int64) -> Bins:
    """Return the bins of items that were placed one by one: the i-th item was ``order[i]``, in bin ``placed[i]``.

    Bin numbers are 0 to the last without a gap. Items of a bin keep the order in which they were placed.
    """
    # `initial=-1` makes the number of bins 0 if there are no items; the offsets are then only the leading 0.
    offsets = np.zeros(int(placed.max(initial=-1)) + 2, np.int64)
    np.cumsum(np.bincount(placed, minlength=offsets.size - 1), out=offsets[1:])
    # Use the smallest dtype, because NumPy's stable sort uses the fast radix sort only for integers of at most 16 bits.
    keys = placed.astype(np.min_scalar_type(offsets.size))
    return Bins(items=order[np.argsort(keys, kind="stable")], offsets=offsets)


def check_capacity(capacity: int) -> int:
    """Return ``capacity`` unchanged; raises ConfigError unless it is 1 to `LARGEST_CAPACITY` tokens."""
    if not 1 <= capacity <= LARGEST_CAPACITY:
        raise ConfigError(f"capacity {capacity}: must be 1 to {LARGEST_CAPACITY} tokens")
    return capacity


def check_lengths(lengths: NDArray[Any], max_length: int | None) -> Int64:
    """Return ``lengths`` as int64.

    Raises ConfigError, with index and value, for a length less than 1 or greater than ``max_length`` (None: no limit).
    """
    array = np.asarray(lengths)
    # Do not check the dtype of an empty array, because `np.array([])` has the dtype float64.
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ConfigError(f"lengths must be a 1-d array of integers, not {array.ndim}-d {array.dtype}")
    is_wrong = array < 1
    if max_length is not None:
        is_wrong |= array > max_length
    if is_wrong.any():
        index = int(is_wrong.argmax())
        allowed = "at least 1" if max_length is None else f"1 to {max_length}"
        raise ConfigError(
            f"item {index} has {count_of(array[index], 'token')}, but must have {allowed}. Drop empty items, and "
            "split long ones"
        )
    return array.astype(np.int64)
