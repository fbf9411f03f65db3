"""Task folders migrated by Dagster: partitions, metadata, repeated migrations, and failures that stay local."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.losses import find_losses
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets.pipelines.tasks.checks import FILES, ROWS
from dataprep_assets.pipelines.tasks.contract import load_shipped_contracts
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.tasks.migrations import ALL, Migration, evaluations, failed, migration, rows
from dataprep_assets_tests.pipelines.tasks.trees import TASKS, edit, project, put
from dataprep_assets_tests.project import differing_versions, failure_of
from dataprep_assets_tests.tools.sample.make_sample_tasks import DISCARDED, LAYOUT, VERSIONS


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Migration]:
    """Return all six tasks, in the layout of the seed, with every version of Copa, and CB by symlink."""
    home = tmp_path_factory.mktemp("tasks")
    project(home)
    (home / "old" / LAYOUT / "Copa" / "copa_train_all.jsonl").write_text("{}\n")
    with migration(home, {**ALL, "Copa": {"version": "all"}, "CB": {"mode": "symlink"}}) as made:
        outcome = made.run()
        assert outcome.success, failure_of(outcome)
        assert failed(evaluations(outcome)) == set()
        yield made


def test_there_is_a_partition_for_each_task_and_each_version_of_all(finished: Migration) -> None:
    expected = [*(f"Copa.{v}" for v in VERSIONS), *(t for t in TASKS if t != "Copa")]
    assert sorted(finished.partitions) == sorted(expected)
    assert finished.materialized() == set(expected)


def test_every_folder_is_where_its_task_value_points(finished: Migration) -> None:
    for partition in finished.partitions:
        task, _, version = partition.partition(".")
        shown = finished.metadata(partition)
        place = f"versions/{version}/{task}" if version else task
        assert shown["TASK"] == str(finished.new / place)
        assert shown["training_script_line"] == f"TASK={finished.new / place}"
        names = {f.name for f in load_shipped_contracts()[task].files.values()}
        assert {p.name for p in Path(shown["TASK"]).iterdir()} == names


def test_the_materialization_shows_the_origin_of_each_file(finished: Migration) -> None:
    shown = finished.metadata("Copa.version_10-1")
    train, validation, _ = rows(shown["file_origins"])
    assert train["source"] == f"{LAYOUT}/Copa/mezo_gpt/version_10-1/copa_train.jsonl"
    assert (train["version"], train["inherited"], train["how"], train["rows"]) == ("version_10-1", False, "copied", 12)
    assert (validation["version"], validation["inherited"]) == ("base", True)
    assert len(train["sha256"]) == 64
    (linked, *_) = rows(finished.metadata("CB")["file_origins"])
    assert linked["how"] == "linked"
    assert shown["rows_train"] == 12
    assert shown["missing_files"] == 0
    assert rows(shown["ignored_versions"]) == [{"name": DISCARDED, "reason": "has 'discard' instead of a minor number"}]


def test_the_materialization_shows_the_difference_from_the_original(finished: Migration) -> None:
    shown = finished.metadata("Copa.version_1")
    by_split = {row["split"]: row for row in rows(shown["difference_from_original"])}
    train = by_split["train"]
    assert 0 < train["changed"] == shown["rows_changed_train"]
    assert train["changed"] + train["unchanged"] == 12
    assert shown["labels_changed_train"] == 0
    assert shown["rows_changed_validation"] == 0


def test_the_page_of_the_asset_shows_the_expected_files(finished: Migration) -> None:
    (spec,) = (s for s in finished.definitions.resolve_all_asset_specs() if s.key.path[-1] == TASK_FOLDER)
    assert "| Copa | all | copy | copa_train.jsonl, copa_validation.jsonl, copa_test.jsonl |" in (
        spec.description or ""
    )
    assert "| CB | base | symlink |" in (spec.description or "")
    assert spec.kinds == {"json", "file"}


def test_files_that_the_trainer_never_reads_are_named(tmp_path: Path) -> None:
    home = tmp_path
    project(home, ["Copa"])
    (home / "old" / LAYOUT / "Copa" / "copa_train_all.jsonl").write_text("{}\n")
    with migration(home, {"Copa": {}}) as made:
        assert made.run().success
        shown = made.metadata("Copa")
        assert rows(shown["unread_files"]) == [{"file": "copa_train_all.jsonl"}]
        assert not (made.new / "Copa" / "copa_train_all.jsonl").exists()


@pytest.fixture
def copied(finished: Migration, tmp_path: Path) -> Iterator[Migration]:
    """Return another project with the same trees and artifacts, which a test may change."""
    for name in ("old", "original", "new", "artifacts"):
        shutil.copytree(finished.home / name, tmp_path / name, symlinks=True)
    with migration(tmp_path, {**ALL, "Copa": {"version": "all"}, "CB": {"mode": "symlink"}}) as made:
        yield made


def inodes(folder: Path) -> dict[str, int]:
    return {
        str(p): p.lstat().st_ino
        for p in folder.rglob("*")
        if not p.is_dir() and not {".staging", ".findings"} & {*p.parts}
    }


def test_a_second_run_does_nothing(copied: Migration) -> None:
    assert copied.stale() == {}
    before = {**inodes(copied.home / "new"), **inodes(copied.home / "artifacts")}
    outcome = copied.run()
    assert outcome.success
    assert {**inodes(copied.home / "new"), **inodes(copied.home / "artifacts")} == before
    events = outcome.get_asset_materialization_events()
    assert len(events) == len(copied.partitions)
    assert all(event.materialization.metadata["reused"].value is True for event in events)


def test_only_changes_in_the_old_project_are_migrated_again(copied: Migration) -> None:
    edit(copied.declaration.old_tasks / "RTE" / "rte_train.jsonl", put(1, premise="Another premise."))
    assert copied.stale() == {"tasks/task_folder/RTE": f"its source changed: {LAYOUT}/RTE/rte_train.jsonl"}
    # Delete the migrated file, so that the run must write it again.
    (copied.new / "RTE" / "rte_train.jsonl").unlink()
    before = inodes(copied.home / "new")
    assert copied.run().success
    after = inodes(copied.home / "new")
    assert {Path(p).name for p in after if before.get(p) != after[p]} == {"rte_train.jsonl"}
    assert [p for p in copied.partitions if not copied.metadata(p)["reused"]] == ["RTE"]


def test_a_new_version_becomes_a_partition_when_the_definitions_are_reloaded(copied: Migration) -> None:
    versions = copied.declaration.old_tasks / "Copa" / "mezo_gpt"
    shutil.copytree(versions / "version_1", versions / "version_11")
    assert "Copa.version_11" in copied.partitions
    assert copied.stale() == {"tasks/task_folder/Copa.version_11": "missing"}
    assert copied.run("Copa.version_11").success
    assert "Copa.version_11" in copied.materialized()


def test_everything_verifies_offline_and_a_flipped_byte_is_named(copied: Migration) -> None:
    verdicts = list(verify_path(copied.home / "artifacts"))
    assert len(verdicts) == len(copied.partitions)
    assert [v for v in verdicts if v.defects] == []
    record = copied.declaration.artifact(TASK_FOLDER, "RTE").directory(copied.home / "artifacts") / "migration.json"
    data = record.read_bytes()
    record.write_bytes(data.replace(b'"copied"', b'"linked"', 1))
    (bad,) = (v for v in verify_path(copied.home / "artifacts") if v.defects)
    assert bad.name.endswith("task_folder/RTE")


def test_the_summary_has_the_line_for_every_training_script(finished: Migration) -> None:
    lines = finished.component.summary(finished.store)
    assert len(lines) == 1 + len(finished.partitions)
    (folder,) = [loss for loss in find_losses(finished.component.specs, finished.store) if loss.unit == "folder"]
    assert (folder.part, dict(folder.files)) == ("Copa", {DISCARDED: 1})
    assert folder.kind.startswith("has 'discard' instead of a minor number")
    assert finished.component.describe_state(finished.store) == lines
    copa = next(line for line in lines if line.startswith("Copa.version_10-1"))
    assert copa.endswith(f"TASK={finished.new}/versions/version_10-1/Copa")
    assert copa.split()[1:4] == ["version_10-1", "3", "23"]


def test_a_removed_task_has_no_line_for_a_training_script(tmp_path: Path) -> None:
    project(tmp_path, ["Copa", "RTE"])
    with migration(tmp_path, {"Copa": {}, "RTE": {}}) as made:
        assert made.run().success
        shutil.rmtree(made.new / "RTE")
        copa, rte = made.component.summary(made.store)[1:3]
    assert "TASK=" in copa
    assert rte.endswith(f"its folder is missing: {made.new / 'RTE'}")
    assert "TASK=" not in rte


# --- one broken task


def test_only_a_broken_task_fails_and_is_named_and_the_others_are_materialized(tmp_path: Path) -> None:
    project(tmp_path, ["Copa", "CB", "RTE"])
    theirs = tmp_path / "new" / LAYOUT / "CB" / "cb_train.jsonl"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("somebody's own file\n")
    with migration(tmp_path, {"Copa": {"version": "version_77"}, "CB": {}, "RTE": {}}) as made:
        outcome = made.run()
        assert not outcome.success
        told = failure_of(outcome)
        assert_names(told, "2 of 3 tasks")
        assert (
            "tasks.Copa.version: version_77: unknown version. Available: version_1, version_9-2, version_10-1" in told
        )
        # The error has the partition's name as a prefix only once, because only the step's failure message adds it.
        assert "kept. CB: cb_train.jsonl in" in told
        assert made.materialized() == {"RTE"}
        assert theirs.read_text() == "somebody's own file\n"
        assert list(made.stale()) == ["tasks/task_folder/Copa", "tasks/task_folder/CB"]
    theirs.unlink()
    with migration(tmp_path, {"CB": {}, "RTE": {}}) as made:
        assert made.run().success
        assert made.metadata("RTE")["reused"]


def test_a_task_without_its_versions_is_one_failed_partition(tmp_path: Path) -> None:
    project(tmp_path, ["Copa", "CB"])
    with migration(tmp_path, {"CB": {"version": "all"}, "Copa": {"version": "latest"}}) as made:
        assert made.partitions == ["CB", "Copa"]
        outcome = made.run()
        assert_names(failure_of(outcome), "`versions_in`")
        assert made.materialized() == {"Copa"}
        assert made.metadata("Copa")["version"] == "version_10-1"


def test_a_machine_without_the_projects_loads_and_each_task_names_what_is_missing(tmp_path: Path) -> None:
    with migration(tmp_path, ALL) as made:
        assert set(made.partitions) == set(TASKS)
        assert len(made.stale()) == 6
        outcome = made.run()
        assert not outcome.success
        found = evaluations(outcome)
        assert failed(found) == {FILES}
        missing = {r["task"]: r["first_defect"] for r in rows(found[FILES].metadata["table"].value)}
        assert set(missing) == set(TASKS)
        assert_names(missing["Copa"], f"{LAYOUT}/Copa")


# --- the real data


REAL: dict[str, dict[str, Any]] = {
    "base": {"version": "base", "mode": "copy"},
    "latest": {"version": "latest", "mode": "symlink"},
    "all": {"version": "all", "mode": "copy"},
}


@pytest.mark.slow
@pytest.mark.shared
def test_the_real_tree_migrates_twice_and_fails_exactly_the_expected_checks(shared: Path, tmp_path: Path) -> None:
    real = shared / "data" / "tasks"
    for name, wish in REAL.items():
        home = tmp_path / name
        home.mkdir()
        os.symlink(real / "old", home / "old")
        wanted = {"Copa": wish, "CB": {"mode": wish["mode"]}}
        with migration(home, wanted, original=str(real / "original"), contracts={}) as made:
            outcome = made.run()
            assert outcome.success, failure_of(outcome)
            found = evaluations(outcome)
            # The data has 700 rows. The repeated ids of 300 rows cause only a warning.
            expected = {ROWS} if name == "all" else set()
            assert failed(found) == expected
            verdicts = {r["task"]: r["verdict"] for r in rows(found[ROWS].metadata["table"].value)}
            bad = {task: verdict for task, verdict in verdicts.items() if verdict != "passes"}
            assert bad == ({"Copa.version_4-3": "warns"} if name == "all" else {})
            shown = {p: made.metadata(p) for p in made.partitions}
            assert sum(s["rows_changed_train"] for p, s in shown.items() if p == "CB") == 146
            if name == "all":
                assert len(shown) == 25
                assert shown["Copa.version_4-3"]["rows_train"] == 700
                assert {p for p, s in shown.items() if p != "CB" and s["rows_train"] != 400} == {"Copa.version_4-3"}
            elif name == "latest":
                assert shown["Copa"]["version"] == "version_13-2"
                assert [r["name"] for r in rows(shown["Copa"]["ignored_versions"])] == ["version_5-discard"]
            assert all(s["labels_changed_train"] == 0 for s in shown.values())
            again = made.run()
            assert all(e.materialization.metadata["reused"].value for e in again.get_asset_materialization_events())
            assert failed(evaluations(again)) == expected


def test_the_code_versions_of_its_assets_are_the_versions_that_built_its_artifacts(finished: Migration) -> None:
    assert differing_versions(finished.component.specs, finished.store) == {}
