"""The migrated files of the old project, and the messages about files that are not migrated."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.pipelines.tasks.checks import FILES
from dataprep_assets.pipelines.tasks.contract import load_shipped_contracts
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.tasks.trees import TASKS, Project
from dataprep_assets_tests.tools.sample.make_sample_tasks import DISCARDED


def test_latest_takes_train_from_the_version_and_the_rest_from_the_base(tree: Project) -> None:
    declaration = tree.declared({"Copa": {"version": "latest"}})
    record = tree.migrate(declaration)["Copa"].record
    assert record.version == "version_10-1"
    assert [(f.split, f.version, f.inherited, f.rows, f.how) for f in record.files] == [
        ("train", "version_10-1", False, 12, "copied"),
        ("validation", "base", True, 6, "copied"),
        ("test", "base", True, 5, "copied"),
    ]
    assert record.files[0].source == "Data/rejection_sampling/0_data/Copa/mezo_gpt/version_10-1/copa_train.jsonl"
    assert record.place == "Data/rejection_sampling/0_data/Copa"
    assert [(u.name, u.reason) for u in record.unordered_versions] == [
        (DISCARDED, "has 'discard' instead of a minor number")
    ]
    assert record.compared_with == "original"
    assert record.differences["train"].changed > 0
    assert record.differences["train"].relabelled == 0
    assert record.differences["validation"].unchanged == 6
    assert [row["version"] for row in record.build_origin_table()] == ["version_10-1", "base", "base"]


def test_a_file_that_is_not_inherited_is_absent(tree: Project) -> None:
    declaration = tree.declared({"Copa": {"version": "latest", "inherit": ["validation"]}})
    done = tree.migrate(declaration)["Copa"]
    assert [f.split for f in done.record.files] == ["train", "validation"]
    assert [(a.split, a.cause) for a in done.record.absent] == [("test", "missing")]
    assert tree.faults(declaration, "Copa") == {}


def test_a_version_with_its_own_validation_uses_it(tree: Project) -> None:
    folder = tree.old / "Copa/mezo_gpt/version_1"
    shutil.copy(tree.old / "Copa/copa_validation.jsonl", folder)
    (folder / "copa_train_all.jsonl").write_text("{}\n")
    record = tree.migrate(tree.declared({"Copa": {"version": "version_1"}}))["Copa"].record
    assert [f.inherited for f in record.files] == [False, False, True]
    assert record.ignored_files == ("copa_train_all.jsonl",)
    assert not (tree.new / "Copa/copa_train_all.jsonl").exists()


def damage(tree: Project, task: str, change: Callable[[Path], object]) -> Path:
    path = tree.old / task / load_shipped_contracts()[task].files["train"].name
    change(path)
    return path


def moved(path: Path) -> None:
    path.rename(path.with_name(path.name.capitalize()))


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_link(target: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return change


@pytest.mark.parametrize(
    ("change", "cause", "message"),
    [
        (lambda p: shutil.rmtree(p.parent), "missing", "the folder Data/rejection_sampling/0_data/Copa does not exist"),
        (Path.unlink, "missing", "copa_train.jsonl does not exist"),
        (moved, "other_case", "but Copa_train.jsonl does"),
        (to_link("nowhere"), "broken_link", "is a link to nowhere, which does not exist"),
        (to_folder, "directory", "is a folder, not a file"),
        (to_pipe, "not_regular", "is not a regular file"),
    ],
)
def test_an_unusable_file_is_absent_and_other_tasks_are_migrated(
    tree: Project, change: Callable[[Path], object], cause: str, message: str
) -> None:
    damage(tree, "Copa", change)
    declaration = tree.declared()
    record = tree.migrate(declaration)["Copa"].record
    assert record.absent[0].cause == cause
    found = {task: tree.faults(declaration, task) for task in TASKS}
    assert set(found["Copa"]) == {FILES}
    assert found["Copa"][FILES][0].startswith("copa_train.jsonl: missing in ")
    assert message in found["Copa"][FILES][0]
    del found["Copa"]
    assert not any(found.values())


def test_a_version_that_the_user_cannot_list_stops_no_other_task(
    tree: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tree.old / "Copa/mezo_gpt/version_1"

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refused(path: Any = ".") -> Any:
            # Raise the error here, because permissions do not prevent root from listing a folder.
            if path == closed:
                raise PermissionError(13, "Permission denied", str(path))
            return call(path)

        return refused

    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    monkeypatch.setattr(os, "listdir", refusing(os.listdir))
    done = tree.migrate(tree.declared({"Copa": {"version": "version_1"}, "CB": {"version": "base"}}))
    assert [absent.cause for absent in done["Copa"].record.absent] == ["unreadable"] * 3
    assert done["Copa"].record.ignored_files == ()
    assert len(done["CB"].record.files) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_file_is_absent_with_its_permissions(tree: Project) -> None:
    damage(tree, "Copa", lambda p: p.chmod(0))
    declaration = tree.declared({"Copa": {}})
    tree.migrate(declaration)
    assert "cannot be read" in tree.faults(declaration, "Copa")[FILES][0]


def test_a_link_to_an_unreadable_file_fails_its_check(tree: Project) -> None:
    damage(tree, "Copa", lambda p: p.chmod(0o600))
    declaration = tree.declared({"Copa": {"mode": "symlink"}})
    tree.migrate(declaration)
    assert tree.faults(declaration, "Copa") == {FILES: ["copa_train.jsonl: its permissions are 0600, not 0644"]}


def test_a_link_out_of_the_old_project_is_copied_but_not_linked(tree: Project) -> None:
    outside = tree.home / "outside.jsonl"
    path = damage(tree, "Copa", lambda p: p.rename(outside))
    path.symlink_to(outside)
    linked = tree.declared({"Copa": {"mode": "symlink"}})
    done = tree.migrate(linked)["Copa"]
    assert [a.cause for a in done.record.absent] == ["outside_old_project"]
    assert_names(tree.faults(linked, "Copa")[FILES][0], "link", "copy")
    copied = tree.declared({"Copa": {}})
    tree.migrate(copied)
    assert tree.faults(copied, "Copa") == {}
