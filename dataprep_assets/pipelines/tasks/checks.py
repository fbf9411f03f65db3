"""Checks of task folders: files against their receipt, rows against the declared schema, and conflicts.

Checks read the current folder, regardless of how its files got there. A check has one finding for all task folders of a
declaration, and the finding's table shows which tasks can be used for training. Messages contain files, lines and keys,
never a value of a row. For sensitive data they contain only the contract's keys.

Faults that leave the data usable only warn: line endings, extra keys, repeated ids, a different number of rows, and
permissions of a readable file. All other faults block, except in `optional` tasks.

Entry points: `CHECKS`, `build_task_checks`, `check_task`.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from pydantic_core import SchemaValidator, ValidationError

from dataprep_assets.engine.checks.check import Check, Finding, Row, build_verdict, join_first
from dataprep_assets.engine.checks.verdicts import CheckedSpec, WholeArtifactChecks
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.fields import value_at
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.tasks.contract import ChoiceGroup, FileSpec, Split
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.file_placement import MODE
from dataprep_assets.pipelines.tasks.migration import TaskFolderFacts, build_task_recipe, find_conflicts, read_source
from dataprep_assets.pipelines.tasks.record import MigratedFile, MigrationRecord, read_record, row_ids
from dataprep_assets.pipelines.tasks.routes import TaskRoute, find_route
from dataprep_assets.pipelines.tasks.task_rows import TaskRows, read_rows
from dataprep_assets.sources.readers.contents import detect_non_text
from dataprep_assets.sources.readers.unreadable import detect_file_shape
from dataprep_assets.stores.files import OTHERS, sha256_file

FILES, ROWS, CONFLICT = "files_match_receipt", "rows_match_schema", "no_conflict"
_CORRECT_REMEDY = "Correct the file in the old project, or choose a different version, and migrate the task again"


@dataclass(frozen=True, slots=True)
class TaskFault:
    """A fault of a task folder; `warns` is true if the data is usable despite the fault."""

    text: str
    warns: bool = False


@dataclass(frozen=True)
class _TaskFolders:
    """Task folders of a declaration: all `partitions`, and the partitions `selected` in this run.

    A selected folder that was never migrated fails. Other folders are checked only if they were migrated.
    """

    declaration: TaskMigrationDeclaration
    partitions: Sequence[str]
    store: ArtifactStore
    selected: Sequence[str]

    @cached_property
    def faults(self) -> Mapping[str, Mapping[str, Sequence[TaskFault]]]:
        """Task folder → check → faults of the folder."""
        examined_keys = [
            p for p in self.partitions if p in self.selected or _is_migrated(self.declaration, self.store, p)
        ]
        return {p: self._find_faults(p) for p in examined_keys}

    def _find_faults(self, partition: str) -> Mapping[str, Sequence[TaskFault]]:
        faults_by_check = check_task(self.declaration, self.store, partition)
        if not self.declaration.tasks[partition.partition(".")[0]].optional:
            return faults_by_check
        return {name: [replace(fault, warns=True) for fault in faults] for name, faults in faults_by_check.items()}

    def build_finding(self, name: str, remedy: str) -> Finding:
        """Build the finding of one check over all task folders."""
        tasks = {p: faults_by_check[name] for p, faults_by_check in self.faults.items() if name in faults_by_check}
        return _build_finding(tasks, [p for p in self.partitions if p not in self.faults], remedy)


@dataclass(frozen=True, kw_only=True)
class _TaskChecks(WholeArtifactChecks[_TaskFolders]):
    """Checks of task folders; a check without any task to examine is skipped, so it neither passes nor fails."""

    def examine(
        self, spec: CheckedSpec, store: ArtifactStore, partitions: Sequence[str]
    ) -> Iterator[tuple[str, Finding]]:
        findings = super().examine(spec, store, partitions)
        return ((name, finding) for name, finding in findings if finding.facts["tasks"])


def build_task_checks(
    declaration: TaskMigrationDeclaration, task_ids: Sequence[str]
) -> WholeArtifactChecks[_TaskFolders]:
    """Return the checks of all task folders of a declaration, with the partitions in `task_ids`."""
    return _TaskChecks(checks=CHECKS, open=partial(_TaskFolders, declaration, task_ids))


def _is_migrated(declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str) -> bool:
    try:
        return store.receipt(declaration.artifact(TASK_FOLDER, partition)) is not None
    except DataprepError:
        return True  # a damaged receipt counts as migrated, so that the check runs and reports it


def _build_finding(tasks: Mapping[str, Sequence[TaskFault]], waiting: Sequence[str], remedy: str) -> Finding:
    """Build one finding for all tasks, a warning if all faults only warn; `waiting` tasks were never migrated."""
    faults = [(p, fault) for p, task_faults in tasks.items() for fault in task_faults]
    faults.sort(key=lambda one: one[1].warns)  # the sort is stable, so the order of files and lines is kept
    verdicts = {
        p: "passes" if not task_faults else "warns" if all(f.warns for f in task_faults) else "fails"
        for p, task_faults in tasks.items()
    }
    bad_tasks = sorted((p for p in tasks if tasks[p]), key=lambda p: verdicts[p])
    rows: list[Row] = [
        {"task": p, "verdict": verdicts[p], "defects": len(tasks[p]), "first_defect": _describe_first(tasks[p])}
        for p in [*bad_tasks, *(p for p in tasks if not tasks[p])]
    ]
    rows += [{"task": p, "verdict": "not migrated yet"} for p in waiting]
    return build_verdict(
        (f"{p}: {fault.text}" for p, fault in faults),
        f"{count_of(len(tasks), 'task')} without faults: {join_first(tasks, 6)}.",
        f"{remedy}. Tasks with faults: {join_first(bad_tasks, 6)}",
        facts={
            "tasks": len(tasks),
            "tasks_failed": sum(v == "fails" for v in verdicts.values()),
            "tasks_warned": sum(v == "warns" for v in verdicts.values()),
            "tasks_not_migrated_yet": len(waiting),
        },
        table=rows,
        warning="fails" not in verdicts.values(),
    )


def _describe_first(faults: Sequence[TaskFault]) -> str:
    return min(faults, key=lambda fault: fault.warns).text if faults else ""


def check_task(
    declaration: TaskMigrationDeclaration, store: ArtifactStore, partition: str
) -> Mapping[str, Sequence[TaskFault]]:
    """Return the faults of one task folder by check, without checks that have nothing to examine."""
    try:
        folder = _TaskFolder(declaration, store, find_route(declaration, partition))
    except DataprepError as error:
        return {FILES: [TaskFault(str(error))]}
    faults = {FILES: _collect_faults(folder.find_file_faults())}
    if folder.rows:
        faults[ROWS] = _collect_faults(folder.find_row_faults())
    if folder.route.target.exists():
        faults[CONFLICT] = _collect_faults(folder.find_conflict_faults())
    return faults


def _collect_faults(faults: Iterable[TaskFault]) -> list[TaskFault]:
    """Collect faults; an error that ends the iteration becomes the last fault."""
    fault_list: list[TaskFault] = []
    try:
        fault_list.extend(faults)
    except DataprepError as error:
        fault_list.append(TaskFault(str(error)))
    except OSError as error:
        fault_list.append(TaskFault(f"{error.filename}: {error.strerror}"))
    return fault_list


@dataclass(frozen=True)
class _TaskFolder:
    """Task folder, opened for checks; its files are read only once, when a check first needs them."""

    declaration: TaskMigrationDeclaration
    store: ArtifactStore
    route: TaskRoute

    @cached_property
    def record(self) -> MigrationRecord:
        """Record of the migration; raises DataprepError if it is missing, damaged or different from its receipt."""
        artifact = self.declaration.artifact(TASK_FOLDER, self.route.partition)
        receipt = self.store.receipt(artifact)
        if receipt is None:
            location = "" if self.route.target.exists() else f": {self.route.target} is missing"
            raise DataprepError(f"not migrated yet{location}. Build this partition")
        record = read_record(self.store.local(artifact))
        recipe = None if record is None else build_task_recipe(artifact, record)
        if (
            record is None
            or recipe is None
            or (receipt.key, TaskFolderFacts.from_receipt(receipt), dict(receipt.inputs))
            != (
                recipe.key,
                TaskFolderFacts.from_record(record),
                {file.source: file.sha256 for file in record.files},
            )
        ):
            raise DataprepError(
                f"{self.store.location(artifact)}: the receipt and the migration record do not match. Migrate the "
                "task again"
            )
        return record

    @cached_property
    def rows(self) -> Mapping[Split, TaskRows]:
        """Split → the rows of its file, for readable files."""
        rows = {}
        for split, spec in self._list_files():
            path = self.route.target / spec.name
            try:
                if path.is_file():
                    rows[split] = read_rows(path)
            except OSError:
                continue  # the check of the files reports the error
        return rows

    def _list_files(self) -> Iterator[tuple[Split, FileSpec]]:
        return ((split, self.route.contract.files[split]) for split in self.route.contract.splits)

    def find_file_faults(self) -> Iterator[TaskFault]:
        """Yield differences from the record, missing required files, and wrong permissions."""
        details = {a.name: a.detail for a in self.record.absent}
        for _, spec in self._list_files():
            path, file_record = self.route.target / spec.name, self.record.find_file(spec.name)
            if not os.path.lexists(path):
                if spec.required or file_record is not None:
                    reason = f" ({details[spec.name]})" if spec.name in details else self._find_similar_name(spec.name)
                    yield TaskFault(f"{spec.name}: missing in {self.route.target}{reason}")
            elif not path.is_file():
                kind = "a broken link" if path.is_symlink() and not path.exists() else "not a regular file"
                yield TaskFault(f"{spec.name}: {kind} in {self.route.target}")
            else:
                yield from self._find_permission_faults(spec.name)
                if file_record is not None:
                    yield from self._find_changes(file_record)

    def _find_similar_name(self, name: str) -> str:
        folder = self.route.target
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
        return "".join(f" ({n} exists: names are case-sensitive)" for n in names if n.casefold() == name.casefold())

    def _find_permission_faults(self, name: str) -> Iterator[TaskFault]:
        """Yield faults in the permissions of a copy, or of the old project's file to which a link points."""
        path = self.route.target / name
        permissions, is_link = stat.S_IMODE(path.stat().st_mode), path.is_symlink()
        text = f"{name}: its permissions are {permissions:04o}"
        # Check the mode even for a superuser, who may read every file, because the trainer may run as a different user.
        if not permissions & 0o444 or not os.access(path, os.R_OK):
            yield TaskFault(f"{text}: not readable by this user")
        elif self.route.declaration.sensitive:
            if permissions & OTHERS:
                yield TaskFault(f"{text}: readable by others, although the dataset is sensitive", warns=is_link)
        elif permissions & 0o444 != 0o444 or not (is_link or permissions == MODE):
            yield TaskFault(f"{text}, not {MODE:04o}", warns=True)

    def _find_changes(self, file: MigratedFile) -> Iterator[TaskFault]:
        path = self.route.target / file.name
        if (actual := self.route.digests.digest_of(sha256_file(path))) != file.sha256:
            yield TaskFault(
                f"{file.name}: sha256 is {actual[:12]}…, but was {file.sha256[:12]}… when the file was {file.how} "
                f"from {file.source}"
            )
        elif path.is_symlink() != (file.how == "linked"):
            yield TaskFault(
                f"{file.name}: was {file.how}, but is now a {'link' if path.is_symlink() else 'file'}", True
            )

    def find_row_faults(self) -> Iterator[TaskFault]:
        """Yield faults of rows that do not match the schema, with file and line."""
        for split, rows in self.rows.items():
            spec = self.route.contract.files[split]
            if not rows.rows:
                path = self.route.target / spec.name
                kind = detect_non_text(path) or detect_file_shape(path, "json", None)
                yield TaskFault(f"{spec.name}: has no rows" + ("" if kind is None else f": {kind}"))
            elif spec.rows and len(rows.rows) not in spec.rows:
                allowed = " or ".join(map(str, spec.rows))
                yield TaskFault(
                    f"{spec.name}: has {count_of(len(rows.rows), 'row')}, but the contract allows {allowed}", warns=True
                )
            for line, text, warns in _find_line_faults(self.route, split, rows):
                yield TaskFault(f"{spec.name}:{line}: {text}", warns)

    def find_conflict_faults(self) -> Iterator[TaskFault]:
        """Yield faults for files that a migration would refuse to replace, and for files that no migration wrote."""
        source = read_source(self.route)
        yield from (TaskFault(text) for text in find_conflicts(self.declaration, self.store, source))
        artifact = self.declaration.artifact(TASK_FOLDER, self.route.partition)
        record = self.record if self.store.receipt(artifact) else None
        known_names = {f.file.name for f in source.files} | {f.name for f in (record.files if record else ())}
        for _, spec in self._list_files():
            if spec.name not in known_names and os.path.lexists(self.route.target / spec.name):
                yield TaskFault(
                    f"{spec.name}: exists in {self.route.target}, but no migration of this version wrote it"
                )


