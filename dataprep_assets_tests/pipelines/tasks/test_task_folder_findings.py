"""Every check of task folders, made to fail through Dagster; a check without a fault here fails the suite."""

import codecs
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER
from dataprep_assets.pipelines.tasks.task_folder_proofs import TASK_PROOFS
from dataprep_assets_tests.pipelines.tasks.migrations import (
    ALL,
    Migration,
    evaluations,
    failed,
    migration,
    rows,
)
from dataprep_assets_tests.pipelines.tasks.trees import drop, edit, project, put
from dataprep_assets_tests.project import failure_of
from dataprep_assets_tests.sample.make_sample_tasks import LAYOUT

NAMES = {proof.name for proof in TASK_PROOFS}
NOT_BLOCKING = {"ids_unique", "row_counts", "validation_untouched", "no_train_text_in_validation"}
"""What is told without failing the run: data that trains as it stands."""
Change = Callable[[Path], object]
"""What is done to a task's folder, in the new project or in the old one."""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both projects, every task migrated."""
    home = tmp_path_factory.mktemp("pristine")
    project(home)
    with migration(home, ALL) as made:
        outcome = made.run()
        assert outcome.success, failure_of(outcome)
        assert set(evaluations(outcome)) == NAMES
        assert failed(evaluations(outcome)) == set()
    return home


@pytest.fixture(scope="module")
def shared_instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def made(pristine: Path, shared_instance: dg.DagsterInstance, tmp_path: Path) -> Iterator[Migration]:
    """A copy of both projects and the artifacts, which a test may break; all tests run on one instance."""
    for name in ("old", "original", "new", "artifacts"):
        shutil.copytree(pristine / name, tmp_path / name, symlinks=True)
    with migration(tmp_path, ALL) as copied:
        yield Migration(tmp_path, copied.declaration, shared_instance)


def in_file(name: str, change: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def in_rows(name: str, change: Callable[[list[dict[str, Any]]], Any]) -> Change:
    return lambda folder: edit(folder / name, change)


def leaked(folder: Path) -> None:
    """A validation row's text in train."""
    (stolen, *_) = (json.loads(line) for line in (folder / "rte_validation.jsonl").read_text().splitlines())
    edit(folder / "rte_train.jsonl", put(2, premise=stolen["premise"].upper(), hypothesis=stolen["hypothesis"]))


def other_answer(arc: list[dict[str, Any]]) -> None:
    """An answer that other questions have as a label, and this one does not."""
    arc[0]["answerKey"] = "1" if "A" in arc[0]["choices"]["label"] else "A"


def replaced(name: str, make: Callable[[Path], object]) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


NO_TRAIN = {"loads_as_trainer"}
"""What fails besides without a train file."""
COPA, ARC = "copa_train.jsonl", "ARC-Challenge_train.jsonl"

FAULTS: dict[str, tuple[str, Change, set[str]]] = {
    # check: the task, what is done to its migrated folder, which checks fail besides it and `as_migrated`
    "files_present": ("Copa", lambda f: (f / COPA).unlink(), NO_TRAIN),
    "names_exact": ("Copa", lambda f: (f / COPA).rename(f / "Copa_train.jsonl"), NO_TRAIN),
    "regular_or_valid_links": ("Copa", replaced(COPA, lambda p: p.symlink_to("gone.jsonl")), NO_TRAIN),
    "readable_0644": ("Copa", lambda f: (f / COPA).chmod(0o600), set()),
    "non_empty": ("Copa", in_file(COPA, lambda b: b""), {"row_counts", "loads_as_trainer"}),
    "utf8_no_bom": ("Copa", in_file(COPA, lambda b: codecs.BOM_UTF8 + b), {"loads_as_trainer"}),
    "line_ends": ("Copa", in_file(COPA, lambda b: b.replace(b"\n", b"\r\n")), set()),
    "no_blank_lines": ("Copa", in_file(COPA, lambda b: b + b"\n"), set()),
    "every_line_object": ("Copa", in_file(COPA, lambda b: b.replace(b"{", b"", 1)), {"loads_as_trainer"}),
    "schema": ("Copa", in_rows(COPA, put(3, note="extra")), set()),
    "label_domain": ("CB", in_rows("cb_test.jsonl", put(1, label=7)), set()),
    "question_domain": ("Copa", in_rows(COPA, put(3, question="reason")), set()),
    "answer_key": ("ArcC_MC", in_rows(ARC, other_answer), {"labels_equal_original", "loads_as_trainer"}),
    "choices_lengths": ("ArcC_MC", in_rows(ARC, lambda r: r[0]["choices"]["text"].append("more")), set()),
    "no_empty_text": ("Copa", in_rows(COPA, put(3, choice1="")), set()),
    "ids_unique": ("Copa", in_rows("copa_test.jsonl", put(2, idx=0)), set()),
    "row_counts": ("Copa", in_rows(COPA, lambda r: r[:-1]), set()),
    "labels_equal_original": (
        "CB",
        in_rows("cb_train.jsonl", lambda r: put(1, label=(r[0]["label"] + 1) % 3)(r)),
        set(),
    ),
    "validation_untouched": ("Copa", in_rows("copa_validation.jsonl", put(1, premise="Rewritten.")), set()),
    "no_train_text_in_validation": ("RTE", leaked, set()),
    "loads_as_trainer": ("RTE", in_rows("rte_train.jsonl", drop(1, "label")), {"schema", "labels_equal_original"}),
    "as_migrated": ("BOOLQ", in_rows("boolq_train.jsonl", put(1, passage="Edited here.")), set()),
}
UNCHANGED_CONTENT = {"readable_0644"}
"""Faults that leave every byte as it was migrated."""


