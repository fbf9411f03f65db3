"""Artifacts of the sample corpus that a test may damage."""

from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.corpus.sample_shards import Combined, Sample, Shard


@pytest.fixture
def shard(sample: Sample, tmp_path: Path) -> Shard:
    """Return a shard that the test may damage."""
    return sample.shards["train-00000"].copied(tmp_path)


@pytest.fixture
def copy(combined: Combined, tmp_path: Path) -> Combined:
    """Return a combined artifact that the test may damage."""
    return combined.copied(tmp_path)
