"""Task folders are written to the trainer's path, no file of a user is lost, and a rerun does nothing."""

import json
import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.tasks.checks import CONFLICT, FILES
from dataprep_assets.pipelines.tasks.contract import load_shipped_contracts
from dataprep_assets.pipelines.tasks.migration import MigrationResult, migrate_task
from dataprep_assets.pipelines.tasks.record import NAME
from dataprep_assets.stores.files import sha256_file
from dataprep_assets_tests.faults.edits import edit_receipt
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.tasks.trees import (
    COUNTS,
    TASKS,
    TRAIN,
    Project,
    edit,
    foreign,
    project,
    put,
    small,
    snapshot,
)
from dataprep_assets_tests.tools.sample.make_sample_tasks import DISCARDED, LAYOUT, jsonl


@pytest.mark.parametrize("mode", ["copy", "symlink"])
def test_all_six_tasks_are_migrated_load_and_pass_every_check(tree: Project, mode: str) -> None:
    before = snapshot(tree.home)
    declaration = tree.declared({task: {"mode": mode} for task in TASKS})
    done = tree.migrate(declaration)
    assert list(done) == list(TASKS)
    for task, result in done.items():
        assert tree.faults(declaration, task) == {}
        assert result.receipt.facts["rows"] == {split: COUNTS[split] for split in load_shipped_contracts()[task].splits}
        for file in result.record.files:
            path, source = tree.new / task / file.name, tree.home / "old" / file.source
            assert path.read_bytes() == source.read_bytes()
            assert file.sha256 == sha256_file(path)
            if mode == "copy":
                assert path.lstat().st_mode & 0o777777 == 0o100644
                assert path.stat().st_ino != source.stat().st_ino
            else:
                assert not path.readlink().is_absolute()
                assert path.resolve() == source.resolve()
    after = snapshot(tree.home)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("mode", ["copy", "symlink"])
@pytest.mark.parametrize("version", ["base", "latest", "all", DISCARDED])
def test_a_second_run_does_nothing(tree: Project, mode: str, version: str) -> None:
    declaration = tree.declared({"Copa": {"version": version, "mode": mode}, "CB": {"mode": mode}})
    assert not tree.is_current(declaration, "CB")
    first = tree.migrate(declaration)
    assert all(r.placed and not r.reused for r in first.values())
    assert all(tree.is_current(declaration, p) for p in first)
    before = snapshot(tree.home)
    inodes = {p: p.lstat().st_ino for p in tree.new.rglob("*")}
    second = tree.migrate(declaration)
    assert all(r.reused and not r.placed for r in second.values())
    assert snapshot(tree.home) == before
    assert {p: p.lstat().st_ino for p in tree.new.rglob("*")} == inodes
    assert [r.record for r in second.values()] == [r.record for r in first.values()]


def test_equal_old_projects_give_equal_artifacts_anywhere(tree: Project, tmp_path_factory: Any) -> None:
    other = project(tmp_path_factory.mktemp("elsewhere"))
    one, two = (t.migrate(t.declared({"Copa": {"version": "latest"}}))["Copa"] for t in (tree, other))
    assert one.receipt.key == two.receipt.key
    assert one.receipt.content == two.receipt.content
    text = (tree.store.root / "tasks/task_folder/Copa" / NAME).read_text()
    assert str(tree.home) not in text


def test_a_different_file_is_refused_before_anything_changes(tree: Project) -> None:
    foreign(tree)
    before = snapshot(tree.home)
    with raises(ConfigError, "copa_train.jsonl", "content"):
        tree.migrate(tree.declared({"Copa": {}}))
    assert {n: v for n, v in snapshot(tree.home).items() if ".lock" not in n} == before
    tree.migrate(tree.declared({"CB": {}}))


def test_a_change_in_the_old_project_is_found(tree: Project) -> None:
    copied, linked = tree.declared({"Copa": {}}), tree.declared({"CB": {"mode": "symlink"}})
    tree.migrate(copied)
    first = tree.migrate(linked)["CB"]
    edit(tree.old / "Copa" / TRAIN, put(1, premise="Changed."))
    edit(tree.old / "CB/cb_train.jsonl", put(1, premise="Changed."))
    assert not tree.is_current(copied, "Copa")
    assert not tree.is_current(linked, "CB")
    again = tree.migrate(linked)["CB"]
    assert (again.placed, again.reused) == ((), False)
    assert again.receipt.key != first.receipt.key
    before = (tree.new / "Copa" / TRAIN).read_bytes()
    done = tree.migrate(copied)["Copa"]
    assert (done.placed, done.reused) == ((TRAIN,), False)
    assert (tree.new / "Copa" / TRAIN).read_bytes() == (tree.old / "Copa" / TRAIN).read_bytes() != before


