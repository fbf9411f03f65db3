"""Simulates the trainer's loader on a task folder, including what it does silently.

The loader is not part of this project and needs the trainer's whole environment, so its rules are reproduced here from
the contract's `loader` section: how it opens files, splits and parses lines, which rows it drops, which broken rows it
keeps, where it stops. It silently accepts much (a missing ARC file gives no samples; the string "False" is Yes), so
every such act is returned with its line.

Source: Rongite/Synthetic_Data_for_ZO, `PromptZO/MeZO/large_models/tasks.py`, `get_task` and the dataset classes; the
rules and the code were compared on damaged files. Entry point: `load_as_trainer`.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dataprep_assets.pipelines.tasks.contract import LoaderRules, Split, TaskContract

SilentAct = Literal[
    "missing_file",
    "blank_line_skipped",
    "bad_line_skipped",
    "row_dropped",
    "empty_sample",
    "truth_of_no_boolean",
    "answer_not_a_choice",
]
LOADED: tuple[Split, ...] = ("train", "validation")
"""The splits that the loader reads, in its order; it never opens the test file."""
HARMLESS: frozenset[SilentAct] = frozenset({"blank_line_skipped"})
"""Acts that leave every row as a sample, as written."""


@dataclass(frozen=True, slots=True)
class Act:
    """A silent act of the loader: in which split, at which 1-based line (0: the whole file)."""

    split: Split
    line: int
    act: SilentAct


@dataclass(frozen=True, slots=True)
class Sample:
    """A row that is trained on: its 1-based line, its value, and its label as the trainer reads it."""

    line: int
    row: Mapping[str, Any]
    label: Any


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a training run would load: the samples of each split, silent acts, or why it stops.

    `samples` counts rows that are kept as an empty sample, because the loader does; `trained` are the others. `error`
    is the exception's type and what to look for; None when the loader finishes.
    """

    samples: dict[Split, int]
    acts: tuple[Act, ...]
    trained: dict[Split, tuple[Sample, ...]] = field(default_factory=dict, compare=False)
    error: str | None = None


class _StopsError(Exception):
    """The loader raises here."""


class _DroppedError(Exception):
    """The loader leaves this row out."""


def load_as_trainer(task_value: str, contract: TaskContract) -> Load:
    """Load the folder that `TASK` names as the trainer's loader does. Never raises for the content of a file."""
    samples: dict[Split, int] = {}
    trained: dict[Split, tuple[Sample, ...]] = {}
    acts: list[Act] = []
    error = None
    try:
        _same_task(task_value, contract)
        missing = [s for s in LOADED if not _path(task_value, contract, s).exists()]
        if missing and contract.loader.missing_file == "stops":
            name = contract.file(missing[0]).name
            raise _StopsError(f"{name} is not there: {contract.loader.missing_message or 'No such file or directory'}")
        for split in LOADED:
            made = _load(task_value, contract, split, acts)
            samples[split], trained[split] = len(made), tuple(sample for sample in made if sample is not None)
        if not samples["train"] and contract.loader.empty_train == "stops":
            raise _StopsError("no training sample is left: Training dataset is empty")
    except _StopsError as stop:
        error = str(stop)
    return Load(samples=samples, acts=tuple(acts), trained=trained, error=error)


