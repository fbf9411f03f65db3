"""Rows against the original: leaked texts whatever their spelling, and no claim without an original."""

import json
from collections.abc import Callable
from dataclasses import replace

from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.task_folder_proofs import prove_task_folder
from dataprep_assets_tests.pipelines.tasks.defects import file
from dataprep_assets_tests.pipelines.tasks.trees import edit, failing, prove, put


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


def test_without_an_original_nothing_is_claimed(folder: Callable[[str], TaskFolder]) -> None:
    made = replace(folder("Copa"), reference=None, reference_name=None)
    findings = prove_task_folder(made)
    assert set(failing(findings)) == {"labels_equal_original", "validation_untouched"}
    assert all(findings[n].warning for n in failing(findings))
    assert "Declare `original`, the folder that holds Copa/" in findings["labels_equal_original"].summary
