"""Files of a sensitive dataset are private to their owner, and a check reports public ones with the command that closes
them.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.spec import PERMISSIONS_PRIVATE, ArtifactSpec, list_folders, permissions_private
from dataprep_assets.engine.checks.verdicts import PartitionChecks
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.stores.files import is_private_mode, list_open_to_others, make_private_folder, private_files
from dataprep_assets_tests.messages import raises


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_written_inside_the_block_are_private_and_the_umask_is_restored(tmp_path: Path) -> None:
    with private_files():
        (tmp_path / "folder" / "below").mkdir(parents=True)
        with private_files(), private_files(False):
            (tmp_path / "folder" / "file").touch()
        (tmp_path / "folder" / "later").touch()
        assert is_private_mode()
    (tmp_path / "public").touch()
    assert not is_private_mode()
    modes = [mode(tmp_path / name) for name in ("folder", "folder/below", "folder/file", "folder/later", "public")]
    assert modes == [0o700, 0o700, 0o600, 0o600, 0o644]


def test_a_stricter_umask_is_kept(tmp_path: Path) -> None:
    os.umask(0o277)
    with private_files():
        (tmp_path / "file").touch()
    assert mode(tmp_path / "file") == 0o400


@pytest.mark.parametrize("before", [0o700, 0o755])
def test_a_folder_of_another_user_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    make_private_folder(tmp_path / "ours" / "below")
    (tmp_path / "ours").chmod(before)
    make_private_folder(tmp_path / "ours")
    assert mode(tmp_path / "ours") == 0o700
    (tmp_path / "ours").chmod(before)
    # Simulate root, which could change the mode of this folder although a different user owns it.
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with raises(ConfigError, tmp_path / "ours", "root_squash"):
        make_private_folder(tmp_path / "ours")
    assert mode(tmp_path / "ours") == before


def test_the_check_names_folders_and_the_command_that_closes_them(tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path)
    with private_files():
        (tmp_path / "d" / "shards" / ".staging").mkdir(parents=True)
        (tmp_path / "d" / "shards" / "PATIENT.json").touch()
    assert permissions_private(list_folders(store, "d")).passed
    (tmp_path / "d" / "shards" / "PATIENT.json").chmod(0o640)
    found = permissions_private(list_folders(store, "d"))
    assert not found.passed
    assert not found.warning
    assert f"chmod -R go-rwx {tmp_path / 'd'}" in found.summary
    assert found.table == ({"folder": str(tmp_path / "d"), "open_paths": 1, "permissions": "0040"},)
    assert "PATIENT" not in str(found)
    (tmp_path / "d" / "shards" / "PATIENT.json").chmod(0o400)
    (tmp_path / "d" / "link").symlink_to("/")
    assert permissions_private(list_folders(store, "d")).passed
    assert not list(list_open_to_others(tmp_path / "not there"))


def test_a_public_folder_of_dagsters_runs_fails_the_check_but_one_of_settings_does_not() -> None:
    # Do not use the tests' own folder, which is private and so makes everything below it private.
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        (home / "storage").mkdir(parents=True)
        assert permissions_private([], str(home)).passed, "the folder above it is closed"
        Path(folder).chmod(0o755)
        assert f"go-rwx {home}" in permissions_private([], str(home)).summary
        home.chmod(0o700)
        assert permissions_private([], str(home)).passed
        home.chmod(0o755)
        (home / "storage").rmdir()
        assert permissions_private([], str(home)).passed, "settings alone"


def test_a_link_cannot_hide_a_file_from_the_check(tmp_path: Path) -> None:
    (tmp_path / "disk" / "notes").mkdir(parents=True)
    (tmp_path / "d").symlink_to(tmp_path / "disk" / "notes")
    assert (
        f"chmod -R go-rwx {tmp_path / 'd'}" in permissions_private(list_folders(LocalArtifacts(tmp_path), "d")).summary
    )
    (tmp_path / "closed").mkdir(mode=0o700)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "storage").mkdir()
        Path(folder).chmod(0o755)
        home = tmp_path / "closed" / "home"
        home.symlink_to(folder)
        assert not permissions_private([], str(home)).passed, "the closed folder is above the link alone"


def test_every_artifact_of_a_sensitive_dataset_has_the_check(tmp_path: Path) -> None:
    def spec(*, sensitive: bool) -> ArtifactSpec:
        return ArtifactSpec(
            declaration=DatasetDeclaration(dataset="d", sensitive=sensitive),
            name="letters",
            description="",
            kinds=set(),
            build=lambda _: (),
            recipes=lambda *_: (),
        )

    assert spec(sensitive=False).checks == ()
    closed = spec(sensitive=True)
    assert [(check.name, check.blocking) for check in closed.checks] == [("permissions_private", True)]
    group = PartitionChecks[Any, Any](checks=(), planned=lambda *_: (), documents=lambda _: 7)
    assert replace(closed, check_groups=(group,)).checks == (PERMISSIONS_PRIVATE,)
    assert replace(closed, check_groups=(group,)).documents is group.documents, "the level is told here, too"
    (tmp_path / "d" / "letters").mkdir(parents=True)
    ((name, finding),) = closed.examine(LocalArtifacts(tmp_path), [])
    assert (name, finding.passed) == ("permissions_private", False)
