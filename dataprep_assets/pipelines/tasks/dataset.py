"""Dataset class of task migrations: artifacts, remarks, data card and summary.

`<dataset>/task_folder` has one partition per task, or per version of a task, with the files for the trainer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.losses import Loss
from dataprep_assets.engine.artifact.metadata_values import ShownValue, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import (
    ArtifactSpec,
    BuildRequest,
    Partitions,
    SourceIdentity,
    SourceWatch,
    identify_listing,
    join_counts,
    read_modification_time,
)
from dataprep_assets.engine.card.card import build_card_specs
from dataprep_assets.engine.card.contents import CardSource, CardSubject, Receipts, SplitCounts, add_attribution
from dataprep_assets.engine.trace.sample import RowSample, SampledPart, SampledRow, draw_numbers, format_value
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats.json_lines import read_lines
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.tasks.checks import build_task_checks
from dataprep_assets.pipelines.tasks.declaration import TASK_FOLDER, TaskMigrationDeclaration
from dataprep_assets.pipelines.tasks.migration import VERSION, TaskFolderFacts, build_present_recipe, migrate_task
from dataprep_assets.pipelines.tasks.record import MigrationRecord, read_record
from dataprep_assets.pipelines.tasks.routes import (
    TaskRoute,
    find_route,
    find_target,
    format_task_line,
    list_partitions,
    list_skipped_partitions,
)


class Tasks(Dataset):
    """Versions of synthetic data, migrated into the trainer's folders, with a contract for each task."""

    component: ClassVar[str] = "TaskMigration"
    pipeline: ClassVar[str] = "tasks"
    model: ClassVar[type[TaskMigrationDeclaration]] = TaskMigrationDeclaration
    declaration: TaskMigrationDeclaration

    @cached_property
    def card_subject(self) -> CardSubject:
        return _describe_card(self.declaration, [build_task_folder_spec(self.declaration)])

    @cached_property
    def specs(self) -> Sequence[ArtifactSpec]:
        return [*self.card_subject.specs, *build_card_specs(self.card_subject)]

    def product(self, store: ArtifactStore) -> Artifact:
        return self.declaration.artifact(TASK_FOLDER, list_partitions(self.declaration)[0])

    def remarks(self) -> Iterable[Remark]:
        return _find_remarks(self.declaration)

    def list_sampled_artifacts(self, store: ArtifactStore) -> list[Artifact]:
        return [self.declaration.artifact(TASK_FOLDER, partition) for partition in list_partitions(self.declaration)]

    def sample(self, store: ArtifactStore, count: int, seed: str) -> RowSample:
        if self.declaration.sensitive:
            return RowSample()
        records = {
            artifact.partition or "": record
            for artifact in self.list_sampled_artifacts(store)
            if store.receipt(artifact) is not None and (record := read_record(store.local(artifact))) is not None
        }
        total = sum(file.rows for record in records.values() for file in record.files)
        return RowSample(total=total, rows=self._sample_records(records, count, seed))

    def _sample_records(self, records: Mapping[str, MigrationRecord], count: int, seed: str) -> Iterator[SampledRow]:
        share = max(count // max(1, sum(len(record.files) for record in records.values())), 1)
        for partition, record in records.items():
            target = find_target(self.declaration, partition)
            for file in record.files:
                numbers = {*draw_numbers(file.rows, share, f"{seed}/{partition}/{file.name}")}
                for number, value in enumerate(read_lines(target / file.name)):
                    if number in numbers:
                        yield SampledRow(
                            split=partition,
                            file=(target / file.name).relative_to(self.declaration.new_root.absolute()).as_posix(),
                            row=number + 1,
                            partition=partition,
                            locations=(),
                            parts=[SampledPart(name=name, text=format_value(field)) for name, field in value.items()],
                            is_traceable=False,
                        )

    def summary(self, store: ArtifactStore) -> list[str]:
        lines = [f"{'task':<24}{'version':>16}{'files':>8}{'rows':>10}   for the training script"]
        lines += [self._describe_state(store, partition) for partition in list_partitions(self.declaration)]
        return lines

    def _describe_state(self, store: ArtifactStore, partition: str) -> str:
        """Describe the state of a partition's migration, with the line for a training script."""
        try:
            receipt = store.receipt(self.declaration.artifact(TASK_FOLDER, partition))
        except DataprepError:
            return f"{partition:<24}  its record is damaged (see the check `files_match_receipt`)"
        if receipt is None:
            return f"{partition:<24}  not migrated yet"
        facts = TaskFolderFacts.from_receipt(receipt)
        files, rows, target = len(facts.rows), sum(facts.rows.values()), find_target(self.declaration, partition)
        # Show the line for training scripts only if the folder exists, because a script cannot use a missing folder.
        line = format_task_line(target) if target.is_dir() else f"its folder is missing: {target}"
        return f"{partition:<24}{facts.version:>16}{files:>8}{rows:>10,}   {line}"

    def describe_state(self, store: ArtifactStore) -> list[str]:
        return self.summary(store)


def _find_remarks(migration: TaskMigrationDeclaration) -> Iterator[Remark]:
    """Yield remarks on the folders before a migration; lists folders, but reads no files."""
    if not migration.old_tasks.is_dir():
        text = (
            f"old_root: {migration.old_tasks}: folder does not exist. Correct `old_root`, or set `layout` to the part "
            "of the path below it"
        )
        yield Remark(keys=("old_root",), sentence=text, of_source=True)
        return
    for partition, reason in list_skipped_partitions(migration).items():
        text = f"tasks.{partition}: {reason}: skipped, because it is optional"
        yield Remark(keys=("tasks", partition.partition(".")[0]), sentence=text, of_source=True, hint=True)
    for partition in list_partitions(migration):
        task = partition.partition(".")[0]
        try:
            source = find_route(migration, partition).source
        except DataprepError as error:
            yield Remark(keys=("tasks", task), sentence=str(error), of_source=True)
            continue
        if not source.is_dir():
            text = f"tasks.{task}: {source}: folder does not exist. Set `old_folder` if it has a different name"
            yield Remark(keys=("tasks", task), sentence=text, of_source=True)
    if migration.original is not None and not migration.original.is_dir():
        text = f"original: {migration.original}: folder does not exist. The old project's base is used instead"
        yield Remark(keys=("original",), sentence=text, hint=True)


def _describe_card(declaration: TaskMigrationDeclaration, specs: Sequence[ArtifactSpec]) -> CardSubject:
    """Return the facts for the data card of a migration, with a source and a license for each task."""
    return CardSubject(
        declaration=declaration,
        specs=specs,
        products=specs,
        counted=specs,
        sources=partial(_list_card_sources, declaration),
        splits=_count_card_splits,
    )


def _list_card_sources(declaration: TaskMigrationDeclaration, _: ArtifactStore, receipts: Receipts) -> list[CardSource]:
    facts = _read_facts(receipts)
    sources = {
        task: CardSource(name=task, kind="task folder", files=sum(len(f.rows) for f in facts if f.task == task))
        for task in dict.fromkeys(partition.partition(".")[0] for partition in list_partitions(declaration))
    }
    return [add_attribution(source, declaration.tasks[task]) for task, source in sources.items()]


def _count_card_splits(receipts: Receipts) -> list[SplitCounts]:
    facts = _read_facts(receipts)
    return [
        SplitCounts(
            split=split,
            files=sum(split in folder_facts.rows for folder_facts in facts),
            rows=sum(folder_facts.rows.get(split, 0) for folder_facts in facts),
        )
        for split in dict.fromkeys(split for folder_facts in facts for split in folder_facts.rows)
    ]


def _read_facts(receipts: Receipts) -> list[TaskFolderFacts]:
    return [TaskFolderFacts.from_receipt(receipt) for task_receipts in receipts.values() for receipt in task_receipts]


def build_task_folder_spec(declaration: TaskMigrationDeclaration) -> ArtifactSpec:
    """Return the spec of a migration's task folders; a failed folder does not stop the other folders."""
    keys = list_partitions(declaration)
    return ArtifactSpec(
        declaration=declaration,
        name=TASK_FOLDER,
        version=VERSION,
        description=_describe_tasks(declaration),
        kinds={"json", "file"},
        partitions=Partitions.from_keys(keys, "task"),
        watch=SourceWatch(
            identity=partial(_compute_identity, declaration), changes=partial(_describe_changes, declaration)
        ),
        recipes=partial(_build_recipes, declaration),
        build=partial(_build_folders, declaration),
        metadata=partial(_build_metadata, declaration),
        losses=partial(_find_losses, declaration),
        check_groups=(build_task_checks(declaration, keys),),
    )


def _build_recipes(
    declaration: TaskMigrationDeclaration, store: ArtifactStore, chosen_partitions: Sequence[str | None]
) -> Iterator[Recipe]:
    for partition in chosen_partitions:
        yield build_present_recipe(declaration, store, partition or "")


def _build_folders(declaration: TaskMigrationDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    for partition in request.partitions:
        try:
            migration = migrate_task(declaration, request.store, partition)
        except DataprepError as error:
            yield Outcome(partition=partition, error=error)
        else:
            # Do not report a folder as reused if files were placed in it, because its files changed even if its record
            # did not.
            yield Outcome.from_receipt(migration.receipt, migration.reused and not migration.placed)


def _describe_tasks(declaration: TaskMigrationDeclaration) -> str:
    """Build the asset's description for the UI, in Markdown, with a table of the declared tasks."""
    tasks = []
    for name, task in declaration.tasks.items():
        files = ", ".join(file.name for file in declaration.find_contract(name).files.values())
        tasks.append(f"| {name}{' (optional)' if task.optional else ''} | {task.version} | {task.mode} | {files} |")
    sentences = (
        "Task folders of the old project, migrated to the folders that the trainer reads. Each partition is a task, or "
        "a version of a task. Its metadata shows the origin of every file, the rows that differ from the original, and "
        "the value of `TASK` for the training script."
    )
    table = "\n".join(["| task | version | mode | files |", "|---|---|---|---|", *tasks])
    return f"{sentences}\n\n{table}"


def _find_losses(
    declaration: TaskMigrationDeclaration, store: ArtifactStore, receipts: Sequence[Receipt]
) -> Iterator[Loss]:
    """Yield absent and ignored files, original rows without a counterpart, and folders that are not versions."""
    skipped: dict[tuple[str, str], Loss] = {}
    for receipt in receipts:
        partition = receipt.partition or ""
        if (record := read_record(store.local(declaration.artifact(TASK_FOLDER, partition)))) is None:
            continue
        for folder in record.unordered_versions:
            # Set the total to 0, because the number of folders that should be versions is unknown.
            skipped[record.task, folder.name] = _build_loss(
                "not_a_version", {folder.name: 1}, 0, record.task, unit="folder", kind=folder.reason
            )
        files = len(record.files) + len(record.absent) + len(record.ignored_files)
        yield _build_loss("never_read", dict.fromkeys(record.ignored_files, 1), files, partition)
        for absent_file in record.absent:
            yield _build_loss("absent", {absent_file.name: 1}, files, partition, kind=absent_file.cause)
        for split, difference in record.differences.items():
            name = declaration.find_contract(record.task).files[split].name
            lost, kind = {name: difference.missing}, f"rows of the {record.compared_with}"
            part = f"{partition}, {split}"
            yield _build_loss("no_row_of_its_id", lost, difference.original_rows, part, unit="row", kind=kind)
    yield from skipped.values()
    for partition, reason in list_skipped_partitions(declaration).items():
        yield _build_loss("optional", {partition: 1}, 1, partition, unit="task", kind=reason)


def _build_loss(
    reason: str, files: Mapping[str, int], total: int, part: str, *, unit: str = "file", kind: str = ""
) -> Loss:
    count = sum(files.values())
    return Loss(action="left out", reason=reason, kind=kind, count=count, of=total, unit=unit, part=part, files=files)


def _build_metadata(
    declaration: TaskMigrationDeclaration, store: ArtifactStore, receipt: Receipt
) -> Mapping[str, ShownValue]:
    partition = receipt.partition or ""
    record = read_record(store.local(declaration.artifact(TASK_FOLDER, partition)))
    return {} if record is None else _describe_record(declaration, partition, record)


def _describe_record(
    declaration: TaskMigrationDeclaration, partition: str, record: MigrationRecord
) -> dict[str, ShownValue]:
    """Build metadata: origins of the files, differences from the original, and the value for a training script."""
    route = find_route(declaration, partition)
    metadata: dict[str, ShownValue] = {
        "TASK": str(route.target),
        "training_script_line": format_task_line(route.target),
        "version": record.version,
        "file_origins": Table(record.build_origin_table()),
        "missing_files": len(record.absent),
    }
    metadata |= {f"rows_{file.split}": file.rows for file in record.files}
    if record.differences:
        metadata[f"difference_from_{record.compared_with}"] = Table(
            [{"split": split, **difference.model_dump()} for split, difference in record.differences.items()]
        )
    for split, difference in record.differences.items():
        metadata[f"rows_changed_{split}"] = difference.changed
        metadata[f"labels_changed_{split}"] = difference.relabelled
    if record.ignored_files:
        metadata["unread_files"] = Table([{"file": name} for name in record.ignored_files])
    if record.unordered_versions:
        metadata["ignored_versions"] = Table([v.model_dump() for v in record.unordered_versions])
    return metadata


# Changes in the old project are detected by the files' names, sizes and modification times, so that no file is read.


def _compute_identity(declaration: TaskMigrationDeclaration, _: ArtifactStore) -> SourceIdentity:
    listing: list[list[str | int]] = []
    stamps: list[list[str | int]] = []
    for partition in list_partitions(declaration):
        route = find_route(declaration, partition)
        for name, path in _find_source_files(route):
            listing.append([partition, route.version, name, path.stat().st_size])
            stamps.append([name, read_modification_time(path, name)])
            # Include the original file, because the record lists the differences from this file.
            original = route.reference[1] / path.name if route.reference else None
            if original is not None and original.is_file():
                stamps.append([f"reference of {name}", read_modification_time(original, name)])
    return identify_listing(listing, stamps)


def _find_source_files(route: TaskRoute) -> Iterator[tuple[str, Path]]:
    """Yield the name in the old project and the path of each file that a migration would read; reads no files."""
    for split in route.contract.splits:
        folders = [route.source, *([route.base] if split in route.task_declaration.inherit else [])]
        name = route.contract.files[split].name
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is not None:
            yield path.relative_to(route.declaration.old_root).as_posix(), path


def _describe_changes(declaration: TaskMigrationDeclaration, store: ArtifactStore) -> str:
    """Describe the changes since the current migrations, by their records."""
    new = versions = edited = 0
    for partition in list_partitions(declaration):
        artifact = declaration.artifact(TASK_FOLDER, partition)
        record = read_record(store.local(artifact)) if store.intact_receipt(artifact) is not None else None
        route = find_route(declaration, partition)
        if record is None:
            new += 1
        elif record.version != route.version:
            versions += 1
        else:
            sizes = {name: path.stat().st_size for name, path in _find_source_files(route)}
            edited += sizes != {f.source: f.bytes for f in record.files}
    return join_counts([(new, "task", "new"), (versions, "version", "new"), (edited, "task", "changed")])
