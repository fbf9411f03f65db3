"""The three checks of task folders: each fault fails its check, which names only its own task, with file and line."""

import codecs
import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets.pipelines.tasks.checks import CHECKS, CONFLICT, FILES, ROWS, check_task
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER
from dataprep_assets_tests.faults.edits import edit_receipt
from dataprep_assets_tests.pipelines.tasks.migrations import ALL, Migration, evaluations, failed, migration, rows
from dataprep_assets_tests.pipelines.tasks.trees import Project, drop, edit, foreign, project, put
from dataprep_assets_tests.project import failure_of
from dataprep_assets_tests.tools.sample.make_sample_tasks import LAYOUT

COPA, ARC = "copa_train.jsonl", "ARC-Challenge_train.jsonl"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12\n"
Change = Callable[[Path], object]
"""A change of a file."""


def raw(change: Callable[[bytes], bytes]) -> Change:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def in_rows(change: Callable[[list[dict[str, Any]]], Any]) -> Change:
    return lambda path: edit(path, change)


def choices(**values: Any) -> Change:
    return in_rows(lambda rows: rows[0]["choices"].update(values))


SCHEMA_FAULTS: dict[str, tuple[str, str, Change, str]] = {
    # Each fault has the task, the file, the change to this file in the old project, and the expected message.
    "empty": ("Copa", COPA, raw(lambda b: b""), "has no row"),
    "pointer": ("Copa", COPA, raw(lambda b: POINTER), "has no rows: the file is a Git LFS pointer"),
    "gzip": ("Copa", COPA, raw(gzip.compress), "has no rows: the file is gzip data"),
    "UTF-16": ("Copa", COPA, raw(lambda b: b.decode().encode("utf-16")), "has no rows: the file is text in UTF-16"),
    "array": (
        "Copa",
        COPA,
        raw(lambda b: b"[" + b",".join(b.splitlines()) + b"]"),
        "has no rows: the file is one JSON array",
    ),
    "byte order mark": ("Copa", COPA, raw(lambda b: codecs.BOM_UTF8 + b), ":1: the file starts with a byte order mark"),
    "not UTF-8": ("Copa", COPA, raw(lambda b: b.replace(b"The", b"\xff", 1)), ":1: not valid UTF-8 at byte"),
    "blank line": ("ArcC_MC", ARC, raw(lambda b: b + b"\n"), ":13: the line is blank"),
    "not JSON": ("CB", "cb_train.jsonl", raw(lambda b: b.replace(b"{", b"", 1)), ":1: invalid JSON at column"),
    "cut": ("CB", "cb_train.jsonl", raw(lambda b: b[:-9]), ":12: invalid JSON at column"),
    "missing key": ("RTE", "rte_train.jsonl", in_rows(drop(2, "label")), ":2: label: Field required"),
    "text for a label": ("Copa", COPA, in_rows(put(3, label="0")), ":3: label: Input should be a valid integer"),
    "true for a label": ("Copa", COPA, in_rows(put(3, label=True)), ":3: label: Input should be a valid integer"),
    "text for a boolean": ("BOOLQ", "boolq_train.jsonl", in_rows(put(1, answer="no")), ":1: answer: Input should be"),
    "hidden label": ("Copa", COPA, in_rows(put(4, label=-1)), ":4: label: Input should be 0 or 1"),
    "label of no class": ("CB", "cb_test.jsonl", in_rows(put(1, label=7)), ":1: label: Input should be 0, 1, 2 or -1"),
    "fixed value": ("Copa", COPA, in_rows(put(3, question="why")), ":3: question: Input should be 'cause' or 'effect'"),
    "empty text": ("Copa", COPA, in_rows(put(3, choice1=" ")), ":3: choice1: String should have at least 1 character"),
    "answer": (
        "ArcC_MC",
        ARC,
        in_rows(put(1, answerKey="E")),
        ":1: answerKey: is not one of the labels of the row's choices",
    ),
    "choice texts": ("ArcC_Cloze", ARC, choices(text=["only one"]), ":1: choices.text: has 1 choice text, but"),
    "few choices": (
        "ArcC_MC",
        ARC,
        choices(text=["a"], label=["A"]),
        ":1: choices.label: has 1 choice, but the contract allows 3 to 5",
    ),
    "one label twice": (
        "ArcC_MC",
        ARC,
        choices(text=["a"] * 3, label=["A"] * 3),
        ":1: choices.label: two choices have",
    ),
    "nested type": ("ArcC_MC", ARC, choices(text="a"), ":1: choices.text: Input should be a valid list"),
}
WARNINGS: dict[str, tuple[Change, str]] = {
    "line ends": (raw(lambda b: b.replace(b"\n", b"\r\n")), ":1: the line end is not LF"),
    "last line end": (raw(lambda b: b[:-1]), ":12: the last line has no line end"),
    "another key": (in_rows(put(3, note="extra")), ":3: note: is not in the contract"),
    "repeated id": (in_rows(put(4, idx=0)), ":4: has the same idx as line 1"),
    "another number of rows": (in_rows(lambda rows: rows[:-1]), ": has 11 rows, but the contract allows 12"),
}


