"""A project that the tests of components may write to."""

import shutil
from pathlib import Path

import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets_tests.pipelines.corpus.sample_shards import combined, sample, special

__all__ = ["cloned", "combined", "sample", "special"]


@pytest.fixture
def cloned(tmp_path: Path) -> Path:
    """A copy of the project whose `defs/` a test may write to."""
    # not what other tests are writing at this moment
    ignored = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(PROJECT_ROOT, tmp_path / "clone", ignore=ignored))
