"""Runs: neighbouring items of one length, which algorithms place together instead of one by one."""

import numpy as np

from dataprep_assets.packing.bins import Int64


def equal_runs(lengths: Int64) -> list[tuple[int, int]]:
    """`(length, items)` of each run, in order; ``lengths`` are at least 1, shape ``(items,)``."""
    # no length is 0, so the first item begins a run, too
    firsts = np.flatnonzero(np.diff(lengths, prepend=0))
    counts = np.diff(firsts, append=lengths.size)
    return list(zip(lengths[firsts].tolist(), counts.tolist(), strict=True))
