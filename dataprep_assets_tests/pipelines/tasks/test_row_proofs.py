"""What row counts are compared with when the contract has none, and keys that the contract does not have."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.task_folder_proofs import prove_task_folder
from dataprep_assets_tests.pipelines.tasks.defects import file
from dataprep_assets_tests.pipelines.tasks.trees import edit, prove


@pytest.mark.parametrize(("extra_keys", "verdict"), [("allowed", "passes"), ("warned", "warns"), ("refused", "blocks")])
def test_a_contract_says_what_of_keys_beside_its_own(
    folder: Callable[..., TaskFolder], extra_keys: str, verdict: str
) -> None:
    made = folder("ArcC_MC", extra_keys=extra_keys)
    edit(made.folder / file("ArcC_MC"), lambda rows: rows[0]["choices"].update(source=["x"]))
    found = prove_task_folder(made)["schema"]
    assert ("passes" if found.passed else "warns" if found.warning else "blocks") == verdict
    assert found.passed or "has a key 'choices.source', which the contract does not have" in found.summary


def test_without_reference_counts_the_original_counts(folder: Callable[..., TaskFolder]) -> None:
    made = folder("Copa", files={s: {"rows": []} for s in ("train", "validation", "test")})
    assert prove(made) == {}
    edit(made.folder / file("Copa"), lambda rows: rows[:-2])
    assert "10 rows, the reference has 12" in prove(replace(made))["row_counts"]
    assert "neither the contract nor an original" in prove(replace(made, reference=None))["row_counts"]


def test_of_a_sensitive_folder_no_key_is_shown_that_only_its_rows_have(folder: Callable[..., TaskFolder]) -> None:
    made = folder("Copa")
    path = made.folder / file("Copa")
    first, second, *others = path.read_text().splitlines(keepends=True)
    unknown = first.replace("{", '{"Jane Doe": 1, ', 1)
    path.write_text("".join([unknown, second.replace("{", '{"Jane Doe": 1, "Jane Doe": 2, ', 1), *others]))
    found = prove_task_folder(made)
    assert sum("'Jane Doe'" in finding.summary for finding in found.values()) == 2
    found = prove_task_folder(replace(made, sensitive=True))
    assert not any("Jane" in f"{finding.summary} {finding.table}" for finding in found.values())
    assert "line 1 (byte 0): has a key that the contract does not have" in found["schema"].summary
    assert [name for name, finding in found.items() if "gives a key twice" in finding.summary]
