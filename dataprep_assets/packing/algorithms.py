"""Packing algorithms by name: lengths in, bins out.

Each is an order in which items are placed, and a rule that places them:

======================  =============  ============================================================================
name                    order          an item goes to
======================  =============  ============================================================================
concatenative           given          the last bin, or a new one if it does not fit (next fit)
first_fit               given          the earliest bin with room
first_fit_shuffle       seeded         the earliest bin with room
first_fit_decreasing    long to short  the earliest bin with room
best_fit                given          the bin that it leaves with the least room, the earliest of several
best_fit_decreasing     long to short  the bin that it leaves with the least room, the earliest of several
======================  =============  ============================================================================

Bins are numbered as they are opened; items are, in each bin, as they were placed. Equal lengths are placed in the given
order. `concatenative` keeps neighbours together, `first_fit_shuffle` mixes lengths in a bin at a fill near the best,
the decreasing ones fill best and put similar lengths together. For cutting items, see `next_fit.concat_then_split`.

Entry point: `pack`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.packing.best_fit import best_fit
from dataprep_assets.packing.bins import Bins, Int64, checked_capacity, checked_lengths, group
from dataprep_assets.packing.first_fit import first_fit, first_fit_decreasing
from dataprep_assets.packing.next_fit import next_fit

Algorithm = Literal[
    "concatenative", "first_fit", "first_fit_shuffle", "first_fit_decreasing", "best_fit", "best_fit_decreasing"
]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


def pack(lengths: NDArray[Any], capacity: int, algorithm: Algorithm, *, seed: int = 0) -> Bins:
    """Put items into bins of ``capacity`` tokens by one ``algorithm`` of `ALGORITHMS`; each is in exactly one bin.

    ``lengths``: integers, shape ``(items,)``, unit tokens, 1 to ``capacity``. ``seed``: not negative, used by
    `first_fit_shuffle` alone. The same arguments give the same bins on every platform. Raises ConfigError for an
    unknown algorithm, a negative seed, a capacity that no row can have, and, with index and value, a length out of
    range.
    """
    if algorithm not in ALGORITHMS:
        raise ConfigError(f"packing algorithm {algorithm!r}: must be one of {', '.join(ALGORITHMS)}")
    if seed < 0:
        raise ConfigError(f"packing seed {seed}: must not be negative")
    lengths = checked_lengths(lengths, checked_capacity(capacity))
    method = _METHODS[algorithm]
    order = method.order(lengths, seed)
    return group(order, method.place(lengths[order], capacity))


def _given(lengths: Int64, _seed: int) -> Int64:
    return np.arange(lengths.size, dtype=np.int64)


def _decreasing(lengths: Int64, _seed: int) -> Int64:
    falling = lengths.max(initial=0) - lengths
    # In the smallest dtype: NumPy's stable sort of 16-bit integers is a radix sort.
    return np.argsort(falling.astype(np.min_scalar_type(falling.max(initial=0))), kind="stable")


def _shuffled(lengths: Int64, seed: int) -> Int64:
    # NumPy guarantees the raw stream of PCG64 forever, but not the results of Generator.permutation.
    return np.argsort(np.random.PCG64(seed).random_raw(lengths.size), kind="stable")


@dataclass(frozen=True)
class _Method:
    order: Callable[[Int64, int], Int64]
    place: Callable[[Int64, int], Int64]


_METHODS: dict[Algorithm, _Method] = {
    "concatenative": _Method(_given, next_fit),
    "first_fit": _Method(_given, first_fit),
    "first_fit_shuffle": _Method(_shuffled, first_fit),
    "first_fit_decreasing": _Method(_decreasing, first_fit_decreasing),
    "best_fit": _Method(_given, best_fit),
    "best_fit_decreasing": _Method(_decreasing, best_fit),
}