@pytest.mark.parametrize("name", SCHEMA_FAULTS)
def test_a_row_that_violates_the_schema_fails_with_file_and_line(tree: Project, name: str) -> None:
    task, file, change, text = SCHEMA_FAULTS[name]
    change(tree.old / task / file)
    declaration = tree.declared({task: {}, "RTE": {}} if task != "RTE" else {"RTE": {}})
    tree.migrate(declaration)
    found = check_task(declaration, tree.store, task)
    assert (found[FILES], found[CONFLICT]) == ([], [])
    (fault, *_) = [fault for fault in found[ROWS] if not fault.warns]
    assert fault.text.startswith(f"{file}: {text}" if text[0] != ":" else file + text)
    assert task == "RTE" or tree.faults(declaration, "RTE") == {}


@pytest.mark.parametrize("name", WARNINGS)
def test_defects_that_leave_the_data_usable_only_warn(tree: Project, name: str) -> None:
    change, text = WARNINGS[name]
    change(tree.old / "Copa" / COPA)
    declaration = tree.declared({"Copa": {}})
    tree.migrate(declaration)
    found = check_task(declaration, tree.store, "Copa")[ROWS]
    assert found
    assert all(fault.warns for fault in found)
    assert found[0].text.startswith(COPA + text)


@pytest.mark.parametrize(("extra_keys", "warns"), [("allowed", None), ("warned", True), ("refused", False)])
def test_other_keys_are_allowed_as_the_contract_declares(tree: Project, extra_keys: str, warns: bool | None) -> None:
    edit(tree.old / "Copa" / COPA, put(3, note="extra", _other=1))
    contract = {"like": "Copa", "extra_keys": extra_keys, "files": {s: {"rows": ()} for s in ("train", "validation")}}
    declaration = tree.declared({"Copa": {}}, contracts={"Copa": {**contract}})
    tree.migrate(declaration)
    found = [fault for fault in check_task(declaration, tree.store, "Copa")[ROWS] if COPA in fault.text]
    assert [fault.warns for fault in found] == ([] if warns is None else [warns, warns])


FILE_FAULTS: dict[str, tuple[Change, str, bool]] = {
    "missing": (Path.unlink, "missing in", False),
    "other case": (
        lambda p: p.rename(p.with_name("Copa_train.jsonl")),
        "(Copa_train.jsonl exists: names are case-sensitive)",
        False,
    ),
    "broken link": (lambda p: (p.unlink(), p.symlink_to("gone.jsonl")), "a broken link in", False),
    "folder": (lambda p: (p.unlink(), p.mkdir()), "not a regular file in", False),
    "permissions": (lambda p: p.chmod(0o600), "its permissions are 0600, not 0644", True),
    "nobody may read it": (lambda p: p.chmod(0), "its permissions are 0000: not readable by this user", False),
    "edited": (in_rows(put(1, premise="Edited here.")), "sha256", False),
    "a link now": (lambda p: p.symlink_to(p.rename(p.with_name("kept")).name), "was copied, but is now a link", True),
}


@pytest.mark.parametrize("name", FILE_FAULTS)
def test_a_file_that_contradicts_its_receipt_fails(tree: Project, name: str) -> None:
    change, text, warns = FILE_FAULTS[name]
    declaration = tree.declared({"Copa": {}})
    tree.migrate(declaration)
    change(tree.new / "Copa" / COPA)
    (fault,) = check_task(declaration, tree.store, "Copa")[FILES]
    assert fault.text.startswith(f"{COPA}: ")
    assert text in fault.text
    assert fault.warns == warns
    # A migration also refuses to replace the target if it is an edited file or a folder.
    assert bool(tree.faults(declaration, "Copa").get(CONFLICT)) == (name in ("edited", "folder"))


def test_a_changed_source_of_a_link_is_found(tree: Project) -> None:
    declaration = tree.declared({"Copa": {"mode": "symlink", "version": "latest"}})
    tree.migrate(declaration)
    edit(tree.old / "Copa/mezo_gpt/version_10-1" / COPA, put(1, premise="Another premise."))
    assert "linked from" in tree.faults(declaration, "Copa")[FILES][0]


def test_a_conflict_fails_its_check(tree: Project) -> None:
    foreign(tree)
    assert CONFLICT in tree.faults(tree.declared({"Copa": {}}), "Copa")


