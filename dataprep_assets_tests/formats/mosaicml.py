"""mosaicml-streaming, the consumer of MDS."""

import fcntl
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

__all__ = ["mosaicml_streaming", "streamed"]


def mosaicml_streaming() -> Any:
    """The library as it was published; the test is skipped without it.

    Its package imports torchvision for data sets of images, which nothing here reads and whose wheels do not load
    beside a PyTorch built for CPUs only. Empty modules stand for these two subpackages.
    """
    for name in ("streaming.vision", "streaming.multimodal"):
        sys.modules.setdefault(name, ModuleType(name))
    return pytest.importorskip("streaming", reason="no mosaicml-streaming: see the Makefile, which installs it")


def streamed(directory: Path, split: str | None = None) -> list[Any]:
    """Every sample of a `StreamingDataset`, in order, its shards checked by their hashes."""
    # it looks for a free name in /dev/shm and takes it later: not two at once on a machine
    with open(Path(tempfile.gettempdir(), f"dataprep-streaming-{os.getuid()}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        dataset = mosaicml_streaming().StreamingDataset(
            local=str(directory), split=split, batch_size=1, shuffle=False, validate_hash="sha256"
        )
    return list(dataset)
