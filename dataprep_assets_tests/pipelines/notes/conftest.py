"""What several tests of notes share."""

from pathlib import Path

import pytest

from dataprep_assets.pipelines.notes import tfds_reader
from dataprep_assets_tests.pipelines.notes.directories import NOTES
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes


@pytest.fixture
def without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where TFDS is not installed: its reader takes seconds each time, and has tests of its own."""
    monkeypatch.setattr(tfds_reader, "_NEEDED", ("tensorflow_of_another_world",))


@pytest.fixture
def notes_root(tmp_path: Path) -> Path:
    """A root below which `directories.NOTES` is built."""
    assert not run_notes(NOTES, tmp_path).failed
    return tmp_path
