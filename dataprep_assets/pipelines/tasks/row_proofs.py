"""Proofs on the rows of a task's files: keys and types, labels, choices, ids, and how many there are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dataprep_assets.formats.task_rows import TaskRow, TaskRows
from dataprep_assets.graph.finding import Finding, judged
from dataprep_assets.pipelines.tasks.contract import KeySpec, Split, TaskContract, domains, value_at
from dataprep_assets.pipelines.tasks.difference import row_ids
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.loader import label_taken
from dataprep_assets.pipelines.tasks.row_findings import MEND, Fault, nothing_to_compare, over_rows


@judged
def schema(task: TaskFolder) -> Finding:
    """Keys and types, including nested keys. What the trainer never reads, or reads as intended, is a warning."""
    return over_rows(
        task,
        lambda split, rows: (
            Fault(f"{_place(row)} {told}", taken)
            for row in rows.rows
            for told, taken in _misfits(task, row.value, row.value, task.contract.keys)
        ),
        "has rows with exactly the contract's keys and types",
        f"The contract's keys are {', '.join(f'{k} ({s.type})' for k, s in task.contract.keys.items())}. {MEND}",
    )


def _place(row: TaskRow) -> str:
    return f"line {row.line} (byte {row.byte}):"


def _misfits(
    task: TaskFolder,
    row: Mapping[str, Any],
    value: Mapping[str, Any],
    keys: Mapping[str, KeySpec],
    above: str = "",
) -> Iterator[tuple[str, bool]]:
    """The defects of the keys of `value`, an object in `row`, and whether the trainer reads each as intended."""
    contract = task.contract
    for name, spec in keys.items():
        path = above + name
        if name not in value:
            yield f"has no key {path!r}", path not in contract.prompted and _takes(row, contract, path)
        elif not fits(value[name], spec):
            taken = _as_formatted(value[name], spec, contract, path) and _takes(row, contract, path)
            yield f"{path!r} is {_type_name(value[name])}, not {spec.type}", taken
        elif spec.type == "object":
            yield from _misfits(task, row, value[name], spec.keys, f"{path}.")
    for name in value:
        if name not in keys and contract.extra_keys != "allowed":
            # any text can be a key, a person's name as well
            extra = "that" if task.sensitive else f"{(above + name)[:40]!r}, which"
            yield f"has a key {extra} the contract does not have", contract.extra_keys == "warned"


def _as_formatted(value: Any, spec: KeySpec, contract: TaskContract, path: str) -> bool:
    """Whether a value of another type gives the same prompt as its text would."""
    if path not in contract.prompted:
        return True
    if path not in contract.loader.formatted or isinstance(value, list) != (spec.type == "strings"):
        return False
    items = value if isinstance(value, list) else [value]
    # only numbers are formatted as text normally is: null would be "None"
    return all(isinstance(i, str) or (isinstance(i, int | float) and not isinstance(i, bool)) for i in items)


def _takes(row: Mapping[str, Any], contract: TaskContract, path: str) -> bool:
    """Whether the loader makes a sample of a row in spite of the value under a path: always, unless it reads it."""
    group = contract.choices
    read = [contract.label, *contract.loader.reads, *((group.texts, group.labels, group.answer) if group else ())]
    needed = any(one == path or one.startswith(f"{path}.") for one in read)
    return not needed or label_taken(row, contract) is not None


def fits(value: Any, spec: KeySpec) -> bool:
    """Whether a JSON value has the type that the contract declares for its key."""
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

    def wrong(split: Split, rows: TaskRows) -> Iterator[Fault]:
        allowed = task.contract.labels[split]
        spec = task.contract.keys[task.contract.label]
        for row in rows.rows:
            label = row.value.get(task.contract.label)
            # a label of another type is told by `schema`
            if fits(label, spec) and label not in allowed:
                why = "a hidden label" if label == -1 else "not a label of this task"
                told = f"{_place(row)} {task.contract.label} {task.shown(label)} is {why}"
                yield Fault(told, label_taken(row.value, task.contract) is not None)

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
    """Values by which the trainer's prompt selects its words."""

    def wrong(split: Split, rows: TaskRows) -> Iterator[Fault]:
        for path, spec in domains(task.contract.keys):
            for row in rows.rows:
                value = value_at(row.value, path)
                if fits(value, spec) and value not in spec.one_of:
                    allowed = ", ".join(map(str, spec.one_of))
                    yield Fault(f"{_place(row)} {path} is {task.shown(value)}, not one of {allowed}")

    return over_rows(
        task,
        wrong,
        "has allowed values alone",
        f"The file loads, and training stops with NotImplementedError at the first such row. {MEND}",
    )


