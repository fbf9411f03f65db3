"""How a task's rows differ from the rows that they were rewritten from. Pure functions over rows.

Rows are paired by the contract's id, or by position if a task has no id. A synthetic rewrite changes texts; it never
changes a label, and neither loses nor adds rows.
"""

import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from dataprep_assets.formats.task_rows import TaskRow
from dataprep_assets.pipelines.tasks.contract import TaskContract, value_at
from dataprep_assets.pipelines.tasks.loader import label_taken


class RowDifference(BaseModel):
    """Counts of rows. `changed + unchanged + added` is `rows`; `missing` are ids of the original without a row;
    `repeated` are rows whose id an earlier row has; `relabelled` rows are also `changed`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    original_rows: int
    rows: int
    unchanged: int
    changed: int
    relabelled: int
    missing: int
    added: int
    repeated: int


@dataclass(frozen=True, slots=True)
class Paired:
    """A row and the original row of the same id; None when the original has no such row."""

    row: TaskRow
    original: TaskRow | None

    def relabelled(self, contract: TaskContract) -> bool:
        """Whether the trainer reads the label as different from the original's, or cannot read it."""
        if self.original is None:
            return False
        ours, theirs = (value_at(r.value, contract.label) for r in (self.row, self.original))
        # for nearly every row this is all; only labels that are written in another way are read as the trainer does
        if _identity(ours) == _identity(theirs):
            return False
        taken = label_taken(self.row.value, contract)
        return taken is None or taken != label_taken(self.original.value, contract)


def row_ids(rows: Sequence[TaskRow], contract: TaskContract) -> list[Hashable]:
    """What identifies each row: its id, or its 0-based position if the contract has no id."""
    if contract.id is None:
        return list(range(len(rows)))
    return [_identity(value_at(row.value, contract.id)) for row in rows]


def pairs(original: Sequence[TaskRow], rows: Sequence[TaskRow], contract: TaskContract) -> Iterator[Paired]:
    """Each of `rows` with the row of `original` that it was rewritten from, in the order of `rows`.

    `contract` says what identifies a row. When several original rows have one id, the first counts.
    """
    known: dict[Hashable, TaskRow] = {}
    for name, row in zip(row_ids(original, contract), original, strict=True):
        known.setdefault(name, row)
    for name, row in zip(row_ids(rows, contract), rows, strict=True):
        yield Paired(row, known.get(name))


def compare(original: Sequence[TaskRow], rows: Sequence[TaskRow], contract: TaskContract) -> RowDifference:
    """How `rows` differ from `original`, in numbers. `contract` names the id and the label of a row."""
    ids, original_ids = row_ids(rows, contract), row_ids(original, contract)
    paired = list(pairs(original, rows, contract))
    known = [p for p in paired if p.original is not None]
    unchanged = sum(p.original is not None and _identity(p.row.value) == _identity(p.original.value) for p in known)
    return RowDifference(
        original_rows=len(original),
        rows=len(rows),
        unchanged=unchanged,
        changed=len(known) - unchanged,
        relabelled=sum(p.relabelled(contract) for p in known),
        missing=len(set(original_ids) - set(ids)),
        added=len(paired) - len(known),
        repeated=len(ids) - len(set(ids)),
    )


def _identity(value: object) -> str:
    """A text in which 1, true, 1.0 and "1" differ, and the order of keys does not matter."""
    return json.dumps(value, sort_keys=True)
