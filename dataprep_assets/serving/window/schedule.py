"""Mapping from steps to shards: a pure function of the step, used for start, swap and restart alike.

`shard(step) = (step // steps_per_shard) mod shards`. The number of shards must be at least 1. The last shard is
followed by the first shard of the next epoch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Schedule of `shards` shards, each trained on for `steps_per_shard` steps. Steps count from 0."""

    shards: int
    steps_per_shard: int

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise ConfigError(f"a schedule needs at least 1 shard, not {self.shards}")
        if self.steps_per_shard < 1:
            raise ConfigError(f"steps_per_shard must be at least 1, not {self.steps_per_shard}")

    def _find_turn(self, step: int) -> int:
        if step < 0:
            raise ConfigError(f"step must be at least 0, not {step}")
        return step // self.steps_per_shard

    def shard(self, step: int) -> int:
        """Return the shard that this step trains on."""
        return self._find_turn(step) % self.shards

    def epoch(self, step: int) -> int:
        """Return the number of complete passes over all shards before this step's pass."""
        return self._find_turn(step) // self.shards

    def swap_step(self, step: int) -> int:
        """Return the first step of the next shard's turn (of the same shard if there is only one)."""
        return (self._find_turn(step) + 1) * self.steps_per_shard

    def next_shard(self, step: int) -> int:
        """Return the shard after this step's shard."""
        return self.shard(self.swap_step(step))

    def sample_steps(self, step: int) -> tuple[int, int]:
        """Return this step's number within its shard's turn, and the number of steps in the turn."""
        return step - self._find_turn(step) * self.steps_per_shard, self.steps_per_shard

    def samples(self, step: int, count: int, *, rank: int = 0, world_size: int = 1) -> NDArray[np.int64]:
        """Return the samples of its shard that a rank trains on in this step: int64, ascending, shape ``(samples,)``.

        The ranks share the samples of a step, so together they read the same samples for any number of ranks. Over a
        shard's turn every sample is read once.

        Args:
            step: Step of the whole training run, from 0.
            count: Number of samples in the shard (its `len`).
            rank: Rank of this process, from 0.
            world_size: Number of ranks that share a step.

        Raises ConfigError for a rank that is not less than `world_size`.
        """
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is out of range: must be from 0 to {world_size - 1}")
        number, steps = self.sample_steps(step)
        # Take strided samples, so that the numbers of samples of a turn's steps, and of a step's ranks, differ by at
        # most one.
        return np.arange(number, count, steps, dtype=np.int64)[rank::world_size]
