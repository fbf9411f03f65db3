"""Disk space for the bytes and the headroom is required in the folder that will contain them."""

import shutil
from pathlib import Path

import pytest

from dataprep_assets.errors import SourceError
from dataprep_assets.stores.files import check_headroom
from dataprep_assets_tests.messages import raises


def test_space_is_measured_for_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    check_headroom(tmp_path / "not" / "yet", 1000)
    assert not (tmp_path / "not").exists()


def test_without_downloads_no_space_is_needed(tmp_path: Path) -> None:
    check_headroom(tmp_path, 0, headroom=1e15)


def test_the_headroom_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1199))
    check_headroom(tmp_path, 1000, headroom=0.19)
    with raises(SourceError, 1_000, 1_200, "20.0%", 1):
        check_headroom(tmp_path, 1000, headroom=0.2)
