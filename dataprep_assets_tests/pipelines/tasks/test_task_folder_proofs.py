"""Every proof of a task folder fails for its own defect, names the place and the cure, and leaves the others alone."""

import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from dataprep_assets.graph.spec import Proof
from dataprep_assets.pipelines.tasks import task_folder_proofs
from dataprep_assets.pipelines.tasks.contract import shipped_contracts
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.task_folder_proofs import TASK_PROOFS, proofs_for, prove_task_folder
from dataprep_assets_tests.pipelines.tasks.defects import CASES, file
from dataprep_assets_tests.pipelines.tasks.trees import TASKS, failing, prove
from dataprep_assets_tests.sample.make_sample_tasks import jsonl


def names(proofs: Iterable[Proof]) -> set[str]:
    return {proof.name for proof in proofs}


@pytest.mark.parametrize("task", TASKS)
def test_a_good_folder_passes_everything(folder: Callable[[str], TaskFolder], task: str) -> None:
    made = folder(task)
    findings = prove_task_folder(made)
    assert failing(findings) == {}
    assert findings["loads_as_trainer"].facts == {"train_samples": 12, "validation_samples": 6, "defects": 0}
    assert set(findings) == names(proofs_for(made.contract)) - {"as_migrated"}


def test_every_proof_is_a_function_and_applies_to_some_task() -> None:
    assert all(callable(getattr(task_folder_proofs, name)) for name in names(TASK_PROOFS))
    applied = {name for contract in shipped_contracts().values() for name in names(proofs_for(contract))}
    assert applied == names(TASK_PROOFS)
    assert not {"answer_key", "choices_lengths"} & names(proofs_for(shipped_contracts()["Copa"]))
    assert not {"ids_unique", "label_domain", "question_domain"} & names(proofs_for(shipped_contracts()["BOOLQ"]))


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
    assert {name for _, _, name, _, _ in CASES.values()} | elsewhere == names(TASK_PROOFS)


def test_a_folder_that_is_not_there_fails_as_missing_files(folder: Callable[[str], TaskFolder]) -> None:
    made = folder("Copa")
    shutil.rmtree(made.folder)
    findings = prove_task_folder(made)
    assert set(failing(findings)) == {"files_present"}, "one line tells it"
    assert "copa_train.jsonl: is missing in" in findings["files_present"].summary
    assert set(findings) == {
        "task_folder_name",
        "files_present",
        "names_exact",
        "regular_or_valid_links",
        "readable_0644",
    }


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
    ("Unable to load JSONL file", "file that nobody may read", "readable_0644"),
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
    assert set().union(*CHECKLIST.values()) <= names(TASK_PROOFS)