# --- checks run by Dagster


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return both projects with every task migrated."""
    home = tmp_path_factory.mktemp("pristine")
    project(home)
    with migration(home, ALL) as made:
        outcome = made.run()
        assert outcome.success, failure_of(outcome)
        assert set(evaluations(outcome)) == {check.name for check in CHECKS}
        assert failed(evaluations(outcome)) == set()
    return home


@pytest.fixture
def made(pristine: Path, tmp_path: Path) -> Iterator[Migration]:
    """Return a copy of both projects and the artifacts, which a test may break."""
    for name in ("old", "original", "new", "artifacts"):
        shutil.copytree(pristine / name, tmp_path / name, symlinks=True)
    with migration(tmp_path, ALL) as copied:
        yield copied


def verdicts(result: dg.AssetCheckEvaluation) -> dict[str, str]:
    return {row["task"]: row["verdict"] for row in rows(result.metadata["table"].value)}


def test_several_bad_tasks_are_all_named_failures_first_and_a_warning_is_no_error(made: Migration) -> None:
    raw(lambda b: b[:-1])(made.new / "Copa" / COPA)
    assert made.check()[ROWS].severity == dg.AssetCheckSeverity.WARN
    raw(lambda b: b + b"\n\n")(made.new / "ArcC_MC" / ARC)
    result = made.check()[ROWS]
    assert result.severity == dg.AssetCheckSeverity.ERROR
    assert str(result.description).startswith(f"ArcC_MC: {ARC}:13: the line is blank (and 2 more).")
    assert str(result.description).endswith("Tasks with faults: ArcC_MC, Copa.")
    bad = {task: verdict for task, verdict in verdicts(result).items() if verdict != "passes"}
    assert bad == {"ArcC_MC": "fails", "Copa": "warns"}


def test_a_blocking_fault_stops_the_run_and_a_warning_does_not(made: Migration) -> None:
    edit(made.declaration.old_tasks / "Copa" / COPA, lambda r: [*r, {**r[0], "premise": "Again."}])
    outcome = made.run()
    assert outcome.success
    assert failed(evaluations(outcome)) == {ROWS}
    edit(made.declaration.old_tasks / "Copa" / COPA, put(1, label=-1))
    outcome = made.run()
    assert not outcome.success
    assert ROWS in failure_of(outcome)


def test_a_missing_migration_is_reported_once(pristine: Path, tmp_path: Path) -> None:
    for name in ("old", "original"):
        shutil.copytree(pristine / name, tmp_path / name)
    with migration(tmp_path, {"Copa": {}, "CB": {}}) as made:
        found = made.check()
        assert set(found) == {FILES}
        assert verdicts(found[FILES]) == {"Copa": "fails", "CB": "fails"}
        outcome = made.run("Copa")
        assert outcome.success
        found = evaluations(outcome)
        assert failed(found) == set()
        assert verdicts(found[ROWS]) == {"Copa": "passes", "CB": "not migrated yet"}


def test_a_manually_copied_folder_has_its_rows_checked_without_a_receipt(made: Migration) -> None:
    shutil.rmtree(made.declaration.artifact(TASK_FOLDER, "RTE").directory(made.home / "artifacts"))
    edit(made.new / "RTE/rte_train.jsonl", put(1, label=5))
    found = made.check()
    assert verdicts(found[FILES])["RTE"] == verdicts(found[ROWS])["RTE"] == "fails"


def alter(path: Path) -> None:
    path.write_text(path.read_text().replace('"CB"', '"BC"'))


def of_other_rows(path: Path) -> None:
    edit_receipt(path, lambda receipt: receipt["facts"]["rows"].update(train=1))


def of_other_inputs(path: Path) -> None:
    edit_receipt(path, lambda receipt: receipt["inputs"].update({next(iter(receipt["inputs"])): "0" * 64}))


def of_another_key(path: Path) -> None:
    edit_receipt(path, lambda receipt: receipt.update(key="0" * 64))


@pytest.mark.parametrize("change", [alter, of_other_rows, of_other_inputs, of_another_key])
def test_a_damaged_receipt_fails_for_its_task_only(made: Migration, change: Change) -> None:
    change(made.declaration.artifact(TASK_FOLDER, "CB").directory(made.home / "artifacts") / "receipt.json")
    found = made.check()
    assert FILES in failed(found)
    assert {task for task, verdict in verdicts(found[FILES]).items() if verdict != "passes"} == {"CB"}


def test_a_sensitive_migration_shows_no_value_and_no_key_and_keeps_its_copies_private(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "k" * 32)
    for name in ("old", "original"):
        shutil.copytree(pristine / name, tmp_path / name)
    edit(tmp_path / "old" / LAYOUT / "Copa" / COPA, put(1, label=4711, **{"Jane Doe": "born"}))
    with migration(tmp_path, {"Copa": {}, "CB": {}}, sensitive=True, source_key={"env": "SOME_KEY"}) as made:
        made.run()
        (made.new / "CB" / "cb_train.jsonl").chmod(0o644)
        found = made.check()
        assert failed(found) == {FILES, ROWS}
        assert str(found[FILES].description).startswith("failed at task CB")
        shown = json.dumps([(e.description, str(e.metadata)) for e in found.values()])
        assert "4711" not in shown
        assert "Jane" not in shown
        assert (made.new / "Copa" / COPA).stat().st_mode & 0o777 == 0o600
