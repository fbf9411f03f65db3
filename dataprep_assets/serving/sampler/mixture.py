"""The source of each sample of a training run, chosen so that every prefix of the run has the requested mixture.

The sources' shares are multiples of 1/65,536. A table of 65,536 places is filled by Tijdeman's chairman assignment (R.
Tijdeman, "The chairman assignment problem", 1980). The j-th sample of a source may be placed once the source's share
has earned it, and must be placed before it is due. Of the samples that may be placed, the one due first is chosen. So
after any number of samples every source is less than one sample off its share. The table repeats, so the source of a
sample and the number of earlier samples of that source take two look-ups.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError

PLACES = 65_536
Int64 = NDArray[np.int64]


def round_shares(weights: Sequence[float | int]) -> list[int]:
    """Return the share of each source in 65,536ths for these positive weights, rounded so that they sum to 65,536.

    Raises ConfigError for a weight so small that its source would never be read.
    """
    # Use exact fractions, because rounding errors could give sources of equal weight different shares.
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    targets = [weight * PLACES / total for weight in exact]
    whole_shares = [int(target) for target in targets]
    # Rounding down leaves places unassigned, so give them to the sources with the largest remainders. Ties go to the
    # first source.
    by_rest = sorted(range(len(targets)), key=lambda number: (whole_shares[number] - targets[number], number))
    for number in by_rest[: PLACES - sum(whole_shares)]:
        whole_shares[number] += 1
    for number, share in enumerate(whole_shares):
        if not share:
            raise ConfigError(
                f"source {number + 1}: weight {weights[number]} is too small: the source would get "
                f"{float(targets[number]):.2g} of 65,536 samples and never be read. Raise the weight, or remove the "
                "source"
            )
    return whole_shares


class Mixture:
    """Assignment of samples to sources according to `shares`, which sum to 65,536."""

    def __init__(self, shares: Sequence[int]) -> None:
        self.shares = np.array(shares, np.int64)
        self.table = _fill_table(shares)
        # A stable sort keeps each source's places ascending, so a place's rank counts the earlier places of its source.
        order = np.argsort(self.table, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(self.shares)])
        self._places = order.astype(np.int64)
        ranks = np.empty(PLACES, np.int64)
        ranks[order] = np.arange(PLACES) - self._starts[self.table[order]]
        self._ranks = ranks

    def locate(self, samples: Int64) -> tuple[Int64, Int64]:
        """Return the source of each sample, counted from 0, and the number of that source's earlier samples."""
        cycle, position = samples // PLACES, samples % PLACES
        source = self.table[position].astype(np.int64)
        return source, cycle * self.shares[source] + self._ranks[position]

    def find_sample_numbers(self, source: int, ordinals: Int64) -> Int64:
        """Return the run's sample numbers for these samples of a source: the inverse of `locate`."""
        share = int(self.shares[source])
        positions: Int64 = ordinals // share * PLACES + self._places[self._starts[source] + ordinals % share]
        return positions

    def count_samples(self, samples: int) -> list[int]:
        """Return how many of the first `samples` come from each source."""
        cycle, remainder = divmod(samples, PLACES)
        partial = np.bincount(self.table[:remainder], minlength=len(self.shares))
        return [int(count) for count in cycle * self.shares + partial]


@lru_cache(maxsize=64)
def load_mixture(shares: tuple[int, ...]) -> Mixture:
    """Return the mixture of these shares, cached because many revisions have the same shares."""
    return Mixture(shares)


def _fill_table(shares: Sequence[int]) -> NDArray[np.int32]:
    """Return the source of each place in the table: int32, shape ``(65536,)``, read-only."""
    if sum(shares) != PLACES or min(shares, default=0) < 1:
        raise ConfigError(f"shares {', '.join(map(str, list(shares)[:8]))}: must be positive and sum to {PLACES}")
    # By Tijdeman's bound, no source deviates from its share by more than 1 - 1 / slack samples. A single source never
    # deviates.
    slack = max(2 * len(shares) - 2, 1)
    jobs = []
    for source, share in enumerate(shares):
        # Count in integers: sample j of a source may be placed at n (from 1) if n * share / PLACES - j is at least 1 /
        # slack. It must be placed there if the difference would exceed 1 - 1 / slack at the next place.
        sample = np.arange(share, dtype=np.int64)
        earliest = -(-(slack * sample + 1) * PLACES // (slack * share))
        due_places = (slack * (sample + 1) - 1) * PLACES // (slack * share)
        jobs.append(np.stack([earliest, np.maximum(due_places, earliest), np.full(share, source)], axis=1))
    all_jobs = np.concatenate(jobs)
    all_jobs = all_jobs[np.argsort(all_jobs[:, 0], kind="stable")]
    firsts, dues, sources = all_jobs[:, 0].tolist(), all_jobs[:, 1].tolist(), all_jobs[:, 2].tolist()
    table = np.empty(PLACES, np.int32)
    waiting: list[tuple[int, int]] = []
    index = 0
    for position in range(1, PLACES + 1):
        while index < PLACES and firsts[index] <= position:
            # Ties go to the first source, so that the table is the same on every machine.
            heappush(waiting, (dues[index], sources[index]))
            index += 1
        table[position - 1] = heappop(waiting)[1]
    # Make the table read-only, because all mixtures with these shares use it.
    table.flags.writeable = False
    return table
