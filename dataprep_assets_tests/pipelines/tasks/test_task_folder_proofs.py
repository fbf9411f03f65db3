"""Every proof of a task folder fails for its own defect, names the place and the cure, and leaves the others alone."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.pipelines.tasks import task_folder_proofs as proofs
from dataprep_assets.pipelines.tasks.contract import contract_from, shipped_contracts
from dataprep_assets.pipelines.tasks.task_folder_proofs import TASK_PROOFS, TaskFolder, proofs_for, prove_task_folder
from dataprep_assets_tests.pipelines.tasks.trees import TASKS, Project, drop, edit, failing, project, prove, put, small
from dataprep_assets_tests.sample.make_sample_tasks import jsonl

Change = Callable[[Path], None]


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return project(tmp_path_factory.mktemp("tasks"))


@pytest.fixture
def folder(originals: Project, tmp_path: Path) -> Callable[[str], TaskFolder]:
    """A task's folder that a test may damage, as the trainer would find it."""

    def make(task: str, **contract: Any) -> TaskFolder:
        target = tmp_path / task
        shutil.copytree(originals.old / task, target, ignore=shutil.ignore_patterns("mezo_gpt"))
        for path in target.iterdir():
            path.chmod(0o644)
        return TaskFolder(
            folder=target,
            contract=contract_from(small(task, **contract), task),
            task_value=str(target),
            reference=originals.home / "original" / task,
            reference_name="original",
        )

    return make


def file(task: str, split: str = "train") -> str:
    return shipped_contracts()[task].files[split].name  # type: ignore[index]


@pytest.mark.parametrize("task", TASKS)
def test_a_good_folder_passes_everything(folder: Callable[[str], TaskFolder], task: str) -> None:
    made = folder(task)
    findings = prove_task_folder(made)
    assert failing(findings) == {}
    assert findings["loads_as_trainer"].facts == {"train_samples": 12, "validation_samples": 6, "defects": 0}
    assert set(findings) == set(proofs_for(made.contract)) - {"as_migrated"}


def test_every_proof_is_a_function_and_applies_to_some_task() -> None:
    assert all(callable(getattr(proofs, name)) for name in TASK_PROOFS)
    applied = {name for contract in shipped_contracts().values() for name in proofs_for(contract)}
    assert applied == set(TASK_PROOFS)
    assert not {"answer_key", "choices_lengths"} & set(proofs_for(shipped_contracts()["Copa"]))
    assert not {"ids_unique", "label_domain", "question_domain"} & set(proofs_for(shipped_contracts()["BOOLQ"]))


