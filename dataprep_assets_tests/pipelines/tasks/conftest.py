"""A fixture with an old project for each test of migrations."""

from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.tasks.trees import Project, project


@pytest.fixture
def tree(tmp_path: Path) -> Project:
    """Return an old project with all six tasks."""
    return project(tmp_path)
