"""mosaicml-streaming, the consumer of MDS."""

import sys
from types import ModuleType
from typing import Any

import pytest

__all__ = ["mosaicml_streaming"]


def mosaicml_streaming() -> Any:
    """The library as it was published; the test is skipped without it.

    Its package imports torchvision for data sets of images, which nothing here reads and whose wheels do not load
    beside a PyTorch built for CPUs only. Empty modules stand for these two subpackages.
    """
    for name in ("streaming.vision", "streaming.multimodal"):
        sys.modules.setdefault(name, ModuleType(name))
    return pytest.importorskip("streaming", reason="no mosaicml-streaming: see the Makefile, which installs it")
