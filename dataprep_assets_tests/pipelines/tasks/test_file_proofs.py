"""What `TASK`, permissions, links and line ends of a task folder must be, beyond a defect of each."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.task_folder_proofs import prove_task_folder
from dataprep_assets_tests.pipelines.tasks.defects import data, file
from dataprep_assets_tests.pipelines.tasks.trees import prove


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
    assert findings["readable_0644"].warning
    assert findings["line_ends"].warning
    (made.folder / file("Copa")).chmod(0o200)
    found = prove_task_folder(replace(made))["readable_0644"]
    assert not found.warning
    assert found.summary.startswith("copa_train.jsonl: its permissions are 0200"), "what blocks is told first"
    assert found.facts["taken"] == 1
