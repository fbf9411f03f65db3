"""Each mutation of a task folder is told as the table says, and our model of the loader agrees with the original.

What the original does (the table's column `loader`) is proved by the parity report, which needs its code.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.pipelines.tasks.contract import TaskContract, value_at
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.loader import LOADED, Load, load_as_trainer
from dataprep_assets.pipelines.tasks.task_folder_proofs import TASK_PROOFS, prove_task_folder
from dataprep_assets_tests.pipelines.tasks.mutations import MUTATIONS, Mutation

BLOCKING = {proof.name for proof in TASK_PROOFS if proof.blocking}


def verdicts(task: TaskFolder) -> dict[str, str]:
    """What each check that fails says of a folder."""
    return {
        name: "blocks" if name in BLOCKING and not finding.warning else "warns"
        for name, finding in prove_task_folder(task).items()
        if not finding.passed
    }


def verdict_of(said: dict[str, str]) -> str:
    """What a run would say of a folder of which its checks say this."""
    return "blocks" if "blocks" in said.values() else "warns" if said else "passes"


def trained(load: Load, contract: TaskContract) -> dict[str, list[tuple[Any, ...]]]:
    """What is trained, a number spelled as the trainer spells it in a prompt."""

    def spelled(path: str, value: Any) -> Any:
        if path not in contract.loader.formatted:
            return value
        return [str(one) for one in value] if isinstance(value, list) else str(value)

    return {
        split: [
            (*(spelled(path, value_at(sample.row, path)) for path in contract.prompted), sample.label)
            for sample in load.trained.get(split, ())
        ]
        for split in LOADED
    }


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[f"{m.area}: {m.name}: {m.tasks[0]}" for m in MUTATIONS])
def test_a_mutation_is_told_as_what_the_trainer_makes_of_it(
    folder: Callable[[str], TaskFolder], tmp_path: Path, mutation: Mutation
) -> None:
    for task in mutation.tasks:
        made = folder(task)
        if mutation.before is not None:
            assert made.reference is not None
            made = replace(made, reference=shutil.copytree(made.reference, tmp_path / "original" / task))
            for prepared in (made.folder, tmp_path / "original" / task):
                mutation.before(prepared, task)
        clean = load_as_trainer(made.task_value, made.contract)
        value = mutation.change(made.folder, task) or made.task_value
        made = replace(made, folder=Path(value), task_value=value)
        said = verdicts(made)
        assert verdict_of(said) == mutation.verdict, task
        if mutation.because:
            named = said.get(mutation.named)
            assert named == mutation.verdict or (not said and mutation.named in TaskContract.model_fields), task

        load = made.load
        if load.error is not None:
            assert mutation.loader == "stops", task
        elif mutation.loader == "same" and not mutation.because:
            assert load.samples == clean.samples, task
            assert trained(load, made.contract) == trained(clean, made.contract), task


def test_the_table_is_wide_and_every_exception_has_its_reason() -> None:
    cases = [(mutation.area, mutation.name, task) for mutation in MUTATIONS for task in mutation.tasks]
    assert len(cases) > 500
    assert len(cases) == len(set(cases))
    for mutation in MUTATIONS:
        agrees = (mutation.loader == "same") != (mutation.verdict == "blocks")
        assert agrees == (not mutation.because) == (not mutation.named), mutation.name