def test_a_manually_changed_copy_is_not_replaced(tree: Project) -> None:
    copied = tree.declared({"Copa": {}})
    tree.migrate(copied)
    edit(tree.old / "Copa" / TRAIN, put(1, premise="Changed."))
    edit(tree.new / "Copa" / TRAIN, put(2, premise="By hand."))
    by_hand = (tree.new / "Copa" / TRAIN).read_bytes()
    with raises(ConfigError, "different content"):
        tree.migrate(copied)
    assert (tree.new / "Copa" / TRAIN).read_bytes() == by_hand


def test_a_file_deleted_from_the_new_project_is_restored(tree: Project) -> None:
    declaration = tree.declared({"Copa": {}})
    tree.migrate(declaration)
    (tree.new / "Copa" / TRAIN).unlink()
    done = tree.migrate(declaration)["Copa"]
    assert (done.placed, done.reused) == ((TRAIN,), True)


def test_a_file_of_an_earlier_migration_is_kept_and_reported(tree: Project) -> None:
    tree.migrate(tree.declared({"Copa": {}}))
    declaration = tree.declared({"Copa": {"version": "latest", "inherit": ["validation"]}})
    tree.migrate(declaration)
    found = tree.faults(declaration, "Copa")
    assert set(found) == {CONFLICT}
    assert re.match(r"copa_test\.jsonl: exists in .*, but no migration of this version wrote it", found[CONFLICT][0])


def test_a_tree_can_move_within_its_repository(tree: Project) -> None:
    declaration = tree.declared({"Copa": {"version": "latest"}}, new_root="old", new_layout="Data/synthetic")
    (done,) = tree.migrate(declaration).values()
    assert done.record.place == "Data/synthetic/Copa"
    moved = tree.home / "old" / "Data" / "synthetic" / "Copa"
    assert (moved / TRAIN).read_bytes() == (tree.old / "Copa" / "mezo_gpt" / "version_10-1" / TRAIN).read_bytes()
    assert tree.is_current(declaration, "Copa")
    assert tree.faults(declaration, done.partition) == {}
    inside = tree.declared({"CB": {}}, new_root="old", new_layout=f"{LAYOUT}/again")
    with raises(ConfigError, "old project"):
        tree.migrate(inside)


def test_stores_keep_artifacts_apart(tree: Project) -> None:
    declaration = tree.declared({"Copa": {}})
    first: MigrationResult = tree.migrate(declaration)["Copa"]
    elsewhere = LocalArtifacts(tree.home / "elsewhere")
    again = migrate_task(declaration, elsewhere, "Copa")
    assert (again.placed, again.reused) == ((), False)
    assert again.receipt.content == first.receipt.content
    assert json.loads((elsewhere.root / "tasks/task_folder/Copa/migration.json").read_bytes())["task"] == "Copa"
    assert sum(f.rows for f in first.record.files) == sum(COUNTS.values())


# --- reasons for a stale task folder


def lose_artifact(tree: Project) -> None:
    shutil.rmtree(tree.store.root / "tasks/task_folder/CB")


def damage_record(tree: Project) -> None:
    path = tree.store.root / "tasks/task_folder/CB" / NAME
    path.write_bytes(path.read_bytes().replace(b'"copied"', b'"linked"', 1))


def change_source(tree: Project) -> None:
    edit(tree.old / "CB/cb_train.jsonl", put(1, premise="Changed."))


def change_original(tree: Project) -> None:
    edit(tree.home / "original/CB/cb_train.jsonl", lambda rows: rows[0].update(label=(rows[0]["label"] + 1) % 3))


def lose_target(tree: Project) -> None:
    (tree.new / "CB/cb_train.jsonl").unlink()


def close_target(tree: Project) -> None:
    (tree.new / "CB/cb_train.jsonl").chmod(0o600)


