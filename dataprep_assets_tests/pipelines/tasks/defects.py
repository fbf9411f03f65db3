"""Defects of a task folder, each with the proof that exists to find it and what that proof says."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataprep_assets.pipelines.tasks.contract import shipped_contracts
from dataprep_assets_tests.pipelines.tasks.trees import drop, edit, put

Change = Callable[[Path], None]


def file(task: str, split: str = "train") -> str:
    return shipped_contracts()[task].files[split].name  # type: ignore[index]


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


TRAIN_GONE = {"loads_as_trainer"}
"""What fails besides without a train file; proofs that have nothing to judge are not asked."""
TAKEN = "The trainer takes this and trains as it should, so this is a warning"
UNOPENED = "The trainer never opens this file, so this is a warning"


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
        r"cb_test.jsonl: is not a regular file",
    ),
    "closed file": (
        "Copa",
        lambda f: (f / "copa_train.jsonl").chmod(0o600),
        "readable_0644",
        set(),
        r"copa_train.jsonl: its permissions are 0600: not everyone may read it. " + TAKEN,
    ),
    "file that nobody may read": (
        "Copa",
        lambda f: (f / "copa_train.jsonl").chmod(0),
        "readable_0644",
        set() if os.geteuid() == 0 else TRAIN_GONE,
        r"copa_train.jsonl: its permissions are 0000: not everyone may read it. .*Run `chmod 644`",
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
        r"copa_train.jsonl: line 1 \(byte 0\) ends with CR LF instead of LF \(and 11 more\). " + TAKEN,
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
        r"copa_train.jsonl: line 2 \(byte \d+\) is blank. " + TAKEN,
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
        r"line 12 \(byte \d+\) is the last and is cut short. The trainer's loader leaves out lines .*Correct these",
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
        r"label 3 is not a label of",
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
        r"ARC-Challenge_test.jsonl: line 1 \(byte 0\): answer 'D' is none of its choices' labels. " + UNOPENED,
    ),
    "answer that is no choice of train": (
        "ArcC_Cloze",
        rows("ArcC_Cloze", put(1, choices={"text": ["a", "b", "c"], "label": ["A", "B", "C"]}, answerKey="D")),
        "answer_key",
        {"labels_equal_original", "loads_as_trainer"},
        r"ARC-Challenge_train.jsonl: line 1 \(byte 0\): answer 'D' is none of its choices' labels. .*stops with a V",
    ),
    "empty text": (
        "Copa",
        rows("Copa", put(2, choice2=" ")),
        "no_empty_text",
        set(),
        r"copa_train.jsonl: line 2 \(byte \d+\): choice2 is empty. The trainer takes such a row, and learns nothing",
    ),
    "empty choice": (
        "ArcC_MC",
        rows("ArcC_MC", lambda r: r[1]["choices"]["text"].__setitem__(0, "")),
        "no_empty_text",
        set(),
        r"line 2 \(byte \d+\): choices.text holds an empty text",
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
        r"copa_test.jsonl: line 4 \(byte \d+\): has the idx of line 1. " + UNOPENED,
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
