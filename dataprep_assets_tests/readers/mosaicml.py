"""Use mosaicml-streaming, which reads MDS.

Its package imports torchvision for image datasets, which nothing here reads and whose wheels do not load next to a
CPU-only PyTorch. Empty modules replace these two subpackages.
"""

import fcntl
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets_tests.readers.families import MOSAICML
from dataprep_assets_tests.readers.process import in_process_of


def _library() -> Any:
    for name in ("streaming.vision", "streaming.multimodal"):
        sys.modules.setdefault(name, ModuleType(name))
    import streaming

    return streaming


@in_process_of(MOSAICML)
def local_tokens(directory: Path) -> npt.NDArray[Any]:
    """Return the joined `tokens` of all samples of a `LocalDataset`, in the order of their numbers."""
    dataset = _library().LocalDataset(str(directory))
    return np.concatenate([dataset[at]["tokens"] for at in range(len(dataset))])


def opened_stream(directory: Path, split: str | None = None, **options: Any) -> Any:
    """Return a `StreamingDataset` of this process over local files; `options` are passed to it."""
    # Take a lock, because the library searches for a free name in /dev/shm and claims it only later, so two processes
    # could choose the same name.
    with open(Path(tempfile.gettempdir(), f"dataprep-streaming-{os.getuid()}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _library().StreamingDataset(local=str(directory), split=split, **options)


@in_process_of(MOSAICML)
def streamed_tokens(directory: Path, split: str | None = None) -> npt.NDArray[Any]:
    """Return the joined `tokens` of all samples of a `StreamingDataset`, in order, with shards verified by hash."""
    dataset = opened_stream(directory, split, batch_size=1, shuffle=False, validate_hash="sha256")
    return np.concatenate([sample["tokens"] for sample in dataset])


@in_process_of(MOSAICML)
def write_windows(directory: Path, windows: npt.NDArray[np.int32], shard_bytes: int) -> None:
    """Write rows of `(samples, length)` ids with mosaicml's `MDSWriter`, in shards of at most this many bytes."""
    with _library().MDSWriter(
        out=str(directory),
        columns={"tokens": f"ndarray:int32:{windows.shape[1]}"},
        hashes=["sha256"],
        size_limit=shard_bytes,
    ) as out:
        for window in windows:
            out.write({"tokens": window})


def work_of_steps(
    streams: list[tuple[Path, float]], state: dict[str, int], samples: int, batch: int, ranks: int
) -> tuple[list[int], dict[str, int], int]:
    """Return the samples that a shuffled `StreamingDataset` over weighted streams gives each rank, in order.

    The ranks are those of its own partition, which it computes for any number of them. Starts at a state, and returns
    the samples by their numbers over all streams, the state after them, and its size in bytes as JSON.
    """
    library = _library()
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    dataset = library.StreamingDataset(
        streams=[library.Stream(local=str(local), proportion=share) for local, share in streams],
        batch_size=batch // ranks,
        shuffle=True,
        num_canonical_nodes=1,
        shuffle_block_size=4_000_000,  # this is the library's default, which it would set at its first read
    )
    world, found = World(1, ranks, 1, 0), list[int]()
    epoch, at = state["epoch"], state["sample_in_epoch"]
    while len(found) < samples:
        work = generate_work("random", dataset, world, epoch, at)
        order = work.transpose(3, 0, 1, 2, 4).reshape(-1)
        order = order[order >= 0][: samples - len(found)]
        found += order.tolist()
        at += len(order)
        if len(found) < samples:
            epoch, at = epoch + 1, 0
    kept = {"num_canonical_nodes": 1, "shuffle_seed": dataset.shuffle_seed, "initial_physical_nodes": 1}
    after = {"epoch": epoch, "sample_in_epoch": at}
    return found, after, len(json.dumps(after | kept))
