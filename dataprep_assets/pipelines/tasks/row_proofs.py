"""Proofs on the rows of a task's files: keys and types, labels, choices, ids, and how many there are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dataprep_assets.formats.task_rows import TaskRow, TaskRows
from dataprep_assets.graph.finding import Finding, judged
from dataprep_assets.pipelines.tasks.contract import KeySpec, Split, TaskContract, value_at
from dataprep_assets.pipelines.tasks.difference import row_ids
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.row_findings import MEND, nothing_to_compare, over_rows

__all__ = [
    "answer_key",
    "choices_lengths",
    "domains",
    "ids_unique",
    "label_domain",
    "question_domain",
    "row_counts",
    "schema",
]


@judged
def schema(task: TaskFolder) -> Finding:
    """Exact key set and types, nested keys too. A label of the wrong type is a matter of this proof."""
    return over_rows(
        task,
        lambda split, rows: (
            f"line {row.line} (byte {row.byte}): {defect}"
            for row in rows.rows
            for defect in _misfits(row.value, task.contract.keys)
        ),
        "has rows with exactly the contract's keys and types",
        f"The contract's keys are {', '.join(f'{k} ({s.type})' for k, s in task.contract.keys.items())}. {MEND}",
    )


def _misfits(value: Mapping[str, Any], keys: Mapping[str, KeySpec], above: str = "") -> Iterator[str]:
    for name, spec in keys.items():
        if name not in value:
            yield f"has no key {above + name!r}"
        elif not fits(value[name], spec):
            yield f"{above + name!r} is {_type_name(value[name])}, not {spec.type}"
        elif spec.type == "object":
            yield from _misfits(value[name], spec.keys, f"{above}{name}.")
    for name in value:
        if name not in keys:
            yield f"has a key {(above + name)[:40]!r}, which the contract does not have"


def fits(value: Any, spec: KeySpec) -> bool:
    if spec.type == "strings":
        return isinstance(value, list) and all(isinstance(v, str) for v in value)
    # exact types: in Python a boolean is an integer
    return type(value) is {"string": str, "integer": int, "boolean": bool, "object": dict}[spec.type]


def _type_name(value: Any) -> str:
    if isinstance(value, list):
        return "an array of other things"
    names = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", dict: "an object"}
    return names.get(type(value), "null")


@judged
def label_domain(task: TaskFolder) -> Finding:
    """Labels of the right type that the split does not allow; -1 hides a label, which only test may do."""

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        allowed = task.contract.labels[split]
        spec = task.contract.keys[task.contract.label]
        for row in rows.rows:
            label = row.value.get(task.contract.label)
            if fits(label, spec) and label not in allowed:
                why = "a hidden label" if label == -1 else "no label of this task"
                yield f"line {row.line} (byte {row.byte}): {task.contract.label} {task.shown(label)} is {why}"

    return over_rows(
        task,
        wrong,
        "has labels of the task alone",
        f"Allowed in train are {', '.join(map(str, task.contract.labels.get('train', ())))}. A file with hidden labels "
        f"is a test file. {MEND}",
        facts={f"{split}_{k}": n for split, counts in _label_counts(task).items() for k, n in counts.items()},
    )


def _label_counts(task: TaskFolder) -> dict[Split, dict[str, int]]:
    """How many rows have each allowed label."""
    return {
        split: {
            str(label): sum(row.value.get(task.contract.label) == label for row in rows.rows)
            for label in task.contract.labels.get(split, ())
        }
        for split, rows in task.rows.items()
    }


@judged
def question_domain(task: TaskFolder) -> Finding:
    """Values that the trainer's prompt chooses its words by."""

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        for path, spec in domains(task.contract.keys):
            for row in rows.rows:
                value = value_at(row.value, path)
                if fits(value, spec) and value not in spec.one_of:
                    allowed = ", ".join(map(str, spec.one_of))
                    yield f"line {row.line} (byte {row.byte}): {path} is {task.shown(value)}, not one of {allowed}"

    return over_rows(
        task,
        wrong,
        "has allowed values alone",
        f"The file loads, and training stops with NotImplementedError at the first such row. {MEND}",
    )


