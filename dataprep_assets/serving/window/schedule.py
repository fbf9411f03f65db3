"""Which shard a step trains on: a pure function of the step, used for start, swap and restart alike.

`shard(step) = (step // steps_per_shard) mod shards`. Any number of shards from one up works; after the last one comes
the first again, in the next epoch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """`shards` shards, each trained on for `steps_per_shard` steps. Steps count from 0."""

    shards: int
    steps_per_shard: int

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise ConfigError(f"a schedule needs at least 1 shard, not {self.shards}")
        if self.steps_per_shard < 1:
            raise ConfigError(f"steps_per_shard must be at least 1, not {self.steps_per_shard}")

    def _turn_at(self, step: int) -> int:
        if step < 0:
            raise ConfigError(f"step {step} must be at least 0")
        return step // self.steps_per_shard

    def shard(self, step: int) -> int:
        """The shard that this step trains on."""
        return self._turn_at(step) % self.shards

    def epoch(self, step: int) -> int:
        """Return how many times all shards were trained on before this step's pass over them."""
        return self._turn_at(step) // self.shards

    def swap_step(self, step: int) -> int:
        """The first later step that trains on the next shard (the same shard if there is only one)."""
        return (self._turn_at(step) + 1) * self.steps_per_shard

    def next_shard(self, step: int) -> int:
        """The shard that follows this step's."""
        return self.shard(self.swap_step(step))

    def sample_steps(self, step: int) -> tuple[int, int]:
        """This step's number within its shard's turn, and the number of steps of the turn."""
        return step - self._turn_at(step) * self.steps_per_shard, self.steps_per_shard

    def samples(self, step: int, count: int, *, rank: int = 0, world_size: int = 1) -> NDArray[np.int64]:
        """Return which samples of its shard a rank trains on in this step: int64, ascending, shape ``(samples,)``.

        The ranks share the samples of a step, so together they read the same samples whatever their number; over a
        shard's turn every sample is read once.

        Args:
            step: Step of the whole training run, from 0.
            count: Number of samples of the shard, its `len`.
            rank: Rank of this process, from 0.
            world_size: Number of ranks that share a step.

        Raises ConfigError for a rank that is not below `world_size`.
        """
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is out of range: {world_size} ranks are counted from 0")
        number, steps = self.sample_steps(step)
        # Every so many-th sample: the steps of a turn, and the ranks of a step, differ by one sample at most.
        return np.arange(number, count, steps, dtype=np.int64)[rank::world_size]
