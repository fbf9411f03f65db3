"""Record of a migrated task folder, `migration.json`: the origin of each file, and absent files.

It contains neither absolute paths nor times, so the same old project always gives the same record.
"""

import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dataprep_assets.errors import IntegrityError, count_of
from dataprep_assets.fields import value_at
from dataprep_assets.pipelines.tasks.contract import Split, TaskContract
from dataprep_assets.pipelines.tasks.declaration import Mode
from dataprep_assets.pipelines.tasks.task_rows import TaskRow
from dataprep_assets.stores.files import canonical_json

NAME = "migration.json"
AbsenceCause = Literal[
    "missing", "other_case", "broken_link", "directory", "not_regular", "unreadable", "outside_old_project"
]


class _RecordModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MigratedFile(_RecordModel):
    """A migrated file; `source` is relative to the old project's root, and `rows` counts readable JSON objects.

    `sha256` is the source's digest (`stores.files`), which is keyed for sensitive data.
    """

    split: Split
    name: str
    source: str
    version: str
    inherited: bool
    how: Literal["copied", "linked"]
    bytes: int
    sha256: str
    rows: int


class AbsentFile(_RecordModel):
    """A file of the contract that is missing or unusable in the old project."""

    split: Split
    name: str
    required: bool
    cause: AbsenceCause
    detail: str


class UnorderedVersion(_RecordModel):
    """A folder next to the versions that `latest` and `all` skip, and the reason."""

    name: str
    reason: str


class RowDifference(_RecordModel):
    """Counts of the rows that differ from the original.

    `rows` is the sum of `changed`, `unchanged` and `added`.

    Attributes:
        original_rows: Rows of the original.
        rows: Rows of this version.
        unchanged: Rows that are equal to the original row with the same id.
        changed: Rows that differ from the original row with the same id.
        relabelled: Changed rows with a different label.
        missing: Ids of the original without a row in this version.
        added: Rows with an id that the original does not have.
        repeated: Rows with the id of an earlier row.
    """

    original_rows: int
    rows: int
    unchanged: int
    changed: int
    relabelled: int
    missing: int
    added: int
    repeated: int


class MigrationRecord(_RecordModel):
    """Record of a migration (see the module); `place` is relative to the new project's root."""

    schema_version: Literal[1] = 1
    task: str
    version: str
    mode: Mode
    place: str
    files: tuple[MigratedFile, ...]
    absent: tuple[AbsentFile, ...]
    ignored_files: tuple[str, ...]
    unordered_versions: tuple[UnorderedVersion, ...]
    compared_with: Literal["original", "base"] | None
    differences: dict[Split, RowDifference]

    def to_bytes(self) -> bytes:
        """Serialize the record; equal records have equal bytes."""
        return canonical_json(self.model_dump(mode="json")) + b"\n"

    def find_file(self, name: str) -> MigratedFile | None:
        """Return the migrated file with this name; None if the record has no such file."""
        return next((f for f in self.files if f.name == name), None)

    def build_origin_table(self) -> list[dict[str, str | int]]:
        """Return the origin of each file, one row per file of the contract."""
        return [file.model_dump() for file in (*self.files, *self.absent)]


def read_record(directory: Path) -> MigrationRecord | None:
    """Read the record in an artifact's directory; return None if there is none.

    Raises IntegrityError if it cannot be read.
    """
    path = directory / NAME
    try:
        return MigrationRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise IntegrityError(
            f"{path}: not a migration record ({count_of(error.error_count(), 'fault')}). Migrate the task again"
        ) from error


def row_ids(rows: Sequence[TaskRow], contract: TaskContract) -> list[Hashable]:
    """Return the identifier of each row: its id, or its 0-based position if the contract has no id."""
    if contract.id is None:
        return list(range(len(rows)))
    return [_canonicalize_value(value_at(row.value, contract.id)) for row in rows]


def compare_rows(original: Sequence[TaskRow], rows: Sequence[TaskRow], contract: TaskContract) -> RowDifference:
    """Count the differences of `rows` from `original`; the contract has the keys of ids and labels."""
    ids, original_ids = row_ids(rows, contract), row_ids(original, contract)
    # Reverse the rows, so that the dictionary keeps the first of several original rows with the same id.
    first_rows = dict(zip(reversed(original_ids), reversed(original), strict=True))
    pairs = [(row, first_rows[name]) for name, row in zip(ids, rows, strict=True) if name in first_rows]
    unchanged = sum(
        _canonicalize_value(row.value) == _canonicalize_value(original_row.value) for row, original_row in pairs
    )
    return RowDifference(
        original_rows=len(original),
        rows=len(rows),
        unchanged=unchanged,
        changed=len(pairs) - unchanged,
        relabelled=sum(
            _canonicalize_value(value_at(row.value, contract.label))
            != _canonicalize_value(value_at(original_row.value, contract.label))
            for row, original_row in pairs
        ),
        missing=len(set(original_ids) - set(ids)),
        added=len(rows) - len(pairs),
        repeated=len(ids) - len(set(ids)),
    )


def _canonicalize_value(value: object) -> str:
    """Return a string in which 1, true, 1.0 and "1" differ, and the order of keys does not matter."""
    return json.dumps(value, sort_keys=True)