def domains(keys: Mapping[str, KeySpec], above: str = "") -> Iterator[tuple[str, KeySpec]]:
    """Path and specification of every key with a fixed set of values."""
    for name, spec in keys.items():
        if spec.one_of:
            yield above + name, spec
        yield from domains(spec.keys, f"{above}{name}.")


@judged
def answer_key(task: TaskFolder) -> Finding:
    """The answer is one of the row's own labels, not only one of the task's."""

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        for row, _, labels, answer in _choices(task.contract, rows.rows):
            if isinstance(answer, str) and answer not in labels:
                yield f"line {row.line} (byte {row.byte}): answer {task.shown(answer)} is none of its choices' labels"

    stops = task.contract.loader.answer.rule == "choice_text"
    return over_rows(
        task,
        wrong,
        "has answers among its choices",
        f"The trainer's loader {'stops with a ValueError' if stops else 'takes such a row and can never be right'}. "
        f"{MEND}",
    )


@judged
def choices_lengths(task: TaskFolder) -> Finding:
    """As many texts as labels, within the contract's bounds, every label once."""
    group = task.contract.choices
    assert group is not None  # `proofs_for` asks for this proof only then

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        for row, texts, labels, _ in _choices(task.contract, rows.rows):
            where = f"line {row.line} (byte {row.byte}):"
            if len(texts) != len(labels):
                yield f"{where} {len(texts)} texts for {len(labels)} labels"
            elif not group.least <= len(labels) <= group.most:
                yield f"{where} {len(labels)} choices, not {group.least} to {group.most}"
            elif len(set(labels)) < len(labels):
                yield f"{where} two choices have the same label"

    return over_rows(task, wrong, "has complete choices", f"The trainer stops, or takes the wrong text. {MEND}")


def _choices(contract: TaskContract, rows: Sequence[TaskRow]) -> Iterator[tuple[TaskRow, list[str], list[str], object]]:
    """Row, texts, labels and answer of the rows whose choices have the right types; `schema` names the others."""
    group = contract.choices
    assert group is not None  # see `proofs_for`
    strings = KeySpec(type="strings")
    for row in rows:
        texts, labels = value_at(row.value, group.texts), value_at(row.value, group.labels)
        if fits(texts, strings) and fits(labels, strings):
            yield row, texts, labels, value_at(row.value, group.answer)


@judged
def ids_unique(task: TaskFolder) -> Finding:
    """An id that occurs again names both lines; the id itself may identify a person and is not shown."""

    def repeated(split: Split, rows: TaskRows) -> Iterator[str]:
        first: dict[object, int] = {}
        having = [row for row in rows.rows if task.contract.id in row.value]
        for name, row in zip(row_ids(having, task.contract), having, strict=True):
            if name in first:
                yield f"line {row.line} (byte {row.byte}): has the {task.contract.id} of line {first[name]}"
            else:
                first[name] = row.line

    return over_rows(
        task,
        repeated,
        "has every id once",
        "Rows that occur several times weigh several times in training. Choose another version, or take them out",
    )


@judged
def row_counts(task: TaskFolder) -> Finding:
    """Lines that are not blank, against the contract's counts; where it has none, against the original's."""
    expected = {
        split: task.contract.file(split).rows
        or ((_count(task.reference_rows[split]),) if split in task.reference_rows else ())
        for split in task.contract.splits
    }
    if not any(expected.values()):
        return nothing_to_compare(task, "neither the contract nor an original says how many rows there should be")

    def wrong(split: Split, rows: TaskRows) -> Iterator[str]:
        if expected[split] and _count(rows) not in expected[split]:
            yield f"{_count(rows)} rows, the reference has {' or '.join(map(str, expected[split]))}"

    return over_rows(
        task,
        wrong,
        "has the reference's number of rows",
        "Rows were lost, repeated or added when the version was made. Choose another version, or mend it",
        facts={f"{split}_rows": _count(rows) for split, rows in task.rows.items()},
    )


def _count(rows: TaskRows) -> int:
    return rows.lines - len(rows.of_kind("blank"))
