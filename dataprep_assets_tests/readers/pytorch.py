"""Read a shard of a release with PyTorch: with our dataset, and with the upstream class on the same files."""

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from dataprep_assets.serving.window.readers import Shard, torch_dataset
from dataprep_assets_tests.readers.families import PYTORCH
from dataprep_assets_tests.readers.process import in_process_of


@in_process_of(PYTORCH)
def our_samples(shard: Shard) -> dict[str, Any]:
    """What `torch_dataset` gives of a shard: `is_dataset`, `length`, `samples`, `dtypes` and `ids`.

    The samples are of shape `(length, sequence_length)` and int64. Raises what item `length` raises as `beyond`.
    """
    import torch

    dataset = torch_dataset(shard)
    try:
        dataset[len(dataset)]
        beyond = None
    except Exception as error:
        beyond = type(error)
    samples = [dataset[k] for k in range(len(dataset))]
    return {
        "is_dataset": isinstance(dataset, torch.utils.data.Dataset),
        "length": len(dataset),
        "samples": torch.stack([sample.to(torch.int64) for sample in samples]).numpy(),
        "dtypes": {str(sample.dtype) for sample in samples},
        "ids": [dataset.sample_id(k) for k in range(len(dataset))],
        "beyond": beyond,
    }


@in_process_of(PYTORCH)
def original_samples(token_path: Path, ids_path: Path, length: int) -> dict[str, Any]:
    """What tplr-ai/templar's `SharedShardedDataset` gives of the two files of a shard: as `our_samples`.

    Args:
        token_path: The `.npy` file of tokens.
        ids_path: The headerless file of sample ids.
        length: Tokens of a sample.
    """
    import torch

    original = _original(token_path, ids_path, length)
    samples = [original[k] for k in range(len(original))]
    return {
        "length": len(original),
        "samples": torch.stack([sample.to(torch.int64) for sample in samples]).numpy(),
        "dtypes": {str(sample.dtype) for sample in samples},
        "ids": [original.sample_id(k) for k in range(len(original))],
    }


def _original(token_path: Path, ids_path: Path, length: int) -> Any:
    import torch

    class Original:
        """The upstream reader of the two files of a shard (`mmap_tokens_and_ids`)."""

        def __init__(self) -> None:
            array = np.load(token_path, mmap_mode="r", allow_pickle=False)
            self.tokens = torch.from_numpy(np.array(array, dtype=np.uint32))
            self.ids = torch.from_numpy(np.array(np.memmap(ids_path, dtype="<u8", mode="r")))
            self.total = min(len(self.tokens) // length, len(self.ids))

        def __len__(self) -> int:
            return self.total

        def __getitem__(self, k: int) -> Any:
            return self.tokens[k * length : (k + 1) * length]

        def sample_id(self, k: int) -> int:
            return int(self.ids[k].item())

    return Original()


@in_process_of(PYTORCH)
def loaded_by_workers(shard: Shard, context: str) -> npt.NDArray[np.int64]:
    """Return all joined batches of a `DataLoader` with one worker that is started by this method (`fork` or
    `spawn`).
    """
    import torch

    loader = torch.utils.data.DataLoader(
        torch_dataset(shard), batch_size=4, num_workers=1, multiprocessing_context=context
    )
    return np.concatenate([batch.to(torch.int64).numpy() for batch in loader])


@in_process_of(PYTORCH)
def managed_turns(
    release: Path | None,
    cache: Path | None,
    length: int,
    start: int,
    swaps: int,
    environment: Mapping[str, str] | None = None,
    folder: Path = Path(),
) -> list[dict[str, Any]]:
    """What a trainer of templar gets from our manager: for `initialize_datasets` and each swap the shard's number, the
    ids of the active dataset, and its samples as int64.

    Args:
        release: The release; None for what the environment says.
        cache: The folder of the shards on this machine; None likewise.
        length: Tokens of a sample.
        start: The shard that is active first.
        swaps: How many swaps follow.
        environment: Variables that are set meanwhile.
        folder: The working folder.
    """
    import asyncio

    import torch

    from dataprep_assets.serving.window.templar import ShardedDatasetManager

    async def turns() -> list[dict[str, Any]]:
        found = []
        with ShardedDatasetManager(length, 0, 1, None, release=release, cache_dir=cache) as manager:
            for turn in range(swaps + 1):
                if turn:
                    number = await manager.swap_datasets()
                else:
                    await manager.initialize_datasets(start)
                    number = manager.shard_index
                dataset = manager.active_dataset
                samples = torch.stack([dataset[k].to(torch.int64) for k in range(len(dataset))]).numpy()
                ids = [dataset.sample_id(k) for k in range(len(dataset))]
                found.append({"shard": number, "of": manager.max_dataset_idx, "ids": ids, "samples": samples})
        return found

    with patch.dict(os.environ, environment or {}), contextlib.chdir(folder):
        return asyncio.run(turns())


@in_process_of(PYTORCH)
def evaluated(folder: Path, prefix: str, index: int, length: int) -> dict[str, Any]:
    """What templar's evaluator gets of a shard from our `SharedShardedDataset`: `samples` as int64, and `ids`; or what
    it says as `refused`.

    Args:
        folder: DATASET_BINS_PATH.
        prefix: Prefix of the shard.
        index: Its number.
        length: Tokens of a sample.
    """
    import torch

    from dataprep_assets.errors import DataprepError
    from dataprep_assets.serving.window.templar import SharedShardedDataset

    with patch.dict(os.environ, {"DATASET_BINS_PATH": str(folder)}):
        try:
            dataset = SharedShardedDataset(index, length, 1, 2, file_prefix=prefix)
        except (DataprepError, FileNotFoundError) as error:
            return {"refused": str(error)}
    sampler = torch.utils.data.SubsetRandomSampler(range(len(dataset)))
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=3, sampler=sampler, num_workers=0))
    assert sum(len(batch) for batch in batches) == len(dataset)
    samples = torch.stack([dataset[k].to(torch.int64) for k in range(len(dataset))]).numpy()
    return {"samples": samples, "ids": [dataset.sample_id(k) for k in range(len(dataset))]}


