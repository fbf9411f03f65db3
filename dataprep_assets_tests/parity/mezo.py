"""The MeZO trainer's own loader and prompts beside our checks: the same changed task folders through both.

Theirs run as they are: `tasks.py` and `templates.py` of a copy of the trainer, with an empty `utils` in the place of
the one that wants a GPU. A training is the same where every prompt, every candidate and the place of every right answer
are, under both sets of templates; a check may then not block, and has to where it is not the same. The folders that the
trainer's repository publishes are loaded by both, too.
"""

import argparse
import contextlib
import importlib
import io
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.tasks.contract import contract_from, shipped_contracts
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.loader import load_as_trainer
from dataprep_assets.pipelines.tasks.task_folder_proofs import TASK_PROOFS, prove_task_folder
from dataprep_assets_tests.parity.table import Row
from dataprep_assets_tests.pipelines.tasks.mutations import MUTATIONS, Mutation
from dataprep_assets_tests.pipelines.tasks.trees import Project, project, small

AREA = "task folders"
PLACES = ("PromptZO/MeZO/large_models", "large_models", ".")
"""Where a copy of the trainer may have its modules."""
MODELS = ("facebook/opt-1.3b", "meta-llama/Llama-3.2-1B")
"""The templates of some tasks depend on the name of the model."""
MODULES = ("tasks", "templates", "utils")
Trained = list[list[tuple[Any, ...]]]


def compare(folder: Path) -> list[Row]:
    """A row for each kind of mutation; `folder` is a copy of the trainer's repository."""
    rows = []
    with _original(folder) as get_task, TemporaryDirectory() as name:
        home = Path(name)
        made = project(home / "tree")
        for area in dict.fromkeys(mutation.area for mutation in MUTATIONS):
            cases = [(m, task) for m in MUTATIONS if m.area == area for task in m.tasks]
            outcomes = [
                _case(get_task, made, home / f"{area}-{number}", mutation, task)
                for number, (mutation, task) in enumerate(cases)
            ]
            rows.append(_row(area, cases, outcomes))
        rows += _published(get_task, folder / "Data")
    return rows


def _published(get_task: Callable[..., Any], data: Path) -> list[Row]:
    """Every folder below that has a train file of its task: as many samples in both, or none in both."""
    cases, differing = 0, []
    for contract in shipped_contracts().values():
        for train in sorted(data.rglob(contract.file("train").name)):
            if contract.folder not in train.parts:
                continue
            cases += 1
            with TemporaryDirectory() as name:  # of the task's name, as the loader wants it
                link = Path(name) / contract.folder
                link.symlink_to(train.parent)
                ours = load_as_trainer(str(link), contract)
                try:
                    theirs = [len(samples) for samples in _trained(get_task, str(link))[:2]]
                except Exception:  # as above
                    theirs = []
            if theirs != ([] if ours.error else list(ours.samples.values())):
                differing.append(train.parent.name)
    if not cases:
        return []
    note = f"differ: {', '.join(differing)}" if differing else "samples, or that it stops: a file is missing"
    return [Row(AREA, "published folders", cases, cases - len(differing), 0, note)]


@contextlib.contextmanager
def _original(folder: Path) -> Iterator[Callable[..., Any]]:
    """Its `get_task`, importable while this lasts."""
    place = next((folder / place for place in PLACES if (folder / place / "tasks.py").is_file()), None)
    if place is None:
        raise ConfigError(f"--mezo: {folder}: no tasks.py in any of {', '.join(PLACES)} of it")
    before, path = {name: sys.modules.pop(name, None) for name in MODULES}, list(sys.path)
    utils = types.ModuleType("utils")
    utils.temp_seed = None  # type: ignore[attr-defined]
    sys.modules["utils"] = utils
    sys.path.insert(0, str(place))
    try:
        yield importlib.import_module("tasks").get_task
    finally:
        sys.path[:] = path
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def _trained(get_task: Callable[..., Any], value: str) -> Trained:
    """All that a training and an evaluation on `TASK` read, sample by sample; raises what the trainer would."""
    found: Trained = []
    with contextlib.redirect_stdout(io.StringIO()):
        for model in MODELS:
            task = get_task(value, argparse.Namespace(model_name=model))
            template = task.get_template()
            found += [[_sample(template, sample) for sample in task.samples[split]] for split in ("train", "valid")]
    return found


def _sample(template: Any, sample: Any) -> tuple[Any, ...]:
    """What the trainer tokenizes of a sample, and the place of the right answer. Text that has no UTF-8 raises."""
    texts = [template.encode(sample), *(template.verbalize(sample, one) for one in sample.candidates)]
    return (*(text.strip(" ").encode() for text in texts), sample.candidates.index(sample.correct_candidate))


def _case(get_task: Callable[..., Any], made: Project, home: Path, mutation: Mutation, task: str) -> tuple[str, str]:
    """What the trainer does with the mutation, and what we say of it."""
    project(home, [task])
    folder = home / "old" / Path(made.old / task).relative_to(made.home / "old")
    for path in folder.glob("*.jsonl"):
        path.chmod(0o644)
    if mutation.before is not None:
        for prepared in (folder, home / "original" / task):
            mutation.before(prepared, task)
    clean = _trained(get_task, str(folder))
    value = mutation.change(folder, task) or str(folder)
    try:
        outcome = "same" if _trained(get_task, value) == clean else "other"
    except Exception:  # whatever stops the trainer stops it
        outcome = "stops"
    return outcome, _verdict(home, Path(value), value, task)


def _verdict(home: Path, folder: Path, value: str, task: str) -> str:
    judged = TaskFolder(
        folder=folder,
        contract=contract_from(small(task), task),
        task_value=value,
        reference=home / "original" / task,
        reference_name="original",
    )
    blocking = {proof.name for proof in TASK_PROOFS if proof.blocking}
    failed = {name: finding for name, finding in prove_task_folder(judged).items() if not finding.passed}
    if any(name in blocking and not finding.warning for name, finding in failed.items()):
        return "blocks"
    return "warns" if failed else "passes"


def _row(area: str, cases: list[tuple[Mutation, str]], outcomes: list[tuple[str, str]]) -> Row:
    """A case is equal where the trainer trains the same and we do not block, or neither; explained where the table of
    mutations names the check or key of the contract that says otherwise. An outcome that it does not have is neither.
    """
    equal = explained = 0
    odd, reasons = [], Counter[str]()
    for (mutation, task), (outcome, verdict) in zip(cases, outcomes, strict=True):
        if (outcome, verdict) != (mutation.loader, mutation.verdict):
            odd.append(f"{mutation.name} ({task}): {outcome}, {verdict}")
        elif (outcome == "same") != (verdict == "blocks"):
            equal += 1
        else:
            explained += 1
            reasons[f"`{mutation.named}` {mutation.verdict}: {mutation.because}"] += 1
    note = [f"{count}: {reason}" for reason, count in reasons.items()] + [f"unexplained: {one}" for one in odd]
    return Row(area=AREA, shape=area, records=len(cases), equal=equal, explained=explained, note="; ".join(note))
