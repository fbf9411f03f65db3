"""An error of the operating system is reported with the path, the bytes and the remedy."""

import errno
import os
from pathlib import Path

import pytest

from dataprep_assets.errors import DiskFullError
from dataprep_assets.integrity.commit import convert_disk_errors, open_staging, translate_os_error
from dataprep_assets_tests.messages import raises


def test_a_write_to_a_full_disk_names_the_path_and_the_missing_bytes(tmp_path: Path) -> None:
    values = (tmp_path / "a" / "b", 1_000_000)
    with raises(DiskFullError, *values), convert_disk_errors(tmp_path / "a" / "b", 1_000_000):
        _fill()


def test_an_artifact_that_does_not_fit_on_the_disk_is_named(tmp_path: Path) -> None:
    with (
        raises(DiskFullError, tmp_path / "bins", "full"),
        open_staging(tmp_path / "bins", "0" * 64),
    ):
        _fill()


def test_other_errors_are_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), convert_disk_errors(tmp_path):
        (tmp_path / "absent").read_bytes()


def test_a_missing_permission_names_the_file(tmp_path: Path) -> None:
    error = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "locked"))
    told = str(translate_os_error(error, tmp_path))
    assert (
        told == f"{tmp_path}/locked: Permission denied. Correct the path or its permissions, then run the command again"
    )


def _fill() -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")