def data(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def rows(task: str, change: Callable[[list[dict[str, Any]]], Any], split: str = "train") -> Change:
    return lambda folder: edit(folder / file(task, split), change)


def raw(task: str, change: Callable[[bytes], bytes], split: str = "train") -> Change:
    return lambda folder: data(folder / file(task, split), change)


def renamed(task: str, name: str) -> Change:
    return lambda folder: os.rename(folder / file(task), folder / name)


def replaced_by(task: str, make: Callable[[Path], object], split: str = "train") -> Change:
    def change(folder: Path) -> None:
        (folder / file(task, split)).unlink()
        make(folder / file(task, split))

    return change


TRAIN_GONE = {"labels_equal_original", "no_train_text_in_validation", "loads_as_trainer"}
"""Proofs that have nothing to judge, or nothing to load, without a train file."""

CASES: dict[str, tuple[str, Change, str, set[str], str]] = {
    # defect: task, change, the proof it is for, what else must fail with it, the message
    "missing file": (
        "Copa",
        lambda f: (f / "copa_train.jsonl").unlink(),
        "files_present",
        TRAIN_GONE,
        r'copa_train.jsonl: is missing .*"Train or validation JSONL file is missing. Check the path."\. Put the file',
    ),
    "missing ARC file": (
        "ArcC_MC",
        lambda f: (f / "ARC-Challenge_train.jsonl").unlink(),
        "files_present",
        TRAIN_GONE,
        r"The trainer would load 0 samples and say nothing",
    ),
    "wrong case": (
        "Copa",
        renamed("Copa", "Copa_train.jsonl"),
        "names_exact",
        TRAIN_GONE,
        r"Copa_train.jsonl: the trainer reads copa_train.jsonl and does not look at this file. The trainer would say",
    ),
    "wrong suffix": ("Copa", renamed("Copa", "copa-train.json"), "names_exact", TRAIN_GONE, r"copa-train.json: the"),
    "broken link": (
        "RTE",
        replaced_by("RTE", lambda p: p.symlink_to("nowhere.jsonl")),
        "regular_or_valid_links",
        TRAIN_GONE,
        r'rte_train.jsonl: is a link to nowhere.jsonl, which is not there. .*"Unable to load JSONL file"',
    ),
    "folder in a file's place": (
        "CB",
        replaced_by("CB", Path.mkdir),
        "regular_or_valid_links",
        TRAIN_GONE,
        r"cb_train.jsonl: is a folder",
    ),
    "link to a folder": (
        "CB",
        replaced_by("CB", lambda p: p.symlink_to(".")),
        "regular_or_valid_links",
        TRAIN_GONE,
        r"cb_train.jsonl: is a link to a folder",
    ),
    "pipe in a file's place": (
        "CB",
        replaced_by("CB", os.mkfifo, "test"),
        "regular_or_valid_links",
        set(),
        r"cb_test.jsonl: is no regular file",
    ),
    "closed file": (
        "Copa",
        lambda f: (f / "copa_train.jsonl").chmod(0o600),
        "readable_0644",
        set(),
        r"copa_train.jsonl: its permissions are 0600: not everyone may read it. .*Run `chmod 644`",
    ),
    "file that all may write": (
        "Copa",
        lambda f: (f / "copa_train.jsonl").chmod(0o666),
        "readable_0644",
        set(),
        r"its permissions are 0666, not 0644",
    ),
    "empty file": (
        "Copa",
        raw("Copa", lambda b: b""),
        "non_empty",
        {"row_counts", "loads_as_trainer"},
        r"copa_train.jsonl: is empty. The trainer's dataset is empty after loading",
    ),
    "empty test file": (
        "RTE",
        raw("RTE", lambda b: b"", "test"),
        "non_empty",
        {"row_counts"},
        r"rte_test.jsonl: is empty",
    ),
    "byte order mark": (
        "Copa",
        raw("Copa", lambda b: b"\xef\xbb\xbf" + b),
        "utf8_no_bom",
        {"loads_as_trainer"},
        r"copa_train.jsonl: line 1 \(byte 0\) starts with a byte order mark. Save the file as UTF-8",
    ),
    "latin-1": (
        "CB",
        raw("CB", lambda b: b.replace(b"chapel", b"ch\xe2pel", 1), "test"),
        "utf8_no_bom",
        set(),
        r"cb_test.jsonl: line 1 \(byte 0\) is not UTF-8 at byte \d+ of the file",
    ),
    "CR LF": (
        "Copa",
        raw("Copa", lambda b: b.replace(b"\n", b"\r\n")),
        "line_ends",
        set(),
        r"copa_train.jsonl: line 1 \(byte 0\) ends with CR LF instead of LF \(and 11 more\). Convert",
    ),
    "CR": (
        "Copa",
        raw("Copa", lambda b: b.replace(b"\n", b"\r", 1)),
        "line_ends",
        set(),
        r"ends with CR instead of LF",
    ),
    "no last line end": (
        "Copa",
        raw("Copa", lambda b: b[:-1]),
        "line_ends",
        set(),
        r"line 12 \(byte \d+\) is the last and has no line end",
    ),
    "blank line": (
        "Copa",
        raw("Copa", lambda b: b.replace(b"\n", b"\n\n", 1)),
        "no_blank_lines",
        set(),
        r"copa_train.jsonl: line 2 \(byte \d+\) is blank. The trainer's loader skips blank lines",
    ),
    "blank line of ARC": (
        "ArcC_Cloze",
        raw("ArcC_Cloze", lambda b: b + b"\n"),
        "no_blank_lines",
        {"loads_as_trainer"},
        r"line 13 \(byte \d+\) is blank. The trainer's loader stops at blank lines",
    ),
    "line cut short": (
        "Copa",
        raw("Copa", lambda b: b[:-30]),
        "every_line_object",
        {"line_ends", "loads_as_trainer"},
        r"line 12 \(byte \d+\) is the last and is cut short. The trainer's loader leaves out lines .*Mend these",
    ),
    "array for an object": (
        "RTE",
        raw("RTE", lambda b: b'["label"]\n' + b.partition(b"\n")[2]),
        "every_line_object",
        {"loads_as_trainer"},
        r"rte_train.jsonl: line 1 \(byte 0\) is an array, not an object",
    ),
    "key given twice": (
        "Copa",
        raw("Copa", lambda b: b.replace(b'"idx":0', b'"idx":0,"idx":0', 1)),
        "every_line_object",
        set(),
        r"line 1 \(byte 0\) gives key 'idx' twice",
    ),
    "missing key": (
        "Copa",
        rows("Copa", drop(3, "choice2")),
        "schema",
        {"loads_as_trainer"},
        r"line 3 \(byte \d+\): has no key 'choice2'. The contract's keys are premise \(string\)",
    ),
    "extra key": ("Copa", rows("Copa", put(4, note="x")), "schema", set(), r"line 4 .*: has a key 'note', which"),
    "label as string": (
        "Copa",
        rows("Copa", put(5, label="1")),
        "schema",
        {"loads_as_trainer", "labels_equal_original"},
        r"line 5 \(byte \d+\): 'label' is a string, not integer",
    ),
    "boolean idx": (
        "CB",
        rows("CB", put(2, idx=True)),
        "schema",
        {"labels_equal_original"},
        r"'idx' is a boolean, not i",
    ),
    "answer as string": (
        "BOOLQ",
        rows("BOOLQ", put(1, answer="False")),
        "schema",
        {"loads_as_trainer", "labels_equal_original"},
        r"boolq_train.jsonl: line 1 \(byte 0\): 'answer' is a string, not boolean",
    ),
    "SuperGLUE's boolq": (
        "BOOLQ",
        rows(
            "BOOLQ",
            lambda r: [
                {"question": x["question"], "passage": x["passage"], "idx": i, "label": 1} for i, x in enumerate(r)
            ],
        ),
        "schema",
        {"loads_as_trainer", "labels_equal_original"},
        r"line 1 \(byte 0\): has no key 'answer'",
    ),
    "texts not strings": (
        "ArcC_MC",
        rows("ArcC_MC", put(1, choices={"text": ["a", 2, "c"], "label": ["A", "B", "C"]})),
        "schema",
        set(),
        r"line 1 \(byte 0\): 'choices.text' is an array of other things, not strings",
    ),
    "hidden label in train": (
        "Copa",
        rows("Copa", put(6, label=-1)),
        "label_domain",
        {"loads_as_trainer", "labels_equal_original"},
        r"copa_train.jsonl: line 6 \(byte \d+\): label -1 is a hidden label. Allowed in train are 0, 1. A file",
    ),
    "hidden label in validation": (
        "RTE",
        rows("RTE", put(1, label=-1), "validation"),
        "label_domain",
        {"loads_as_trainer", "validation_untouched"},
        r"rte_validation.jsonl: line 1 \(byte 0\): label -1 is a hidden label",
    ),
    "label of no class in test": (
        "CB",
        rows("CB", put(1, label=3), "test"),
        "label_domain",
        set(),
        r"label 3 is no label of",
    ),
    "other question": (
        "Copa",
        rows("Copa", put(7, question="reason")),
        "question_domain",
        set(),
        r"line 7 \(byte \d+\): question is 'reason', not one of cause, effect. .*NotImplementedError",
    ),
    "answer that is no choice": (
        "ArcC_Cloze",
        rows("ArcC_Cloze", put(1, choices={"text": ["a", "b", "c"], "label": ["A", "B", "C"]}, answerKey="D"), "test"),
        "answer_key",
        set(),
        r"ARC-Challenge_test.jsonl: line 1 \(byte 0\): answer 'D' is none of its choices' labels. .*stops with a V",
    ),
    "fewer texts than labels": (
        "ArcC_MC",
        rows("ArcC_MC", lambda r: r[0]["choices"]["text"].clear(), "test"),
        "choices_lengths",
        set(),
        r"line 1 \(byte 0\): 0 texts for \d labels",
    ),
    "two choices": (
        "ArcC_MC",
        rows("ArcC_MC", put(1, choices={"text": ["a", "b"], "label": ["A", "B"]}, answerKey="A"), "test"),
        "choices_lengths",
        set(),
        r"line 1 \(byte 0\): 2 choices, not 3 to 5",
    ),
    "label of two choices": (
        "ArcC_Cloze",
        rows("ArcC_Cloze", put(1, choices={"text": ["a", "b", "c"], "label": ["A", "B", "B"]}, answerKey="A"), "test"),
        "choices_lengths",
        set(),
        r"two choices have the same label",
    ),
    "duplicate idx": (
        "Copa",
        rows("Copa", put(4, idx=0), "test"),
        "ids_unique",
        set(),
        r"copa_test.jsonl: line 4 \(byte \d+\): has the idx of line 1. Rows that occur several times",
    ),
    "lost row": (
        "Copa",
        rows("Copa", lambda r: r[:-1]),
        "row_counts",
        set(),
        r"copa_train.jsonl: 11 rows, the reference has 12",
    ),
    "changed label": (
        "CB",
        rows("CB", lambda r: put(3, label=(r[2]["label"] + 1) % 3)(r)),
        "labels_equal_original",
        set(),
        r"cb_train.jsonl: line 3 \(byte \d+\): label \d, original line 3 has \d. Take the original's labels",
    ),
    "changed answer of rows without ids": (
        "BOOLQ",
        rows("BOOLQ", lambda r: put(3, answer=not r[2]["answer"])(r)),
        "labels_equal_original",
        set(),
        r"boolq_train.jsonl: line 3 .*: label (True|False), original line 3 has (True|False)",
    ),
    "row that the original does not have": (
        "RTE",
        rows("RTE", put(2, idx=99)),
        "labels_equal_original",
        set(),
        r"rte_train.jsonl: line 2 \(byte \d+\): the original has no row of this idx",
    ),
    "rewritten validation": (
        "Copa",
        rows("Copa", put(1, premise="Another premise."), "validation"),
        "validation_untouched",
        set(),
        r"copa_validation.jsonl: sha256 [0-9a-f]{12}…, the original's is [0-9a-f]{12}…",
    ),
    "spaces in validation": (
        "CB",
        raw("CB", lambda b: b.replace(b'"idx":', b'"idx": ', 1), "validation"),
        "validation_untouched",
        set(),
        r"cb_validation.jsonl: sha256",
    ),
}


@pytest.mark.parametrize("defect", CASES)
def test_a_defect_fails_its_own_proof_and_no_unrelated_one(folder: Callable[[str], TaskFolder], defect: str) -> None:
    task, change, name, more, message = CASES[defect]
    made = folder(task)
    change(made.folder)
    found = prove(made)
    assert set(found) == {name, *more}
    assert re.search(message, found[name]), found[name]


def test_every_proof_has_a_case() -> None:
    elsewhere = {"task_folder_name", "no_train_text_in_validation", "loads_as_trainer", "as_migrated"}
    assert {name for _, _, name, _, _ in CASES.values()} | elsewhere == set(TASK_PROOFS)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{}/", "ends with a slash"),
        ("{}/version_1", "ends with 'version_1', which names no task"),
        ("{}x", "ends with 'Copax', which names no task"),
    ],
)
def test_a_task_value_that_the_loader_cannot_read_fails(
    folder: Callable[[str], TaskFolder], value: str, message: str
) -> None:
    made = folder("Copa")
    made = replace(made, task_value=value.format(made.folder))
    found = prove(made)
    assert set(found) == {"task_folder_name", "loads_as_trainer"}
    assert message in found["task_folder_name"]
    assert '"Unknown task name or path"' in found["task_folder_name"]
    assert "versions/version_1/Copa" in found["task_folder_name"]