def test_every_check_has_a_fault() -> None:
    assert {*FAULTS, "task_folder_name"} == NAMES


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_migrated_folder_fails_its_check_and_names_the_task(made: Migration, name: str) -> None:
    task, change, more = FAULTS[name]
    change(made.new / task)
    found = made.check()
    assert set(found) == NAMES
    touched = set() if name in UNCHANGED_CONTENT else {"as_migrated"}
    assert failed(found) == {name, *more, *touched}
    result = found[name]
    assert str(result.description).startswith(f"1 of {result.metadata['tasks_judged'].value} tasks: {task}. {task}: ")
    table = rows(result.metadata["table"].value)
    assert {row["task"] for row in table if row["verdict"] != "passes"} == {task}
    assert table[0]["task"] == task
    assert result.blocking == (name not in NOT_BLOCKING)


def test_a_folder_that_is_not_named_as_the_task_fails(made: Migration) -> None:
    # a declaration is refused when it says so: this one was changed behind its validation
    contract = made.declaration.contract("Copa")
    made.declaration._contracts["Copa"] = contract.model_copy(update={"folder": "version_1"})
    found = made.check()
    assert failed(found) == {"task_folder_name", "loads_as_trainer"}
    assert "/Copa ends with 'Copa', which names no task" in str(found["task_folder_name"].description)
    assert "a version goes above it, as in versions/version_1/" in str(found["task_folder_name"].description)


# --- migrations that were not made, or whose artifact is damaged


def test_a_migration_that_was_never_made_is_told_once(pristine: Path, tmp_path: Path) -> None:
    for name in ("old", "original"):
        shutil.copytree(pristine / name, tmp_path / name)
    with migration(tmp_path, {"Copa": {}, "CB": {}}) as made:
        found = made.check()
        assert set(found) == {"as_migrated"}
        result = found["as_migrated"]
        assert str(result.description).startswith("2 of 2 tasks: Copa, CB. Copa: was never migrated")
        assert "Materialize it" in str(result.description)
        assert result.severity == dg.AssetCheckSeverity.ERROR


def test_a_folder_that_a_person_copied_is_judged_and_told_that_it_has_no_record(made: Migration) -> None:
    shutil.rmtree(made.declaration.artifact(TASK_FOLDER, "RTE").directory(made.home / "artifacts"))
    found = made.check()
    assert failed(found) == {"as_migrated"}
    assert "RTE: there is no record of a migration. Migrate this task first" in str(found["as_migrated"].description)