def label_taken(row: Mapping[str, Any], contract: TaskContract) -> Any:
    """The label of a row as the trainer reads it, normalized; None if it makes no sample of the row.

    1, true and, where a loader takes names, "contradiction" are one label; the answer of a question whose choice texts
    are trained is the place of its choice.
    """
    try:
        # the errors that the loader itself would meet: `_sample` does with the row what the loader does
        act, label = _sample(row, contract)
    except (_DroppedError, KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None
    return label if act is None else None


def _path(task_value: str, contract: TaskContract, split: Split) -> Path:
    return Path(task_value) / contract.file(split).name


def _same_task(task_value: str, contract: TaskContract) -> None:
    """The task is what follows the last slash, in lower case, and nothing follows a trailing one."""
    last = task_value.rpartition("/")[2].lower()
    if last != contract.task or not Path(task_value).exists():
        raise _StopsError(
            f"Unknown task name or path: its last component is {last!r}, which has to be {contract.folder!r}"
        )


def _load(task_value: str, contract: TaskContract, split: Split, acts: list[Act]) -> list[Sample | None]:
    """The samples of one split; None stands for an empty one."""
    path = _path(task_value, contract, split)
    made: list[Sample | None] = []
    if not path.exists():
        acts.append(Act(split, 0, "missing_file"))
        return made
    for line, row in _values(path, contract.loader, split, acts):
        try:
            act, label = _sample(row, contract)
            made.append(Sample(line, row, label))
            if act is not None:
                acts.append(Act(split, line, act))
        except _DroppedError:
            acts.append(Act(split, line, "row_dropped"))
        except KeyError as error:
            if contract.loader.missing_key == "stops":
                raise _StopsError(f"{path.name}: line {line}: KeyError: {_key(error)}") from error
            empty = contract.loader.missing_key == "empty_sample"
            made.extend([None] if empty else [])
            acts.append(Act(split, line, "empty_sample" if empty else "row_dropped"))
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            raise _StopsError(f"{path.name}: line {line}: {type(error).__name__}") from error
    return made


def _key(error: KeyError) -> str:
    """The missing key, if it is one of a contract and not derived from a row's value."""
    return repr(error.args[0])[:40]


def _values(path: Path, rules: LoaderRules, split: Split, acts: list[Act]) -> Iterator[tuple[int, Any]]:
    """Line number and JSON value of the lines that the loader can parse, in Python's text mode."""
    try:
        # as the loader opens it: strict UTF-8, a byte order mark is part of the first line, CR and CR LF end lines, too
        with open(path, encoding="utf-8") as file:
            for line, text in enumerate(file, 1):
                stripped = text.strip()
                if not stripped and rules.blank_line == "skipped":
                    acts.append(Act(split, line, "blank_line_skipped"))
                    continue
                try:
                    value = json.loads(stripped)
                except json.JSONDecodeError as error:
                    if rules.bad_line == "stops":
                        raise _StopsError(f"{path.name}: line {line}: JSONDecodeError: {error.msg}") from error
                    acts.append(Act(split, line, "bad_line_skipped"))
                    continue
                yield line, value
    except UnicodeDecodeError as error:
        raise _StopsError(
            f"{path.name}: UnicodeDecodeError: byte {error.start} of what was read is not UTF-8"
        ) from error
    except OSError as error:
        raise _StopsError(f"{path.name}: {type(error).__name__}: {error.strerror}") from error
    # more digits than Python takes for an int, or brackets nested too deeply; JSONDecodeError was met above
    except (ValueError, RecursionError) as error:
        raise _StopsError(f"{path.name}: {type(error).__name__} in a line that is JSON") from error


def _sample(row: Any, contract: TaskContract) -> tuple[SilentAct | None, Any]:
    """Turn a row into a sample as the loader does, with Python's own rules for values of the wrong type.

    Returns what was accepted silently, if anything, and the label that is trained. Raises _DroppedError, or the
    KeyError, TypeError, ValueError, IndexError or AttributeError that the loader would meet.
    """
    for path in contract.loader.reads:
        _reach(row, path)
    rule, label = contract.loader.answer, contract.label
    if rule.rule == "choice_number":
        # looked up for its error alone: a label that names no choice is a missing key to the loader
        row[f"{rule.prefix}{row[label] + 1}"]
        return None, int(row[label])
    if rule.rule == "truth":
        value = row[label]
        return (None if _meant(value) == bool(value) else "truth_of_no_boolean"), bool(value)
    if rule.rule == "class_number":
        value = row.get(label)
        if isinstance(value, str):
            value = rule.names.get(value.lower())
        if not isinstance(value, int) or value not in rule.names.values():
            raise _DroppedError
        return None, int(value)
    if rule.rule == "member":
        if label not in row or row[label] not in rule.values:
            raise _DroppedError
        # the value as the contract writes it: `in` takes true for 1
        return None, rule.values[rule.values.index(row[label])]
    if rule.rule == "integer":
        return None, int(row[label])
    return _choice(row, contract, must_be_one=rule.rule == "choice_text")


def _meant(value: Any) -> bool | None:
    """What a value in place of a boolean was probably meant to be; None if that is unclear."""
    if isinstance(value, bool | int | float):
        return bool(value) if value in (0, 1) else None
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    return words.get(value.strip().lower()) if isinstance(value, str) else None


def _choice(row: Any, contract: TaskContract, *, must_be_one: bool) -> tuple[SilentAct | None, Any]:
    group = contract.choices
    assert group is not None  # the contract's own validation
    texts, labels, answer = (_reach(row, path) for path in (group.texts, group.labels, group.answer))
    if must_be_one:
        place = labels.index(answer)
        texts[place]
        return None, place
    # the loader takes a text for every label: a text too few is an IndexError, one too many is not seen
    for position, _ in enumerate(labels):
        texts[position]
    return (None if answer in labels else "answer_not_a_choice"), str(answer)


def _reach(row: Any, path: str) -> Any:
    value = row
    for key in path.split("."):
        value = value[key]
    return value
