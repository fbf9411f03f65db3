"""Proofs that compare a task's rows with those they were rewritten from: labels, validation file, leaked texts."""

from collections.abc import Hashable, Iterator

from dataprep_assets.formats.task_rows import TaskRow, TaskRows
from dataprep_assets.graph.finding import Finding, judged
from dataprep_assets.pipelines.tasks.contract import Split, TaskContract, value_at
from dataprep_assets.pipelines.tasks.difference import compare, pairs, row_ids
from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets.pipelines.tasks.row_findings import Fault, nothing_to_compare, over_rows


@judged
def labels_equal_original(task: TaskFolder) -> Finding:
    """A rewrite changes words; a label that the trainer reads differently makes a wrong example.

    A row that the original does not have, or with the id of an earlier row, may not be a rewrite of the row that it is
    compared with: a warning.
    """
    if "train" not in task.reference_rows:
        return nothing_to_compare(task, "there is no original train file to compare with")
    original = task.reference_rows["train"].rows

    def wrong(split: Split, rows: TaskRows) -> Iterator[Fault]:
        seen: set[Hashable] = set()
        for name, pair in zip(
            row_ids(rows.rows, task.contract), pairs(original, rows.rows, task.contract), strict=True
        ):
            where = f"line {pair.row.line} (byte {pair.row.byte}):"
            if pair.original is None:
                place = task.contract.id or "place"
                yield Fault(
                    f"{where} the original has no row of this {place} to compare its label with",
                    taken=True,
                )
            elif pair.relabelled(task.contract):
                was, now = (value_at(r.value, task.contract.label) for r in (pair.original, pair.row))
                told = f"{where} label {task.shown(now)}, original line {pair.original.line} has {task.shown(was)}"
                yield Fault(told, taken=name in seen)
            seen.add(name)

    facts: dict[str, int | float | str] = {"compared_with": str(task.reference_name)}
    facts |= compare(original, task.rows["train"].rows, task.contract).model_dump()
    return over_rows(
        task,
        wrong,
        f"has the labels of the {task.reference_name}",
        "Take the original's labels, or leave these rows out",
        splits=("train",),
        facts=facts,
    )


@judged
def validation_untouched(task: TaskFolder) -> Finding:
    """Both have the same digest: a rewritten validation file measures something else, and may contain training data."""
    if "validation" not in task.reference_rows:
        return nothing_to_compare(task, "there is no original validation file to compare with")
    original = task.reference_rows["validation"]

    def wrong(split: Split, rows: TaskRows) -> Iterator[Fault]:
        if rows.sha256 != original.sha256:
            found, wanted = (task.digests.of(each.sha256)[:12] for each in (rows, original))
            yield Fault(f"sha256 {found}…, the {task.reference_name}'s is {wanted}…")

    return over_rows(
        task,
        wrong,
        f"is the {task.reference_name}'s, byte for byte",
        "Take the original's validation file: accuracies on another one cannot be compared",
        splits=("validation",),
    )


@judged
def no_train_text_in_validation(task: TaskFolder) -> Finding:
    """Texts are compared without regard to case and white space."""
    name = task.contract.file("train").name
    train: dict[tuple[str, ...], int] = {}
    for row in task.rows["train"].rows:
        train.setdefault(_text(row, task.contract), row.line)

    def leaked(split: Split, rows: TaskRows) -> Iterator[Fault]:
        for row in rows.rows:
            if (line := train.get(_text(row, task.contract))) is not None:
                yield Fault(f"line {row.line} (byte {row.byte}): has the text of line {line} of {name}")

    return over_rows(
        task,
        leaked,
        f"shares no text with {name}",
        "The model would be measured on what it was trained on. Take these rows out of train",
        splits=("validation",),
    )


def _text(row: TaskRow, contract: TaskContract) -> tuple[str, ...]:
    values = (value_at(row.value, path) for path in contract.text)
    flat = (item for value in values for item in (value if isinstance(value, list) else [value]))
    return tuple(" ".join(str(item).casefold().split()) for item in flat)
