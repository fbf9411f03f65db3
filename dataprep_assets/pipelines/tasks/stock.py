"""Takes stock of an old project: which of a task's files can be migrated, and why the others cannot.

Files missing in the old project are recorded, not refused: checks on the migrated folder report them better than a
stopped run, and the other files and tasks go on.

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
from dataprep_assets.pipelines.tasks.placing import MODE, PRIVATE_MODE, Placement
from dataprep_assets.pipelines.tasks.record import (
    AbsenceCause,
    AbsentFile,
    MigratedFile,
    MigrationRecord,
    ReplacedFile,
    UnorderedVersion,
)
from dataprep_assets.pipelines.tasks.routes import TaskRoute
from dataprep_assets.planning.task_versions import BASE


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A file of the old project that is to be migrated."""

    file: MigratedFile
    path: Path
    rows: TaskRows


@dataclass(frozen=True, kw_only=True)
class Stock:
    """The files of one task folder in the old project, found and absent."""

    route: TaskRoute
    found: tuple[Taken, ...]
    absent: tuple[AbsentFile, ...]

    @property
    def placements(self) -> list[Placement]:
        """The files wanted in the new project."""
        return [
            Placement(
                source=f.path,
                target=self.route.target / f.file.name,
                mode=self.route.mode,
                sha256=f.rows.sha256,
                digests=self.route.digests,
                permissions=PRIVATE_MODE if self.route.sensitive else MODE,
            )
            for f in self.found
        ]


def take_stock(route: TaskRoute) -> Stock:
    """Read the old project's files.

    Nothing is refused: a file that cannot be taken is listed as absent, with the cause.
    """
    found: list[Taken] = []
    absent: list[AbsentFile] = []
    for split in route.contract.splits:
        inherits = route.source != route.base and split in route.inherit
        taken = _take(route, split, route.source, inherited=False)
        # A version's file that is there and cannot be taken is not replaced by the base's, which would be trained on in
        # its name, without a word.
        if inherits and isinstance(taken, AbsentFile) and taken.cause == "missing":
            taken = _take(route, split, route.base, inherited=True)
        if isinstance(taken, AbsentFile):
            absent.append(taken)
        else:
            found.append(taken)
    return Stock(route=route, found=tuple(found), absent=tuple(absent))


def _take(route: TaskRoute, split: Split, folder: Path, *, inherited: bool) -> Taken | AbsentFile:
    spec = route.contract.file(split)
    path = folder / spec.name
    try:
        if (why := _unusable(route, path)) is None:
            rows = read_rows(path)
    except OSError as error:
        why = ("unreadable", f"{_place(route, path)} cannot be read: {error.strerror}")
    if why is not None:
        return AbsentFile(split=split, name=spec.name, required=spec.required, cause=why[0], detail=why[1])
    file = MigratedFile(
        split=split,
        name=spec.name,
        source=_place(route, path),
        version=BASE if inherited else route.version,
        inherited=inherited,
        how="linked" if route.mode == "symlink" else "copied",
        bytes=rows.bytes,
        sha256=route.digests.of(rows.sha256),
        rows=len(rows.rows),
    )
    return Taken(file=file, path=path, rows=rows)


def _unusable(route: TaskRoute, path: Path) -> tuple[AbsenceCause, str] | None:
    """Why a file of the old project cannot be taken; None when it can."""
    where = _place(route, path)
    try:
        # as they are listed: where a disk ignores case, a file answers to a name that the trainer's may not know
        names = os.listdir(path.parent)
    except (FileNotFoundError, NotADirectoryError):
        return "missing", f"the folder {_place(route, path.parent)} is not there"
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
        return "not_regular", f"{where} is not a regular file"
    if not os.access(path, os.R_OK):
        return "unreadable", f"{where} cannot be read: its permissions are {stat.S_IMODE(kind):04o}"
    if route.mode == "symlink" and not path.resolve().is_relative_to(route.old_root.resolve()):
        return "outside_old_project", f"{where} is itself a link out of the old project; migrate it by copy"
    return None


def _place(route: TaskRoute, path: Path) -> str:
    return path.relative_to(route.old_root).as_posix()


def _differences(stock: Stock) -> dict[Split, RowDifference]:
    """The difference of each split from the original, if both have it and can be read."""
    route, made = stock.route, {}
    for found in stock.found if route.reference else ():
        assert route.reference is not None
        path = route.reference / found.file.name
        try:
            original = read_rows(path) if path.is_file() else None
        except OSError:
            original = None
        if original is None:
            continue  # the checks that need it say so
        made[found.file.split] = compare(original.rows, found.rows.rows, route.contract)
    return made


def _ignored(route: TaskRoute) -> tuple[str, ...]:
    """Files in the version's folder that the trainer never reads, so that nobody looks for them in the new project."""
    known = {f.name for f in route.contract.files.values()}
    try:
        with os.scandir(route.source) as entries:
            return tuple(sorted(e.name for e in entries if e.name not in known and e.is_file(follow_symlinks=False)))
    except OSError:  # what is said of its files says why
        return ()


def record_of_stock(stock: Stock, history: Sequence[ReplacedFile]) -> MigrationRecord:
    """The record of a migration of this stock, given what was replaced."""
    route = stock.route
    return MigrationRecord(
        task=route.task,
        version=route.version,
        mode=route.mode,
        # no absolute path: the record is the same wherever the projects lie
        place=route.target.relative_to(route.new_root.absolute()).as_posix(),
        files=tuple(f.file for f in stock.found),
        absent=stock.absent,
        ignored_files=_ignored(route),
        unordered_versions=tuple(UnorderedVersion(name=u.name, reason=u.reason) for u in route.unordered),
        compared_with=route.reference_name,
        differences=_differences(stock),
        history=tuple(history),
    )
