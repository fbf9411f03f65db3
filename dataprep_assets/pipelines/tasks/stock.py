"""Takes stock of an old project: which of a task's files are there to be migrated, and why the others are not.

What the old project lacks is recorded, not refused: checks on the migrated folder say it better than a stopped run, and
the other files and tasks are not held up.

Entry points: `take_stock`, `record_of_stock`.
"""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.formats.task_rows import TaskRows, read_rows
from dataprep_assets.pipelines.tasks.contract import Split
from dataprep_assets.pipelines.tasks.difference import RowDifference, compare
from dataprep_assets.pipelines.tasks.placing import Placement
from dataprep_assets.pipelines.tasks.record import (
    AbsenceCause,
    AbsentFile,
    MigratedFile,
    MigrationRecord,
    ReplacedFile,
    UnorderedVersion,
)
from dataprep_assets.pipelines.tasks.work import TaskWork
from dataprep_assets.planning.task_versions import BASE

__all__ = ["Stock", "Taken", "record_of_stock", "take_stock"]


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A file of the old project that is to be migrated."""

    file: MigratedFile
    path: Path
    rows: TaskRows


@dataclass(frozen=True, kw_only=True)
class Stock:
    """The files of one task folder in the old project, found and absent."""

    work: TaskWork
    found: tuple[Taken, ...]
    absent: tuple[AbsentFile, ...]

    @property
    def placements(self) -> list[Placement]:
        """What is wanted in the new project."""
        return [
            Placement(source=f.path, target=self.work.target / f.file.name, mode=self.work.mode, sha256=f.file.sha256)
            for f in self.found
        ]


def take_stock(work: TaskWork) -> Stock:
    """Read the old project's files. Nothing about them is refused: what cannot be taken is absent, with the cause."""
    found: list[Taken] = []
    absent: list[AbsentFile] = []
    for split in work.contract.splits:
        inherits = work.source != work.base and split in work.inherit
        taken = _take(work, split, work.source, inherited=False)
        if inherits and isinstance(taken, AbsentFile) and taken.cause == "missing":
            taken = _take(work, split, work.base, inherited=True)
        if isinstance(taken, AbsentFile):
            absent.append(taken)
        else:
            found.append(taken)
    return Stock(work=work, found=tuple(found), absent=tuple(absent))


def _take(work: TaskWork, split: Split, folder: Path, *, inherited: bool) -> Taken | AbsentFile:
    spec = work.contract.file(split)
    path = folder / spec.name
    try:
        if (why := _unusable(work, path)) is None:
            rows = read_rows(path)
    except OSError as error:
        why = ("unreadable", f"{_place(work, path)} cannot be read: {error.strerror}")
    if why is not None:
        return AbsentFile(split=split, name=spec.name, required=spec.required, cause=why[0], detail=why[1])
    file = MigratedFile(
        split=split,
        name=spec.name,
        source=_place(work, path),
        version=BASE if inherited else work.version,
        inherited=inherited,
        how="linked" if work.mode == "symlink" else "copied",
        bytes=rows.bytes,
        sha256=rows.sha256,
        rows=len(rows.rows),
    )
    return Taken(file=file, path=path, rows=rows)


def _unusable(work: TaskWork, path: Path) -> tuple[AbsenceCause, str] | None:
    """Why a file of the old project cannot be taken; None when it can."""
    where = _place(work, path)
    try:
        names = os.listdir(path.parent)
    except (FileNotFoundError, NotADirectoryError):
        return "missing", f"the folder {_place(work, path.parent)} is not there"
    if path.name not in names:
        if alike := sorted(n for n in names if n.casefold() == path.name.casefold()):
            return "other_case", f"it is named {alike[0]} there; rename it: case counts"
        return "missing", f"{where} is not there"
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return "broken_link", f"{where} is a link to {os.readlink(path)}, which is not there"
    if not stat.S_ISREG(kind):
        if stat.S_ISDIR(kind):
            return "directory", f"{where} is a folder, not a file"
        return "not_regular", f"{where} is no regular file"
    if not os.access(path, os.R_OK):
        return "unreadable", f"{where} cannot be read: its permissions are {stat.S_IMODE(kind):04o}"
    if work.mode == "symlink" and not path.resolve().is_relative_to(work.old_root.resolve()):
        return "outside_old_project", f"{where} is itself a link out of the old project; migrate it by copy"
    return None


def _place(work: TaskWork, path: Path) -> str:
    return path.relative_to(work.old_root).as_posix()


def _differences(stock: Stock) -> dict[Split, RowDifference]:
    """Each split that both have, against what it was rewritten from. What cannot be read there is not compared."""
    work, made = stock.work, {}
    for found in stock.found if work.reference else ():
        assert work.reference is not None
        path = work.reference / found.file.name
        try:
            original = read_rows(path) if path.is_file() else None
        except OSError:
            original = None
        if original is None:
            continue  # the checks that need it say so
        made[found.file.split] = compare(original.rows, found.rows.rows, work.contract)
    return made


def _ignored(work: TaskWork) -> tuple[str, ...]:
    """Files in the version's folder that the trainer never reads, so that nobody looks for them in the new project."""
    known = {f.name for f in work.contract.files.values()}
    try:
        with os.scandir(work.source) as entries:
            return tuple(sorted(e.name for e in entries if e.name not in known and e.is_file(follow_symlinks=False)))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def record_of_stock(stock: Stock, history: Sequence[ReplacedFile]) -> MigrationRecord:
    """The record of a migration of this stock, given what was replaced."""
    work = stock.work
    return MigrationRecord(
        task=work.task,
        version=work.version,
        mode=work.mode,
        place=work.target.relative_to(work.new_root.absolute()).as_posix(),
        files=tuple(f.file for f in stock.found),
        absent=stock.absent,
        ignored_files=_ignored(work),
        unordered_versions=tuple(UnorderedVersion(name=u.name, reason=u.reason) for u in work.unordered),
        compared_with=work.reference_name,
        differences=_differences(stock),
        history=tuple(history),
    )
