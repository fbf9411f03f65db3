"""Readers of one shard on disk: a plain NumPy reader, and a map-style torch dataset based on it.

Samples and ids are the same as in templar's `SharedShardedDataset` for these files (tplr-ai/templar,
`src/tplr/sharded_dataset.py`). Sample `k` has the tokens `[k * sequence_length, (k + 1) * sequence_length)`, and its id
is entry `k` of the ids file. If the two files have different sample counts, templar warns and uses the smaller one,
while this reader rejects the files.
"""

import mmap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.formats import npy_shards, sample_ids


class Shard:
    """A verified, memory-mapped shard on this machine. A window does not evict the shard while this object exists.

    `index` is its number in the release, `token_path` and `ids_path` are its two files, and a sample has
    `sequence_length` tokens.

    `tokens` has shape `(samples * sequence_length,)` and dtype `<u2` or `<u4`. `sample_ids` has shape `(samples,)` and
    dtype uint64. Both are read-only. Pickling passes only the paths, and the other process maps the files itself.
    """

    def __init__(self, *, index: int, token_path: Path, ids_path: Path, sequence_length: int) -> None:
        self.index = index
        self.token_path = token_path
        self.ids_path = ids_path
        self.sequence_length = sequence_length
        self.tokens, self.sample_ids = open_pair(token_path, ids_path, sequence_length)

    def __repr__(self) -> str:
        return (
            f"Shard({self.token_path.name}, {count_of(len(self), 'sample')} of "
            f"{count_of(self.sequence_length, 'token')})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.index, self.token_path, self.ids_path, self.sequence_length)

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __getitem__(self, k: int) -> npt.NDArray[Any]:
        """Return sample `k` as a view of shape `(sequence_length,)`; raise IndexError beyond the last one."""
        start = self._check_sample(k) * self.sequence_length
        return self.tokens[start : start + self.sequence_length]

    def sample_id(self, k: int) -> int:
        """Return the id of sample `k`."""
        return int(self.sample_ids[self._check_sample(k)])

    def batch(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint32]:
        """Return a uint32 copy of shape `(len(indices), sequence_length)`; raise IndexError beyond the last sample."""
        samples = self.tokens.reshape(len(self), self.sequence_length)
        sample_indices = np.asarray(indices, dtype=np.int64)
        if sample_indices.size and not 0 <= sample_indices.min() <= sample_indices.max() < len(self):
            raise IndexError(
                f"{self}: samples {sample_indices.min()} to {sample_indices.max()}: must be from 0 to {len(self) - 1}"
            )
        return samples[sample_indices].astype(np.uint32, copy=False)

    def _check_sample(self, k: int) -> int:
        # Reject negative numbers, because templar would return an empty or shifted sample for them.
        if not 0 <= k < len(self):
            raise IndexError(f"{self}: sample {k} is out of range: must be from 0 to {len(self) - 1}")
        return int(k)


def _reopen(index: int, token_path: Path, ids_path: Path, sequence_length: int) -> Shard:
    return Shard(index=index, token_path=token_path, ids_path=ids_path, sequence_length=sequence_length)


def open_pair(
    token_path: Path, ids_path: Path, sequence_length: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint64]]:
    """Return the tokens and the sample ids of a shard, both memory-mapped and read-only.

    `token_path` is its `.npy` file (ids of shape `(tokens,)`, `<u2` or `<u4`). `ids_path` is the headerless uint64 file
    with one id per `sequence_length` tokens. Raises FormatError if a file is damaged or the two do not match.
    """
    tokens = npy_shards.open_shard(token_path, sequence_length=sequence_length)
    return tokens, sample_ids.open_sample_ids(ids_path, len(tokens) // sequence_length)


def torch_dataset(shard: Shard) -> Any:
    """Return a `torch.utils.data.Dataset` for a shard: item `k` is a uint32 tensor of shape `(sequence_length,)`.

    It has `sample_id(k)` like templar's dataset, and keeps its shard from being evicted. It can be pickled, so workers
    of a DataLoader may be forked or spawned. `was_read` is true if any process has read a sample or its id. Raises
    ConfigError if torch is not installed.
    """
    return _build_dataset_class()(shard)


@cache
def _build_dataset_class() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            "torch_dataset: torch is not installed. Run `pip install torch`, or use Shard, which needs only NumPy"
        ) from error

    class ShardDataset(torch.utils.data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
        """Dataset of `torch_dataset`."""

        def __init__(self, shard: Shard) -> None:
            self.shard = shard
            self._read = mmap.mmap(-1, 1)  # forked workers share this memory

        def __reduce__(self) -> tuple[Any, ...]:
            # Count pickling as reading, because a spawned worker receives a pickled copy and reads that copy.
            self._read[0] = 1
            return torch_dataset, (self.shard,)

        def __len__(self) -> int:
            return len(self.shard)

        def __getitem__(self, k: int) -> Any:
            self._read[0] = 1
            # Copy the sample, because torch has no read-only tensors and the memory-mapped file must not be writable.
            return torch.from_numpy(np.array(self.shard[k], dtype=np.uint32))

        def sample_id(self, k: int) -> int:
            self._read[0] = 1
            return self.shard.sample_id(k)

        @property
        def was_read(self) -> bool:
            return self._read[0] == 1

    return ShardDataset
