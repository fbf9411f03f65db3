"""Files and links in the new project: cases of replacement, repair and refusal."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.tasks.record import NAME
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.tasks.trees import TRAIN, Project, snapshot


def test_the_mode_can_change_because_no_data_is_lost(tree: Project) -> None:
    copied = tree.declared({"Copa": {}})
    linked = tree.declared({"Copa": {"mode": "symlink"}})
    for declaration, is_link in ((copied, False), (linked, True), (copied, False)):
        done = tree.migrate(declaration)["Copa"]
        assert len(done.placed) == 3
        assert (tree.new / "Copa" / TRAIN).is_symlink() == is_link
        assert tree.faults(declaration, "Copa") == {}


def test_permissions_of_a_copy_are_repaired(tree: Project) -> None:
    declaration = tree.declared({"Copa": {}})
    tree.migrate(declaration)
    (tree.new / "Copa" / TRAIN).chmod(0o600)
    assert not tree.is_current(declaration, "Copa")
    done = tree.migrate(declaration)["Copa"]
    assert (done.placed, done.reused) == ((TRAIN,), True)
    assert (tree.new / "Copa" / TRAIN).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("mode", ["copy", "symlink"])
def test_a_link_to_another_file_is_refused_and_a_dangling_one_replaced(tree: Project, mode: str) -> None:
    path = tree.new / "Copa" / TRAIN
    path.parent.mkdir(parents=True)
    (path.parent / "copa_other.jsonl").write_bytes(b"{}\n")
    path.symlink_to("copa_other.jsonl")
    with raises(ConfigError, "link", "content"):
        tree.migrate(tree.declared({"Copa": {"mode": mode}}))
    assert path.readlink() == Path("copa_other.jsonl")
    (path.parent / "copa_other.jsonl").unlink()
    tree.migrate(tree.declared({"Copa": {"mode": mode}}))
    assert path.read_bytes() == (tree.old / "Copa" / TRAIN).read_bytes()


@pytest.mark.parametrize("before", ["copy", "symlink"])
@pytest.mark.parametrize("now", ["copy", "symlink"])
def test_another_version_replaces_migrated_files(tree: Project, before: str, now: str) -> None:
    tree.migrate(tree.declared({"Copa": {"mode": before}}))
    done = tree.migrate(tree.declared({"Copa": {"mode": now, "version": "latest"}}))["Copa"]
    assert TRAIN in done.placed
    path = tree.new / "Copa" / TRAIN
    assert path.read_bytes() == (tree.old / "Copa/mezo_gpt/version_10-1" / TRAIN).read_bytes()
    assert path.is_symlink() == (now == "symlink")


def test_without_its_record_a_different_file_is_treated_as_the_users(tree: Project) -> None:
    tree.migrate(tree.declared({"Copa": {}}))
    (tree.store.root / "tasks/task_folder/Copa" / NAME).write_text("{}")
    with raises(ConfigError, "different content"):
        tree.migrate(tree.declared({"Copa": {"version": "latest"}}))
    assert not tree.migrate(tree.declared({"Copa": {}}))["Copa"].placed


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_folder_or_pipe_in_place_of_a_file_is_refused(tree: Project, make: Callable[[Path], None]) -> None:
    path = tree.new / "Copa" / TRAIN
    path.parent.mkdir(parents=True)
    make(path)
    with raises(ConfigError, "copa_train.jsonl"):
        tree.migrate(tree.declared({"Copa": {}}))
    assert [p.name for p in path.parent.iterdir()] == [TRAIN]


def test_a_file_in_place_of_the_folder_is_refused(tree: Project) -> None:
    tree.new.mkdir(parents=True)
    (tree.new / "Copa").write_text("mine")
    with raises(ConfigError, "Copa"):
        tree.migrate(tree.declared({"Copa": {}}))
    shutil.rmtree(tree.home / "new")
    (tree.home / "new").write_text("mine")
    with raises(ConfigError, "folder"):
        tree.migrate(tree.declared({"Copa": {}}))


@pytest.mark.parametrize("mode", ["copy", "symlink"])
def test_the_old_project_is_never_written_to(tree: Project, mode: str) -> None:
    before = snapshot(tree.home / "old")
    tasks = {"Copa": {"mode": mode, "version": "latest"}}
    with raises(ConfigError, "old project"):
        tree.migrate(tree.declared(tasks, new_root="old"))
    tree.new.mkdir(parents=True)
    (tree.new / "Copa").symlink_to(tree.old / "Copa")
    with raises(ConfigError, "old project"):
        tree.migrate(tree.declared(tasks))
    assert snapshot(tree.home / "old") == before


def test_leftovers_of_a_killed_run_are_removed(tree: Project) -> None:
    declaration = tree.declared({"Copa": {}})
    tree.migrate(declaration)
    staged = tree.new / "Copa" / f".{TRAIN}.staged"
    staged.write_bytes(b"torn")
    assert tree.migrate(declaration)["Copa"].placed == ()
    assert not staged.exists()