def test_the_case_of_the_task_folder_does_not_count(folder: Callable[[str], TaskFolder]) -> None:
    made = folder("ArcC_MC")
    moved = made.folder.rename(made.folder.with_name("arcc_mc"))
    assert prove(replace(made, folder=moved, task_value=str(moved))) == {}


def test_a_train_text_in_validation_is_found_whatever_its_case_and_spaces(
    folder: Callable[[str], TaskFolder],
) -> None:
    made = folder("Copa")
    [leaked] = [json.loads((made.folder / file("Copa", "validation")).read_bytes().splitlines()[4])]
    spelled = {k: leaked[k].upper().replace(" ", "  ") for k in ("premise", "choice1", "choice2")}
    edit(made.folder / file("Copa"), put(2, **spelled))
    found = prove(made)
    assert set(found) == {"no_train_text_in_validation"}
    assert "copa_validation.jsonl: line 5 " in found["no_train_text_in_validation"]
    assert "has the text of line 2 of copa_train.jsonl. The model would be" in found["no_train_text_in_validation"]


def test_a_train_file_that_a_contract_need_not_have_is_no_samples_for_the_loader(
    folder: Callable[..., TaskFolder],
) -> None:
    made = folder("ArcC_MC")
    files = {**made.contract.files, "train": made.contract.files["train"].model_copy(update={"required": False})}
    made = replace(made, contract=made.contract.model_copy(update={"files": files}))
    (made.folder / file("ArcC_MC")).unlink()
    found = prove(made)
    assert "files_present" not in found
    assert "takes that for 0 samples without an error" in found["loads_as_trainer"]
    assert "0 train and 6 validation samples" in found["loads_as_trainer"]


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("Copa", put(3, label=2), "a row kept as an empty sample, at which training fails (first: line 3)"),
        ("RTE", put(3, label=7), "a row left out because the label or a key is wrong (first: line 3)"),
        ("BOOLQ", put(3, answer="no"), "any string that is not empty counts as Yes (first: line 3)"),
        ("ArcC_MC", put(3, answerKey="9"), "with an answer that none of the choices has (first: line 3)"),
        (
            "ArcC_Cloze",
            put(3, answerKey="9"),
            "the trainer's loader stops: ARC-Challenge_train.jsonl: line 3: ValueError",
        ),
    ],
)
def test_what_the_loader_would_do_is_told(
    folder: Callable[[str], TaskFolder], task: str, change: Callable[[list[dict[str, Any]]], None], message: str
) -> None:
    made = folder(task)
    edit(made.folder / file(task), change)
    assert message in prove(made)["loads_as_trainer"]


