"""In the place of templar's own manager of shared shards: a trainer changes one import, and a `ShardWindow` works.

`ShardedDatasetManager` takes the arguments of the original and has its methods (tplr-ai/templar at c2397ac,
`src/tplr/sharded_dataset.py`); the active dataset has the samples and ids of `SharedShardedDataset`. What is otherwise
is what docs/formats/shard-window.md lists as faults: a start at any shard goes on with the one after it, numbers are
taken modulo the release's shards, files are verified, ranks share a download through the cache and meet in no barrier.

The release is where the original looks: the folder DATASET_BINS_PATH of the bucket R2_DATASET_BUCKET_NAME, read with
the keys of R2_DATASET_…; and, as there, the shards lie in the folder DATASET_BINS_PATH on the disk.
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
        sequence_length: Tokens of a sample; refused when the release has another.
        rank: Of this process on its machine; as in the original it decides nothing that a trainer sees.
        world_size: How many there are.
        comms: Taken, because the original takes it, and not used: the environment has bucket and keys.
        token_dtype: Refused unless the samples, which are uint32 as in the original, are of this type.
        file_prefix: Which shards of the release.
        release: Where it is, as `ShardWindow` takes it; default: as the original has it.
        cache_dir: Where shards lie on the disk; default: as the original has it.
        keep: What stays on the disk; 2 is what the original keeps, which deletes a shard after its turn. It is enough
            for ranks that meet after each swap, as templar's do: one that runs a turn ahead takes the others' room.
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
        # A step of this window is a shard's whole turn: who trains says when it ends.
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
        """Shards of the release; fixed at 10 in the original."""
        return self.window.schedule.shards

    async def initialize_datasets(self, current_shard_index: int) -> None:
        """Make this shard the active one, and start to fetch the one after it. Numbers beyond the last begin anew."""
        self.shard_index = current_shard_index % self.max_dataset_idx
        await self._activate()

    async def swap_datasets(self) -> int:
        """Make the next shard the active one; its number. Blocks only if it is not there yet."""
        self.shard_index = (self.shard_index + 1) % self.max_dataset_idx
        await self._activate()
        return self.shard_index

    async def _activate(self) -> None:
        shard = await self.window.aswap(self.shard_index)
        # the old dataset, and with it its shard, goes when the trainer's loader lets it go
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
    """URL of the release and folder of the shards, as the original has them.

    Raises ConfigError naming what is not set.
    """
    names = ("R2_DATASET_BUCKET_NAME", "DATASET_BINS_PATH")
    if missing := [name for name in names if not os.environ.get(name)]:
        raise ConfigError(
            f"{' and '.join(missing)}: not set; they say where the shards are. Or give release, cache_dir"
        )
    bucket, folder = (os.environ[name] for name in names)
    return f"s3://{bucket}/{folder.strip('/')}", folder
