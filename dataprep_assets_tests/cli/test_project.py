"""Warnings that a command shows about the datasets that it has loaded."""

from itertools import permutations
from pathlib import Path

import pytest

from dataprep_assets.cli.support import project
from dataprep_assets.engine.privacy import OPEN
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.resources import StorageResource


def test_a_command_with_several_datasets_shows_what_all_of_them_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "open_storage", lambda: StorageResource(root=str(tmp_path)))
    declared = [
        DatasetDeclaration(dataset="ward", sensitive=True, small_cell=20),
        DatasetDeclaration(dataset="clinic", sensitive=True),
        DatasetDeclaration(dataset="public"),
    ]
    for loaded in permutations(declared):
        with project.scope_privacy():
            assert project.get_privacy() == OPEN
            for declaration in loaded:
                project._running[-1].take(declaration)
            assert project.get_privacy().public_count(15) == "< 20"
            assert "3 patients" not in project.get_privacy().public_text("3 patients", "built")
    kept = "".join(path.read_text() for path in tmp_path.rglob("texts.log"))
    assert kept.count("3 patients") == 6
