"""Splitting permutations into bands, and the chance that two texts share a band (the S-curve).

A band is a sequence of consecutive values of a signature. Texts that agree in all values of a band become a candidate
pair. The widest bands are used that still find `PROMISED` of the pairs exactly at the threshold. A wider band would
miss pairs for good, and a narrower band only adds comparisons.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

PROMISED = 0.95
"""Minimum share of pairs at the threshold that the bands find, if the permutations allow it."""


@dataclass(frozen=True)
class Banding:
    """A split of a signature into `bands` of `rows` values each."""

    bands: int
    rows: int

    def match_probability(self, similarity: ArrayLike) -> NDArray[np.float64]:
        """Return the chance that texts of this Jaccard similarity share a band."""
        shared: NDArray[np.float64] = 1 - (1 - np.asarray(similarity, np.float64) ** self.rows) ** self.bands
        return shared


def choose_banding(threshold: float, permutations: int) -> Banding:
    """Return the widest bands that find `PROMISED` of the pairs at a threshold, or the narrowest bands if none do."""
    banding = Banding(permutations, 1)
    for rows in range(2, permutations + 1):
        wider = Banding(permutations // rows, rows)
        # Stop at the first width that finds too few pairs, because still wider bands find even fewer.
        if float(wider.match_probability(threshold)) < PROMISED:
            break
        banding = wider
    return banding
