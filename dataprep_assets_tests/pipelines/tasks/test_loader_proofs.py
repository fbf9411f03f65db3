"""What the trainer's loader would do silently is told, with the line, and its samples are counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.task_folder_proofs import prove_task_folder
from dataprep_assets_tests.pipelines.tasks.defects import file
from dataprep_assets_tests.pipelines.tasks.trees import edit, prove, put


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
        ("Copa", put(3, label=2), "1 row kept as an empty sample, at which training fails (first: line 3)"),
        ("RTE", put(3, label=7), "1 row left out because the label or a key is wrong (first: line 3)"),
        ("BOOLQ", put(3, answer="no"), "any string that is not empty counts as Yes (first: line 3)"),
        ("ArcC_MC", put(3, answerKey="9"), "whose answer is none of the choices (first: line 3)"),
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
