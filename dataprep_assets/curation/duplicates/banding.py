"""How permutations are cut into bands, and the chance that two texts share one: the S-curve.

A band is some consecutive values of a signature; texts that agree in all of them become a candidate pair. Of all ways
to cut, that with the widest bands is taken which still finds `PROMISED` of the pairs that are just at the threshold:
what a wider band misses is never seen again, what a narrower one finds in vain is only compared.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

PROMISED = 0.95
"""Share of pairs at the threshold that bands find at least, where the permutations allow it."""


@dataclass(frozen=True)
class Banding:
    """So many `bands` of so many `rows`, values of a signature, each."""

    bands: int
    rows: int

    def chance(self, similarity: ArrayLike) -> NDArray[np.float64]:
        """The chance that texts of this Jaccard similarity share a band."""
        shared: NDArray[np.float64] = 1 - (1 - np.asarray(similarity, np.float64) ** self.rows) ** self.bands
        return shared


def banding_for(threshold: float, permutations: int) -> Banding:
    """The widest bands that find `PROMISED` of the pairs at a threshold; the narrowest ones if none do."""
    banding = Banding(permutations, 1)
    for rows in range(2, permutations + 1):
        wider = Banding(permutations // rows, rows)
        # the wider, the fewer pairs they find: after the first that finds too few none finds enough
        if float(wider.chance(threshold)) < PROMISED:
            break
        banding = wider
    return banding
