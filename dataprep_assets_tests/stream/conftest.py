"""Artifacts of the sample corpus that a test may damage."""

from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.corpus.sample_shards import Sample, Shard, combined, sample, special

__all__ = ["combined", "sample", "shard", "special"]


@pytest.fixture
def shard(sample: Sample, tmp_path: Path) -> Shard:
    """Return a shard that the test may damage."""
    return sample.shards["train-00000"].copied(tmp_path)
