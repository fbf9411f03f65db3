"""What several tests of notes share."""

from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.notes.directories import NOTES, leave_tfds_out
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes


@pytest.fixture
def without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `leave_tfds_out`."""
    leave_tfds_out(monkeypatch)


@pytest.fixture
def notes_root(tmp_path: Path) -> Path:
    """A root below which `directories.NOTES` is built."""
    assert not run_notes(NOTES, tmp_path).failed
    return tmp_path