def test_samples_are_counted_split_by_split(folder: Callable[[str], TaskFolder]) -> None:
    made = folder("CB")
    edit(made.folder / file("CB"), lambda rows: [{**r, "label": 9} if i < 3 else r for i, r in enumerate(rows)])
    found = prove_task_folder(made)["loads_as_trainer"]
    assert (found.facts["train_samples"], found.facts["validation_samples"]) == (9, 6)
    assert found.table[0] == {"split": "train", "samples": 9, "row_dropped": 3}


def test_links_are_judged_by_their_targets(folder: Callable[[str], TaskFolder], tmp_path: Path) -> None:
    made = folder("Copa")
    moved = (made.folder / file("Copa")).rename(tmp_path / "elsewhere.jsonl")
    (made.folder / file("Copa")).symlink_to("../elsewhere.jsonl")
    moved.chmod(0o444)
    assert prove(made) == {}
    moved.chmod(0o400)
    assert set(prove(replace(made))) == {"readable_0644"}


def test_odd_permissions_and_a_last_line_without_end_are_warnings(folder: Callable[[str], TaskFolder]) -> None:
    made = folder("Copa")
    (made.folder / file("Copa")).chmod(0o664)
    data(made.folder / file("Copa"), lambda b: b[:-1])
    findings = prove_task_folder(made)
    assert findings["readable_0644"].warning
    assert findings["line_ends"].warning
    data(made.folder / file("Copa", "test"), lambda b: b.replace(b"\n", b"\r\n"))
    (made.folder / file("Copa", "test")).chmod(0o604)
    findings = prove_task_folder(replace(made))
    assert not findings["readable_0644"].warning
    assert not findings["line_ends"].warning