def test_a_run_about_one_task_does_not_fail_for_those_that_wait(pristine: Path, tmp_path: Path) -> None:
    for name in ("old", "original"):
        shutil.copytree(pristine / name, tmp_path / name)
    with migration(tmp_path, {"Copa": {}, "ArcC_MC": {}}) as made:
        outcome = made.run("Copa")
        assert outcome.success
        found = evaluations(outcome)
        assert failed(found) == set()
        # nothing that they are about is there yet: skipped, neither passed nor failed
        assert {"answer_key", "choices_lengths"} & set(found) == set()
        assert found["schema"].metadata["tasks_not_migrated_yet"].value == 1
        assert {r["task"]: r["verdict"] for r in rows(found["schema"].metadata["table"].value)} == {
            "Copa": "passes",
            "ArcC_MC": "not migrated yet",
        }
        assert {"answer_key", "choices_lengths"} <= set(evaluations(made.run("ArcC_MC")))


def test_a_damaged_receipt_fails_the_checks_for_its_task_alone(made: Migration) -> None:
    path = made.declaration.artifact(TASK_FOLDER, "CB").directory(made.home / "artifacts") / "receipt.json"
    path.write_text(path.read_text().replace('"CB"', '"BC"'))
    found = made.check()
    assert failed(found) == {"as_migrated"}
    assert "the receipt was altered" in str(found["as_migrated"].description)
    table = rows(found["as_migrated"].metadata["table"].value)
    assert {r["task"] for r in table if r["verdict"] != "passes"} == {"CB"}


def test_several_bad_tasks_are_all_named_and_a_warning_is_no_error(made: Migration) -> None:
    (made.new / "Copa" / COPA).write_bytes((made.new / "Copa" / COPA).read_bytes()[:-1])
    found = made.check()
    assert found["line_ends"].severity == dg.AssetCheckSeverity.WARN
    in_file(COPA, lambda b: b + b"\n\n")(made.new / "Copa")
    in_file(ARC, lambda b: b + b"\n\n")(made.new / "ArcC_MC")
    result = made.check()["no_blank_lines"]
    assert result.severity == dg.AssetCheckSeverity.ERROR
    assert str(result.description).startswith(f"2 of 6 tasks: ArcC_MC, Copa. ArcC_MC: {ARC}: line 13")
    table = rows(result.metadata["table"].value)
    assert [(r["task"], r["verdict"]) for r in table[:2]] == [("ArcC_MC", "fails")] * 2
    assert "is blank (and 1 more). The trainer's loader stops at blank lines" in table[0]["what"]
    assert table[2]["what"].startswith(f"{ARC}: line 14 ")
    assert {r["task"] for r in table if r["verdict"] == "warns"} == {"Copa"}


def test_a_blocking_check_stops_the_run_and_a_report_does_not(made: Migration) -> None:
    edit(made.declaration.old_tasks / "Copa" / COPA, lambda r: [*r, {**r[0], "premise": "Again."}])
    (made.new / "Copa" / COPA).unlink()
    outcome = made.run()
    assert outcome.success
    assert failed(evaluations(outcome)) == {"ids_unique", "row_counts"}
    edit(made.declaration.old_tasks / "Copa" / COPA, put(1, label=-1))
    (made.new / "Copa" / COPA).unlink()
    outcome = made.run()
    assert not outcome.success
    assert "label_domain" in failure_of(outcome)


def test_a_sensitive_migration_shows_no_label(made: Migration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "k" * 32)
    edit(made.new / "Copa" / COPA, put(1, label=4711))
    assert "4711" in str(made.check()["label_domain"].description)
    with migration(tmp_path, ALL, sensitive=True, source_key={"env": "SOME_KEY"}) as quiet:
        found = quiet.check()
        assert "label_domain" in failed(found)
        assert "4711" not in str([(e.description, e.metadata) for e in found.values()])


# --- what is wrong in the old project


def two_of_one_id(folder: Path) -> None:
    edit(folder / COPA, put(4, idx=0))