@in_process_of(PYTORCH)
def restarted(
    release: Path, cache: Path, length: int, start: int, per_shard: int, steps: int, workers: str
) -> list[int]:
    """The shard that each step reads of a miner that starts at a step, in templar's own loop (`neurons/miner.py`).

    Args:
        release: The folder of the release.
        cache: The folder of the shards on this machine.
        length: Tokens of a sample.
        start: The first step; each shard has `per_shard` of them.
        per_shard: Steps of a shard.
        steps: The step to end before.
        workers: How the workers of its loader start: `fork`, `spawn`, or "" for none.
    """
    import asyncio

    import torch

    from dataprep_assets.serving.window.templar import ShardedDatasetManager

    async def miner() -> list[int]:
        read = []
        options = {"num_workers": 1, "multiprocessing_context": workers} if workers else {}
        with ShardedDatasetManager(length, 0, 1, None, release=release, cache_dir=cache) as manager:
            await manager.initialize_datasets(start // per_shard)
            loader = torch.utils.data.DataLoader(manager.active_dataset, batch_size=2, **options)
            for step in range(start, steps):
                if step > 0 and step % per_shard == 0:
                    await manager.swap_datasets()
                    loader = torch.utils.data.DataLoader(manager.active_dataset, batch_size=2, **options)
                next(iter(loader))
                read.append(manager.active_dataset.shard.index)
        return read

    return asyncio.run(miner())


@in_process_of(PYTORCH)
def block_of_loader(text: str, folder: Path) -> dict[str, Any]:
    """What a page's block leaves that reads batches by `torch_dataset`: the shape of the last, the number of samples.

    Args:
        text: The block.
        folder: The working folder while it runs.
    """
    names, _ = _executed(text, folder)
    following = names["tokens"][:, 1:].equal(names["labels"]) and names["tokens"][:, :-1].equal(names["inputs"])
    return {
        "samples": len(names["dataset"]),
        "inputs": (tuple(names["inputs"].shape), str(names["inputs"].dtype)),
        "labels_follow": following,
    }


@in_process_of(PYTORCH)
def block_of_manager(text: str, folder: Path) -> str:
    """What a page's block prints that reads by templar's manager; arguments as of `block_of_loader`."""
    return _executed(text, folder)[1]


def _executed(text: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Return the names that a block defines, and its output."""
    names: dict[str, Any] = {"__name__": "block"}
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(text, "page.md", "exec"), names)
    return names, out.getvalue()
