"""Replaces templar's own manager of shared shards: a trainer changes one import, and uses a `ShardWindow`.

`ShardedDatasetManager` takes the arguments of the original and has its methods (tplr-ai/templar at c2397ac,
`src/tplr/sharded_dataset.py`); the active dataset has the samples and ids of `SharedShardedDataset`. The differences
are corrections of the faults listed in docs/formats/shard-window.md: a start at any shard continues with the one after
it, at a step where shards change, too; numbers are taken modulo the release's shards, files are verified, ranks share a
download through the cache and need no barrier.

The release is where the original expects it: in the folder DATASET_BINS_PATH of the bucket R2_DATASET_BUCKET_NAME, read
with the keys of R2_DATASET_…; and as in the original the shards are in the folder DATASET_BINS_PATH on disk.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.keep import Keep
from dataprep_assets.serving.readers import torch_dataset
from dataprep_assets.serving.release import Place
from dataprep_assets.serving.shard_window import ShardWindow
from dataprep_assets.stores.store import Store

__all__ = ["ShardedDatasetManager"]


class ShardedDatasetManager:
    """See the module. `active_dataset` is a `torch.utils.data.Dataset`, None before `initialize_datasets`.

    Args:
        sequence_length: Tokens of a sample; refused if the release has another length.
        rank: Rank of this process on its machine; as in the original it does not affect the samples.
        world_size: Number of ranks.
        comms: Accepted for compatibility and not used: bucket and keys come from the environment.
        token_dtype: Refused unless it is uint32, the dtype of the samples as in the original.
        file_prefix: Prefix of the release's shards.
        release: The release, as for `ShardWindow`; default: where the original expects it.
        cache_dir: Folder of the shards on disk; default: that of the original.
        keep: Which shards stay on disk. The default 2 is what the original keeps, which deletes a shard after its turn.
            It is enough for ranks that synchronize after each swap, as templar's do: a rank that is a turn ahead would
            take the others' room.
    """

    def __init__(
        self,
        sequence_length: int,
        rank: int,
        world_size: int,
        comms: object = None,
        token_dtype: npt.DTypeLike = np.uint32,
        file_prefix: str = "train",
        *,
        release: str | Path | Store | Place | None = None,
        cache_dir: str | Path | None = None,
        keep: Keep = 2,
    ) -> None:
        if np.dtype(token_dtype) != np.uint32:
            raise ConfigError(f"token_dtype {np.dtype(token_dtype)}: samples are uint32, whatever the files hold")
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} of {world_size}: ranks count from 0")
        self.sequence_length, self.rank, self.world_size = sequence_length, rank, world_size
        self.comms, self.token_dtype, self.file_prefix = comms, token_dtype, file_prefix
        self.shard_index = 0
        self.active_dataset: Any = None
        where = _from_environment() if release is None or cache_dir is None else ("", "")
        # A step of this window is a shard's whole turn: the trainer decides when it ends.
        self.window = ShardWindow(
            where[0] if release is None else release,
            where[1] if cache_dir is None else cache_dir,
            1,
            keep=keep,
            prefix=file_prefix,
            sequence_length=sequence_length,
        )

    @property
    def max_dataset_idx(self) -> int:
        """Number of shards of the release; fixed at 10 in the original."""
        return self.window.schedule.shards

    async def initialize_datasets(self, current_shard_index: int) -> None:
        """Make this shard the active one, and start fetching the next.

        Numbers are taken modulo the number of shards.
        """
        self.shard_index = current_shard_index % self.max_dataset_idx
        await self._activate()

    async def swap_datasets(self) -> int:
        """Make the next shard the active one, and return its number. Blocks only if it is not ready.

        A shard of which no sample was read stays: its turn has not begun. A miner or validator that starts at a step
        where shards change initializes that step's shard and swaps at once, and one that skips a window swaps again.
        """
        if self.active_dataset is None or self.active_dataset.was_read:
            self.shard_index = (self.shard_index + 1) % self.max_dataset_idx
            await self._activate()
        return self.shard_index

    async def _activate(self) -> None:
        shard = await self.window.aswap(self.shard_index)
        # the old dataset and its shard are freed when the trainer's loader drops them
        self.active_dataset = torch_dataset(shard)

    def close(self) -> None:
        """Stop fetching. The original has no such method; a process that ends needs none."""
        self.window.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _from_environment() -> tuple[str, str]:
    """URL of the release and folder of the shards, as in the original.

    Raises ConfigError, naming the variables that are not set.
    """
    names = ("R2_DATASET_BUCKET_NAME", "DATASET_BINS_PATH")
    if missing := [name for name in names if not os.environ.get(name)]:
        raise ConfigError(
            f"{' and '.join(missing)}: not set; they say where the shards are. Or give release, cache_dir"
        )
    bucket, folder = (os.environ[name] for name in names)
    return f"s3://{bucket}/{folder.strip('/')}", folder
