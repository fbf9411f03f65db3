"""Whole documents packed into samples: best fit by blocks of a shard's documents, which bounds its memory and time.

A document longer than a sample is cut into samples of its own, and its last piece is packed like a document. The table
of a shard is written once (`pack_shard`) and mapped by whoever reads it (`open_packs`): a headerless file of uint64,
the number of packs, the packs' ends counted in pieces, and start and stop of each piece in tokens of the shard.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.packing.algorithms import pack
from dataprep_assets.serving.sampler.source_order import PackTable

_BLOCK = 1 << 14
"""Pieces that are packed together: best fit fills 99.9 % of that many, and takes 20 ms."""
_DTYPE = np.dtype("<u8")


def pack_shard(ends: NDArray[np.uint64], length: int) -> PackTable:
    """The packs of a shard.

    Args:
        ends: Where its documents end, in tokens.
        length: Tokens of a sample.
    """
    stops = np.asarray(ends, np.int64)
    tokens = np.diff(stops, prepend=0)
    # Rounded up: the last piece of a document is short, and an empty document has none.
    pieces = -(-tokens // length)
    starts = np.repeat(stops - tokens, pieces)
    # which piece of its document each is, from 0
    number = np.arange(len(starts)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts += number * length
    stops = np.minimum(starts + length, np.repeat(stops, pieces))
    order, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for block_start in range(0, len(starts), _BLOCK):
        bins = pack((stops - starts)[block_start : block_start + _BLOCK], length, "best_fit_decreasing")
        order.append(block_start + bins.items)
        counts.append(np.diff(bins.offsets))
    piece_order = np.concatenate(order)
    return PackTable(np.cumsum(np.concatenate(counts)), starts[piece_order], stops[piece_order])


def pack_bytes(table: PackTable) -> bytes:
    """The file of a table."""
    columns = (np.array([len(table.ends)]), table.ends, table.starts, table.stops)
    return np.concatenate(columns).astype(_DTYPE).tobytes()


def open_packs(path: Path) -> PackTable:
    """The table of a file, memory-mapped; raises FormatError, naming it, for one that was cut."""
    size = path.stat().st_size
    values = np.memmap(path, _DTYPE, "r") if size and not size % _DTYPE.itemsize else np.empty(0, _DTYPE)
    packs = int(values[0]) if len(values) else -1
    # The number of packs and the last of their ends foretell the length: a cut file agrees with neither.
    pieces, odd = divmod(len(values) - 1 - packs, 2)
    if packs < 0 or odd or pieces < packs or (packs and int(values[packs]) != pieces):
        raise FormatError(
            f"{path}: {count_of(size, 'byte is', 'bytes are')} not a table of packs: the file is truncated. Run the "
            "schedule again"
        )
    bounds = values[1 + packs :]
    return PackTable(values[1 : 1 + packs], bounds[:pieces], bounds[pieces:])