def test_without_an_original_nothing_is_claimed(folder: Callable[[str], TaskFolder]) -> None:
    made = replace(folder("Copa"), reference=None, reference_name=None)
    findings = prove_task_folder(made)
    assert set(failing(findings)) == {"labels_equal_original", "validation_untouched"}
    assert all(findings[n].warning for n in failing(findings))
    assert "Declare `original`, the folder that holds Copa/" in findings["labels_equal_original"].summary


def test_without_reference_counts_the_original_counts(folder: Callable[..., TaskFolder]) -> None:
    made = folder("Copa", files={s: {"rows": []} for s in ("train", "validation", "test")})
    assert prove(made) == {}
    edit(made.folder / file("Copa"), lambda rows: rows[:-2])
    assert "10 rows, the reference has 12" in prove(replace(made))["row_counts"]
    assert "neither the contract nor an original" in prove(replace(made, reference=None))["row_counts"]


def test_a_folder_that_is_not_there_fails_as_missing_files(folder: Callable[[str], TaskFolder]) -> None:
    made = folder("Copa")
    shutil.rmtree(made.folder)
    findings = prove_task_folder(made)
    assert "copa_train.jsonl: is missing in" in findings["files_present"].summary
    assert not findings["loads_as_trainer"].passed
    assert findings["schema"].warning
    assert "so nothing was judged" in findings["schema"].summary