@judged
def answer_key(task: TaskFolder) -> Finding:
    """The answer is one of the row's own labels, not only one of the task's."""

    def wrong(split: Split, rows: TaskRows) -> Iterator[Fault]:
        for row, _, labels, answer in _choices(task.contract, rows.rows):
            if isinstance(answer, str) and answer not in labels:
                yield Fault(f"{_place(row)} answer {task.shown(answer)} is none of its choices' labels")

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
    """As many texts as labels, within the contract's bounds, every label once.

    Where choice texts are trained, only the answer's label has to be one that no other choice has.
    """
    group = task.contract.choices
    assert group is not None  # `proofs_for` asks for this proof only then
    by_text = task.contract.loader.answer.rule == "choice_text"

    def wrong(split: Split, rows: TaskRows) -> Iterator[Fault]:
        for row, texts, labels, answer in _choices(task.contract, rows.rows):
            if len(texts) != len(labels):
                yield Fault(f"{_place(row)} {len(texts)} texts for {len(labels)} labels")
            elif not group.least <= len(labels) <= group.most:
                told = f"{_place(row)} {len(labels)} choices, not {group.least} to {group.most}"
                yield Fault(told, taken=len(labels) > 1)
            elif len(set(labels)) < len(labels):
                yield Fault(
                    f"{_place(row)} two choices have the same label",
                    by_text and labels.count(answer) == 1,
                )

    return over_rows(task, wrong, "has complete choices", f"The trainer stops, or takes the wrong text. {MEND}")


@judged
def no_empty_text(task: TaskFolder) -> Finding:
    """A text of white space alone: a rewrite that failed. An empty choice makes the trainer learn the whole prompt."""

    def wrong(split: Split, rows: TaskRows) -> Iterator[Fault]:
        for row in rows.rows:
            for path in task.contract.text:
                value = value_at(row.value, path)
                items = value if isinstance(value, list) else [value]
                if any(isinstance(item, str) and not item.strip() for item in items):
                    yield Fault(f"{_place(row)} {path} {'holds an empty text' if items is value else 'is empty'}")

    return over_rows(
        task, wrong, "has no empty text", f"The trainer takes such a row, and learns nothing right from it. {MEND}"
    )


def _choices(contract: TaskContract, rows: Sequence[TaskRow]) -> Iterator[tuple[TaskRow, list[str], list[str], Any]]:
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

    def repeated(split: Split, rows: TaskRows) -> Iterator[Fault]:
        first: dict[object, int] = {}
        # rows without an id are the `schema`'s: here they would all count as one that occurs again
        having = [row for row in rows.rows if task.contract.id in row.value]
        for name, row in zip(row_ids(having, task.contract), having, strict=True):
            if name in first:
                yield Fault(f"{_place(row)} has the {task.contract.id} of line {first[name]}")
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

    def wrong(split: Split, rows: TaskRows) -> Iterator[Fault]:
        if expected[split] and _count(rows) not in expected[split]:
            yield Fault(f"{_count(rows)} rows, the reference has {' or '.join(map(str, expected[split]))}")

    return over_rows(
        task,
        wrong,
        "has the reference's number of rows",
        "Rows were lost, repeated or added when the version was made. Choose another version, or correct it",
        facts={f"{split}_rows": _count(rows) for split, rows in task.rows.items()},
    )


def _count(rows: TaskRows) -> int:
    return rows.lines - len(rows.of_kind("blank"))
