"""Which files of the old project are migrated, and what is said of those that are not."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.pipelines.tasks.contract import shipped_contracts
from dataprep_assets_tests.pipelines.tasks.trees import TASKS, Project, edit, prove, put
from dataprep_assets_tests.sample.make_sample_tasks import DISCARDED


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
        (DISCARDED, "has 'discard' where its minor number should be")
    ]
    assert record.compared_with == "original"
    assert record.differences["train"].changed > 0
    assert record.differences["train"].relabelled == 0
    assert record.differences["validation"].unchanged == 6
    assert [row["version"] for row in record.origin_table()] == ["version_10-1", "base", "base"]
    assert record.difference_table()[0]["split"] == "train"


def test_what_is_not_inherited_is_absent(tree: Project) -> None:
    declaration = tree.declared({"Copa": {"version": "latest", "inherit": ["validation"]}})
    done = tree.migrate(declaration)["Copa"]
    assert [f.split for f in done.record.files] == ["train", "validation"]
    assert [(a.split, a.cause) for a in done.record.absent] == [("test", "missing")]
    assert prove(tree.folder(declaration, done)) == {}


def test_a_version_with_its_own_validation_brings_it(tree: Project) -> None:
    folder = tree.old / "Copa/mezo_gpt/version_1"
    shutil.copy(tree.old / "Copa/copa_validation.jsonl", folder)
    (folder / "copa_train_all.jsonl").write_text("{}\n")
    record = tree.migrate(tree.declared({"Copa": {"version": "version_1"}}))["Copa"].record
    assert [f.inherited for f in record.files] == [False, False, True]
    assert record.ignored_files == ("copa_train_all.jsonl",)
    assert not (tree.new / "Copa/copa_train_all.jsonl").exists()


def damage(tree: Project, task: str, change: Callable[[Path], object]) -> Path:
    path = tree.old / task / shipped_contracts()[task].files["train"].name
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


def raw(change: Callable[[bytes], bytes]) -> Callable[[Path], int]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "name", "message"),
    [
        (
            lambda p: shutil.rmtree(p.parent),
            "files_present",
            "the folder Data/rejection_sampling/0_data/Copa is not there",
        ),
        (Path.unlink, "files_present", "copa_train.jsonl is not there"),
        (moved, "names_exact", "copa_train.jsonl: it is named Copa_train.jsonl there; rename it: case counts"),
        (to_link("nowhere"), "regular_or_valid_links", "is a link to nowhere, which is not there"),
        (to_folder, "regular_or_valid_links", "is a folder, not a file"),
        (to_pipe, "regular_or_valid_links", "is not a regular file"),
        (raw(lambda b: b""), "non_empty", "copa_train.jsonl: is empty"),
        (raw(lambda b: b"\xef\xbb\xbf" + b), "utf8_no_bom", "byte order mark"),
        (raw(lambda b: b.replace(b"\n", b"\r\n")), "line_ends", "CR LF"),
        (lambda p: edit(p, put(3, idx=0)), "ids_unique", "line 3"),
        (lambda p: edit(p, put(3, label="0")), "schema", "'label' is a string"),
        (lambda p: edit(p, put(3, label=-1)), "label_domain", "a hidden label"),
    ],
)
def test_bad_input_fails_the_right_check_and_leaves_other_tasks_alone(
    tree: Project, change: Callable[[Path], object], name: str, message: str
) -> None:
    damage(tree, "Copa", change)
    declaration = tree.declared()
    done = tree.migrate(declaration)
    found = {task: prove(tree.folder(declaration, result)) for task, result in done.items()}
    assert message in found["Copa"][name]
    whole = "the folder" in message  # then one line tells it
    assert "loads_as_trainer" in found["Copa"] or whole or name in ("line_ends", "ids_unique")
    del found["Copa"]
    assert found == {task: {} for task in TASKS if task != "Copa"}


def test_a_version_that_this_user_may_not_list_stops_no_other_task(
    tree: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tree.old / "Copa/mezo_gpt/version_1"

    def refusing(call: Callable[..., Any]) -> Callable[..., Any]:
        def refused(path: Any = ".") -> Any:
            if path == closed:  # root may list every folder
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
    found = prove(tree.folder(declaration, tree.migrate(declaration)["Copa"]))
    assert "cannot be read" in found["readable_0644"]


def test_a_link_to_a_closed_file_fails_its_check(tree: Project) -> None:
    damage(tree, "Copa", lambda p: p.chmod(0o600))
    declaration = tree.declared({"Copa": {"mode": "symlink"}})
    assert set(prove(tree.folder(declaration, tree.migrate(declaration)["Copa"]))) == {"readable_0644"}


def test_a_link_out_of_the_old_project_is_copied_but_not_linked(tree: Project) -> None:
    outside = tree.home / "outside.jsonl"
    path = damage(tree, "Copa", lambda p: p.rename(outside))
    path.symlink_to(outside)
    linked = tree.declared({"Copa": {"mode": "symlink"}})
    done = tree.migrate(linked)["Copa"]
    assert [a.cause for a in done.record.absent] == ["outside_old_project"]
    assert "migrate it by copy" in prove(tree.folder(linked, done))["regular_or_valid_links"]
    copied = tree.declared({"Copa": {}})
    assert prove(tree.folder(copied, tree.migrate(copied)["Copa"])) == {}