def lose_source(tree: Project) -> None:
    (tree.old / "CB/cb_test.jsonl").unlink()


def put_a_folder_in_the_way(tree: Project) -> None:
    lose_target(tree)
    (tree.new / "CB/cb_train.jsonl").mkdir()


def make_it_of_an_older_version(tree: Project) -> None:
    def older(receipt: dict[str, Any]) -> None:
        receipt["key"], receipt["recipe"]["version"] = "0" * 64, 0

    edit_receipt(tree.store.root / "tasks/task_folder/CB/receipt.json", older)


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        (lose_artifact, "missing", "missing"),
        (damage_record, "damaged", "damaged: migration.json"),
        (change_source, "input changed", "its source changed: Data/rejection_sampling/0_data/CB/cb_train.jsonl"),
        (change_original, "input changed", "its source changed: train rows against the original"),
        (lose_source, "input changed", "its source changed: cb_test.jsonl (absent), "),
        (lose_target, "damaged", "cb_train.jsonl in {new}/CB: changed since the migration"),
        (close_target, "damaged", "cb_train.jsonl in {new}/CB: changed since the migration"),
        (put_a_folder_in_the_way, "input changed", "{new}/CB/cb_train.jsonl: must be a file, not a folder"),
        (make_it_of_an_older_version, "older version", "built by version 0 of this step; the current version is 3"),
    ],
)
def test_a_stale_task_folder_has_a_reason_and_others_are_up_to_date(
    tree: Project, change: Callable[[Project], None], kind: str, reason: str
) -> None:
    declaration = tree.declared({"Copa": {}, "CB": {}})
    tree.migrate(declaration)
    assert tree.stale(declaration) == {}
    change(tree)
    found = tree.stale(declaration)
    assert set(found) == {"CB"}
    assert found["CB"].kind == kind
    assert found["CB"].reason.startswith(reason.format(new=tree.new)), found["CB"].reason


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        ({}, {"mode": "symlink"}, "mode was copy, now symlink"),
        ({"version": "version_1"}, {"version": "version_9-2"}, "version was version_1, now version_9-2"),
        ({}, {"version": "version_77"}, "tasks.Copa.version: version_77: unknown version. Available: "),
    ],
)
def test_a_changed_declaration_names_the_change(
    tree: Project, before: dict[str, str], now: dict[str, str], reason: str
) -> None:
    tree.migrate(tree.declared({"Copa": before, "CB": {}}))
    found = tree.stale(tree.declared({"Copa": now, "CB": {}}))
    assert set(found) == {"Copa"}
    assert found["Copa"].reason.startswith(reason), found["Copa"].reason


SST2 = """
folder: SST2
files:
  train: {name: sst2_train.jsonl, rows: 4}
  validation: {name: sst2_validation.jsonl, rows: 2}
keys: {sentence: string, label: integer, idx: integer}
id: idx
label: label
labels: {train: [0, 1], validation: [0, 1]}
text: [sentence]
"""


def test_a_task_added_only_by_yaml_is_migrated_and_checked(tree: Project) -> None:
    import yaml

    rows = [{"sentence": f"sentence {n}", "label": n % 2, "idx": n} for n in range(6)]
    for name, part in (("train", rows[:4]), ("validation", rows[4:])):
        for folder in (tree.old / "SST2", tree.home / "original/SST2"):
            folder.mkdir(exist_ok=True)
            (folder / f"sst2_{name}.jsonl").write_bytes(jsonl(part))
    declaration = tree.declared({"SST2": {}}, contracts={"SST2": yaml.safe_load(SST2)})
    done = tree.migrate(declaration)["SST2"]
    assert tree.faults(declaration, "SST2") == {}
    assert done.receipt.facts["rows"] == {"train": 4, "validation": 2}
    (tree.new / "SST2/sst2_train.jsonl").unlink()
    assert set(tree.faults(declaration, "SST2")) == {FILES}


def test_a_task_like_another_needs_a_few_lines(tree: Project) -> None:
    for where in ("original", "old/Data/rejection_sampling/0_data"):
        shutil.copytree(tree.home / where / "CB", tree.home / where / "CB_long")
    declaration = tree.declared({"CB_long": {}}, contracts={"CB_long": small("CB")})
    done = tree.migrate(declaration)["CB_long"]
    assert tree.faults(declaration, done.partition) == {}
