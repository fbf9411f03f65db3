"""Fixtures of the tests of blends."""

from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.blend.finished_blend import FinishedBlend, finish
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, write_small_sources


@pytest.fixture
def good(tmp_path: Path) -> FinishedBlend:
    """Return a pretraining blend with held-out shards."""
    return finish(declare_pretraining(write_small_sources(tmp_path / "s"), held_out={"valid": 1}), tmp_path / "out")
