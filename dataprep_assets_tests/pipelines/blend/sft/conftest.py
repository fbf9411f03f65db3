"""Fixtures of the tests of packed chat data."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.blend.sft.conversations import Shard, build_rows
from dataprep_assets_tests.pipelines.blend.sft.proven_shards import (
    ROWS,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    """Return a valid shard, built once per module."""
    return build_rows(tmp_path_factory.mktemp("sound"), ROWS, packing={"row_group_bins": 4})


@pytest.fixture
def shard(built: Shard, tmp_path: Path) -> Shard:
    """Return a shard that the test may damage."""
    return replace(built, directory=Path(shutil.copytree(built.directory, tmp_path / "shard")))
