"""The record of one migrated task folder, `migration.json`: what came from where, what is absent, what was replaced.

It has no absolute path and no time, so the same old project gives the same record anywhere; only the history depends on
earlier files in the new project. A replaced link is recorded as its text.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.digest import canonical_json
from dataprep_assets.pipelines.tasks.contract import Split
from dataprep_assets.pipelines.tasks.declaration import Mode
from dataprep_assets.pipelines.tasks.difference import RowDifference

NAME = "migration.json"
REPLACED = "replaced"
"""Folder in the artifact that keeps replaced files, each under its SHA-256."""
AbsenceCause = Literal[
    "missing", "other_case", "broken_link", "directory", "not_regular", "unreadable", "outside_old_project"
]


class _Recorded(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MigratedFile(_Recorded):
    """One file in the new project. `source` is relative to the old project's root; `rows` are readable objects.

    `sha256` is the source's digest (`sources.digests`), which is keyed for sensitive data.
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


class AbsentFile(_Recorded):
    """A file of the contract that is missing in the old project, or that cannot be taken."""

    split: Split
    name: str
    required: bool
    cause: AbsenceCause
    detail: str


class UnorderedVersion(_Recorded):
    """A folder beside the versions that `latest` and `all` pass over."""

    name: str
    reason: str


class ReplacedFile(_Recorded):
    """What a file replaced, numbered from 1. `kept`: the artifact has it as `replaced/<sha256>`."""

    number: int
    name: str
    kind: Literal["file", "link"]
    bytes: int | None
    sha256: str | None
    link: str | None
    kept: bool


class MigrationRecord(_Recorded):
    """See the module. `place` is relative to the new project's root."""

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
    history: tuple[ReplacedFile, ...]

    def to_bytes(self) -> bytes:
        """Serialize the record; equal records give equal bytes."""
        return canonical_json(self.model_dump(mode="json")) + b"\n"

    def file(self, split: Split) -> MigratedFile | None:
        """The migrated file of a split; None when it is absent."""
        return next((f for f in self.files if f.split == split), None)

    def origin_table(self) -> list[dict[str, str | int]]:
        """Where each file came from, one row per file of the contract."""
        rows: list[dict[str, str | int]] = [
            {
                "split": f.split,
                "file": f.name,
                "from": f.source,
                "version": f.version,
                "inherited": "from base" if f.inherited else "no",
                "how": f.how,
                "rows": f.rows,
                "bytes": f.bytes,
                "sha256": f.sha256,
            }
            for f in self.files
        ]
        return rows + [{"split": a.split, "file": a.name, "from": f"absent: {a.detail}"} for a in self.absent]

    def difference_table(self) -> list[dict[str, str | int]]:
        """How each split differs from the original, one row per split."""
        return [{"split": split, **d.model_dump()} for split, d in self.differences.items()]


def read_record(directory: Path) -> MigrationRecord | None:
    """The record in an artifact's directory; None when there is none.

    Raises IntegrityError if it cannot be read: replaced files may depend on it.
    """
    path = directory / NAME
    try:
        return MigrationRecord.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise IntegrityError(
            f"{path}: not a migration record ({error.error_count()} faults). What it replaced is in "
            f"{path.parent / REPLACED}: save that folder if you need it, then delete {path.parent} and migrate again"
        ) from error