BAD_INPUT: dict[str, tuple[Change, str, set[str], str]] = {
    # what is wrong in the old project: how, the check that says so, which others fail with it, the words
    "missing folder": (shutil.rmtree, "files_present", set(), f"the folder {LAYOUT}/Copa is not there"),
    "missing file": (lambda f: (f / COPA).unlink(), "files_present", NO_TRAIN, "is missing in"),
    "wrong case": (
        lambda f: (f / COPA).rename(f / "Copa_Train.jsonl"),
        "names_exact",
        {"files_present", *NO_TRAIN},
        "it is named Copa_Train.jsonl there; rename it: case counts",
    ),
    "broken link": (
        replaced(COPA, lambda p: p.symlink_to("gone.jsonl")),
        "regular_or_valid_links",
        {"files_present", *NO_TRAIN},
        "is a link to gone.jsonl, which is not there",
    ),
    "directory in place of a file": (
        replaced(COPA, Path.mkdir),
        "regular_or_valid_links",
        {"files_present", *NO_TRAIN},
        "is a folder, not a file",
    ),
    "empty": (in_file(COPA, lambda b: b""), "non_empty", {"row_counts", "loads_as_trainer"}, f"{COPA}: is empty"),
    "byte order mark": (
        in_file(COPA, lambda b: codecs.BOM_UTF8 + b),
        "utf8_no_bom",
        {"loads_as_trainer"},
        "line 1 (byte 0) starts with a byte order mark",
    ),
    "duplicate idx": (two_of_one_id, "ids_unique", {"labels_equal_original"}, "has the idx of line 1"),
    "label as string": (
        in_rows(COPA, put(5, label="1")),
        "schema",
        {"labels_equal_original", "loads_as_trainer"},
        "'label' is a string, not integer",
    ),
    "hidden labels in train": (
        in_rows(COPA, lambda r: [row.update(label=-1) for row in r] and r),
        "label_domain",
        {"labels_equal_original", "loads_as_trainer"},
        "label -1 is a hidden label",
    ),
}


@pytest.mark.parametrize("defect", BAD_INPUT)
def test_bad_input_fails_the_right_check_and_no_other_task(
    pristine: Path, shared_instance: dg.DagsterInstance, tmp_path: Path, defect: str
) -> None:
    change, name, more, words = BAD_INPUT[defect]
    for folder in ("old", "original"):
        shutil.copytree(pristine / folder, tmp_path / folder)
    change(tmp_path / "old" / LAYOUT / "Copa")
    with migration(tmp_path, {"CB": {}, "Copa": {}, "RTE": {}}) as alone:
        made = Migration(tmp_path, alone.declaration, shared_instance)
        found = evaluations(made.run())
    assert failed(found) == {name, *more}
    assert found[name].severity == dg.AssetCheckSeverity.ERROR
    assert str(found[name].description).startswith("1 of 3 tasks: Copa. Copa: ")
    assert words in str(found[name].description)
    for result in found.values():
        bad = {row["task"] for row in rows(result.metadata["table"].value) if row["verdict"] != "passes"}
        assert bad <= {"Copa"}
    for task in ("CB", "RTE"):
        assert len(list((made.new / task).iterdir())) == 3


def test_a_file_that_only_its_owner_may_read_is_copied_for_everyone_and_told_behind_a_link(
    pristine: Path, tmp_path: Path
) -> None:
    for folder in ("old", "original"):
        shutil.copytree(pristine / folder, tmp_path / folder)
    (tmp_path / "old" / LAYOUT / "Copa" / COPA).chmod(0o600)
    with migration(tmp_path, {"Copa": {}, "CB": {}}) as made:
        assert failed(evaluations(made.run())) == set()
        assert (made.new / "Copa" / COPA).stat().st_mode & 0o777 == 0o644
    with migration(tmp_path, {"Copa": {"mode": "symlink"}, "CB": {}}, new_root="linked", storage="others") as made:
        found = evaluations(made.run())
        assert failed(found) == {"readable_0644"}
        assert "its permissions are 0600: not everyone may read it" in str(found["readable_0644"].description)


def test_an_unreadable_file_is_told(pristine: Path, tmp_path: Path) -> None:
    for folder in ("old", "original"):
        shutil.copytree(pristine / folder, tmp_path / folder)
    closed = tmp_path / "old" / LAYOUT / "Copa" / COPA
    closed.chmod(0)
    with migration(tmp_path, {"Copa": {"mode": "symlink"}, "CB": {}}) as made:
        found = evaluations(made.run())
    anyhow = os.access(closed, os.R_OK)  # the superuser reads it all the same, and the trainer's user does not
    assert failed(found) == {"readable_0644"} | (set() if anyhow else {"files_present", *NO_TRAIN})
    assert f"{COPA}" in str(found["readable_0644"].description)
    assert "permissions are 0000" in str(found["readable_0644"].description)
