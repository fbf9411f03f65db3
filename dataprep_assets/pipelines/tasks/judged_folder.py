"""A task folder as the proofs see it: every file is read once, whoever put it there.

A file that cannot be read has a `problem` and no rows; the proofs about files say why. Entry point: `TaskFolder`.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dataprep_assets.formats.task_rows import TaskRows, read_rows
from dataprep_assets.pipelines.tasks.contract import Split, TaskContract
from dataprep_assets.pipelines.tasks.loader import Load, load_as_trainer
from dataprep_assets.pipelines.tasks.record import MigrationRecord
from dataprep_assets.pipelines.tasks.routes import TaskRoute, task_value
from dataprep_assets.sources.digests import PLAIN, SourceDigests


@dataclass(frozen=True, kw_only=True)
class FolderFile:
    """The state of one file of the contract in the folder. `problem` is None if a user with permission can read it.

    `readable`: this user can, and not only as superuser.
    """

    split: Split
    name: str
    required: bool
    present: bool
    alike: tuple[str, ...]
    problem: str | None
    permissions: int
    readable: bool
    link: bool


@dataclass(frozen=True, kw_only=True)
class TaskFolder:
    """A task folder to examine. Everything is read once, when a proof first needs it.

    `reference` is the folder of the rows that these were rewritten from, `reference_name` its kind (`original` or
    `base`); `record` is the migration's, if there was one, and `digests` says how digests of files are made.
    """

    folder: Path
    contract: TaskContract
    task_value: str
    reference: Path | None = None
    reference_name: str | None = None
    record: MigrationRecord | None = None
    sensitive: bool = False
    digests: SourceDigests = PLAIN

    @classmethod
    def of(cls, route: TaskRoute, record: MigrationRecord | None, *, sensitive: bool = False) -> "TaskFolder":
        """The folder that a `route` leads to, with the `record` of its migration, if there was one.

        If `sensitive`, messages show no labels, and of keys only those that the contract has.
        """
        return cls(
            folder=route.target,
            contract=route.contract,
            task_value=task_value(route),
            reference=route.reference,
            reference_name=route.reference_name,
            record=record,
            sensitive=sensitive,
            digests=route.digests,
        )

    @cached_property
    def files(self) -> Mapping[Split, FolderFile]:
        """Every file of the contract."""
        try:
            names = sorted(os.listdir(self.folder))
        except (FileNotFoundError, NotADirectoryError):
            names = []
        return {split: self._file(split, names) for split in self.contract.splits}

    def _file(self, split: Split, names: Sequence[str]) -> FolderFile:
        spec = self.contract.file(split)
        alike = tuple(n for n in names if n != spec.name and _shape(n) == _shape(spec.name))
        present, permissions, link, problem = spec.name in names, 0, False, None
        readable = False
        if present:
            path = self.folder / spec.name
            link = path.is_symlink()
            try:
                kind = path.stat().st_mode
            except OSError as error:
                problem = f"is a link to {os.readlink(path)}, which is not there" if link else str(error.strerror)
            else:
                permissions = stat.S_IMODE(kind)
                # a superuser may read everything, and the trainer may be somebody else: some permission has to be there
                readable = bool(permissions & 0o444) and os.access(path, os.R_OK)
                if not stat.S_ISREG(kind):
                    what = "a folder" if stat.S_ISDIR(kind) else "not a regular file"
                    problem = f"is {'a link to ' if link else ''}{what}"
        return FolderFile(
            split=split,
            name=spec.name,
            required=spec.required,
            present=present,
            alike=alike,
            problem=problem,
            permissions=permissions,
            readable=readable,
            link=link,
        )

    @cached_property
    def rows(self) -> Mapping[Split, TaskRows]:
        """The rows of every file that can be read."""
        return _read({s: self.folder / f.name for s, f in self.files.items() if f.present and f.problem is None})

    @cached_property
    def reference_rows(self) -> Mapping[Split, TaskRows]:
        """The rows of the reference's files that can be read."""
        if self.reference is None:
            return {}
        return _read({s: self.reference / self.contract.file(s).name for s in self.contract.splits})

    @cached_property
    def load(self) -> Load:
        """What the trainer's loader reads from the folder."""
        return load_as_trainer(self.task_value, self.contract)

    def shown(self, value: Any) -> str:
        """A label as a message may show it."""
        if self.sensitive or not isinstance(value, bool | int | str):
            return f"a {type(value).__name__}"
        return repr(value)[:24]


def _read(paths: Mapping[Split, Path]) -> dict[Split, TaskRows]:
    found = {}
    for split, path in paths.items():
        try:
            if path.is_file():
                found[split] = read_rows(path)
        except OSError:
            continue  # the proofs about files say why
    return found


def _shape(name: str) -> str:
    """A normalized form in which easily confused names are equal."""
    # case, hyphens, spaces and the suffix are what people get wrong in these names
    stem = name.strip().casefold().replace("-", "_").replace(" ", "_")
    for suffix in (".txt", ".jsonl", ".json"):
        stem = stem.removesuffix(suffix)
    return stem