def test_a_file_left_out_is_named(folder: Callable[[str], TaskFolder]) -> None:
    made = folder("Copa")
    (made.folder / file("Copa")).unlink()
    found = prove_task_folder(made)["schema"]
    assert found.passed
    assert found.summary.endswith("Not judged: copa_train.jsonl.")
    assert found.facts["not_judged"] == 1


def test_no_text_and_no_id_is_shown(folder: Callable[[str], TaskFolder]) -> None:
    secret = "SECRET"
    made = replace(folder("ArcC_Cloze"), sensitive=True)
    odd = {
        "id": secret,
        "question": secret,
        "choices": {"text": [secret] * 4, "label": [secret] * 3},
        "answerKey": secret,
    }
    train = (made.folder / file("ArcC_Cloze")).read_bytes()
    torn = b'{"id":"SECRET\n["SECRET"]\n{"id":"SECRET","id":"SECRET"}\n'
    (made.folder / file("ArcC_Cloze")).write_bytes(train + jsonl([odd, odd]) + torn)
    shutil.copy(made.folder / file("ArcC_Cloze"), made.folder / file("ArcC_Cloze", "validation"))
    findings = prove_task_folder(made)
    assert len(failing(findings)) > 8
    told = " ".join([f.summary + str(f.table) + str(f.facts) for f in findings.values()])
    assert secret not in told


SYMPTOMS = [
    ("Train or validation JSONL file is missing", "missing file", "files_present"),
    ("Train or validation JSONL file is missing", "wrong case", "names_exact"),
    ("Unable to load JSONL file", "closed file", "readable_0644"),
    ("Unable to load JSONL file", "broken link", "regular_or_valid_links"),
    ("dataset is empty after loading", "empty file", "non_empty"),
    ("empty dataset after loading", "byte order mark", "utf8_no_bom"),
    ("empty dataset after loading", "line cut short", "every_line_object"),
]
"""What a person sees (the seed's troubleshooting section), a defect that causes it, and the proof that says so."""


@pytest.mark.parametrize(("symptom", "defect", "name"), SYMPTOMS)
def test_a_person_who_searches_for_the_symptom_finds_cause_and_cure(
    folder: Callable[[str], TaskFolder], symptom: str, defect: str, name: str
) -> None:
    task, change, _, _, _ = CASES[defect]
    made = folder(task)
    change(made.folder)
    assert symptom in prove(made)[name]


CHECKLIST = {
    "Create the directory structure": {"files_present"},
    "Create subdirectories for each dataset": {"task_folder_name"},
    "Copy or link train files": {"files_present", "as_migrated"},
    "Copy or link validation files": {"files_present", "validation_untouched"},
    "Copy or link test files (optional)": {"regular_or_valid_links"},
    "Verify file naming": {"names_exact"},
    "Test file permissions": {"readable_0644"},
    "Verify structure": {"regular_or_valid_links", "non_empty"},
    "Test with one training script": {"loads_as_trainer"},
    "Document which version was migrated": {"as_migrated"},
}


def test_the_migration_checklist_is_covered() -> None:
    assert set().union(*CHECKLIST.values()) <= set(TASK_PROOFS)


def test_a_change_after_the_migration_is_found(tmp_path: Path) -> None:
    old = project(tmp_path)
    declaration = old.declared({"Copa": {"mode": "symlink", "version": "latest"}, "CB": {}})
    done = old.migrate(declaration)
    copa, cb = (old.folder(declaration, done[task]) for task in ("Copa", "CB"))
    assert prove(copa) == {}
    assert prove(cb) == {}
    edit(old.old / "Copa/mezo_gpt/version_10-1/copa_train.jsonl", put(1, premise="Another premise."))
    found = prove(replace(copa))
    assert set(found) == {"as_migrated"}
    assert re.search(r"sha256 \w{12}…, linked from .*/version_10-1/copa_train.jsonl was \w{12}…", found["as_migrated"])
    train = cb.folder / "cb_train.jsonl"
    kept = train.rename(train.with_name("kept"))
    train.symlink_to("kept")
    assert "cb_train.jsonl: was copied, and is a link now" in prove(replace(cb))["as_migrated"]
    kept.unlink()
    assert "and is no file now" in prove(replace(cb))["as_migrated"]
