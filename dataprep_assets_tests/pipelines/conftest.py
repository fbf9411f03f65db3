"""A project that component tests may write to."""

from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.corpus.sample_shards import combined, sample, special
from dataprep_assets_tests.project import cloned_project

__all__ = ["cloned", "combined", "sample", "special"]


@pytest.fixture
def cloned(tmp_path: Path) -> Path:
    """Return a copy of the project whose `defs/` a test may write to."""
    return cloned_project(tmp_path / "clone")