def _find_line_faults(route: TaskRoute, split: Split, rows: TaskRows) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and the text of each fault in one file, and whether the fault only warns."""
    contract = route.contract
    yield from ((d.line, d.detail, d.is_harmless) for d in rows.defects)
    first_lines: dict[object, int] = {}
    validator = contract.build_row_validator(split)
    for name, row in zip(row_ids(rows.rows, contract), rows.rows, strict=True):
        # Do not show the id, because it may identify a person. A missing id is a separate fault.
        if contract.id in row.value and first_lines.setdefault(name, row.line) != row.line:
            yield row.line, f"has the same {contract.id} as line {first_lines[name]}", True
        for text, warns in _find_row_faults(route, validator, row.value):
            yield row.line, text, warns


def _find_row_faults(
    route: TaskRoute, validator: SchemaValidator, row: Mapping[str, Any]
) -> Iterator[tuple[str, bool]]:
    """Yield the text of each fault in one row, and whether the fault only warns."""
    try:
        validator.validate_python(row)
    except ValidationError as error:
        for row_error in error.errors(include_url=False, include_input=False, include_context=False):
            is_extra = row_error["type"] == "extra_forbidden"
            # Hide an unknown key of a sensitive dataset, because any text can be a key, even a person's name.
            key = "a key" if is_extra and route.declaration.sensitive else ".".join(map(str, row_error["loc"]))[:60]
            text = "is not in the contract" if is_extra else row_error["msg"]
            yield f"{key}: {text}", is_extra and route.contract.extra_keys == "warned"
    else:
        yield from ((text, False) for text in _find_choice_faults(route.contract.choices, row))


def _find_choice_faults(group: ChoiceGroup | None, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield faults of a row's choices: unequal numbers of texts and labels, a wrong number, or an invalid answer."""
    if group is None:
        return
    texts, labels, answer = (value_at(row, path) for path in (group.texts, group.labels, group.answer))
    if len(texts) != len(labels):
        label_count = count_of(len(labels), "label")
        yield f"{group.texts}: has {count_of(len(texts), 'choice text')}, but {group.labels} has {label_count}"
    elif not group.least <= len(labels) <= group.most:
        yield (
            f"{group.labels}: has {count_of(len(labels), 'choice')}, but the contract allows {group.least} to "
            f"{group.most}"
        )
    elif len(set(labels)) < len(labels):
        yield f"{group.labels}: two choices have the same label"
    if answer not in labels:
        yield f"{group.answer}: is not one of the labels of the row's choices"


CHECKS = (
    Check[_TaskFolders](
        FILES,
        "Every required file exists, is readable, and is the copy or link that the migration wrote.",
        lambda folders: folders.build_finding(FILES, _CORRECT_REMEDY),
    ),
    Check[_TaskFolders](
        ROWS,
        "Every line is one JSON object with the declared keys, types, labels and choices.",
        lambda folders: folders.build_finding(ROWS, _CORRECT_REMEDY),
    ),
    Check[_TaskFolders](
        CONFLICT,
        "The new project has no other files that the migration would overwrite or the trainer would read.",
        lambda folders: folders.build_finding(CONFLICT, "Move the file away, then migrate the task again"),
    ),
)
"""All checks of a task folder."""
