"""Cohort shards (`<dataset>/tfrecord_shards`, `<dataset>/array_record_shards`, one partition per cohort).

They contain the rows of each cohort in the trainers' formats. `sharded_cohort` builds them.

The checks read every record once. They verify checksums, decode the payload without TensorFlow, and compare the columns
with the columnar file that the shards were built from. Only a few rows are in memory at a time. Messages contain files,
records, columns and positions, never a token.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.check import FILES_INTACT, Check, Finding, build_verdict, describe_artifact
from dataprep_assets.engine.checks.verdicts import CheckWorkers, PartitionChecks
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.execution.jobs import Outcome, TaskJob, run_tasks
from dataprep_assets.formats.packed_rows import open_packed_file
from dataprep_assets.formats.tensorflow import array_record, example, tfrecord
from dataprep_assets.formats.tensorflow.example import FeatureColumn
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.packing.rows import COLUMN_DESCRIPTIONS
from dataprep_assets.pipelines.notes.cohorts.packed_files import PACKED_COHORTS, RowFacts, list_packed_paths
from dataprep_assets.pipelines.notes.cohorts.sharded_cohort import (
    COHORT_SHARDS,
    VERSION,
    CohortShardsFacts,
    ShardedCohort,
    SplitShards,
    build_row_ledger,
    ensure_sharded_cohort,
    list_shard_names,
)
from dataprep_assets.pipelines.notes.declaration import TOKENS, FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data

_REBUILD = "Rebuild this partition of the shards"
_POSITIONS_PER_BATCH = 1 << 17
"""Number of positions that are compared at a time, so that their columns stay in a core's cache."""


@dataclass(kw_only=True)
class _ShardCounts:
    """Result of reading the shards of one split: records and payload bytes per shard, and defects per check."""

    records: list[int] = field(default_factory=list)
    payload_bytes: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class CohortShards:
    """Shards of one cohort, opened for checks, with the directory and receipt of the cohort's packed rows."""

    directory: Path
    receipt: Receipt
    packed: Path
    packed_receipt: Receipt
    notes: NotesDeclaration
    month: str

    @cached_property
    def facts(self) -> CohortShardsFacts:
        """Facts in the receipt; raises IntegrityError if a fact is missing."""
        return CohortShardsFacts.from_receipt(self.receipt)

    @property
    def splits(self) -> Mapping[str, SplitShards]:
        """Split → the counts of its shards in the receipt."""
        return self.facts.splits

    def list_names(self, split: str) -> list[str]:
        """Return the names of the files that a split must have, in order."""
        total = len(self.splits[split].shard_lengths)
        return list_shard_names(self.notes, split, self.month, total, self.facts.format)

    @cached_property
    def counts(self) -> Mapping[str, _ShardCounts]:
        """Split → the result of reading all its records."""
        return {split: self._count(split) for split in self.splits}

    def _count(self, split: str) -> _ShardCounts:
        rows = open_packed_file(self.packed / list_packed_paths(self.notes, self.month)[split].rows, masked=False)
        counts, shape = _ShardCounts(), RowFacts.from_receipt(self.packed_receipt).shape
        columns = [FeatureColumn(name=name, length=self.notes.stored_length) for name in shape.columns]
        step = max(1, _POSITIONS_PER_BATCH // shape.row_length)
        for number, name in enumerate(self.list_names(split)):
            # Derive the first row from the shard's number, so that a record missing in an earlier shard does not shift
            # this shard's rows.
            first_row = number * self.facts.rows_per_shard
            records = size = 0
            try:
                for payloads in _group_payloads(self._read_payloads(self.directory / name), step):
                    batch = _decode_columns(payloads, columns, records, shape.row_length)
                    start = first_row + records
                    records += len(payloads)
                    size += sum(map(len, payloads))
                    stored_values = shape.values(rows.block(start, start + len(payloads)))
                    location = f"{name}: records from {records - len(payloads)} on"
                    counts.different += [f"{location}: {d}" for d in _find_differences(batch, stored_values)]
            except FormatError as error:
                text = str(error).replace(f"{self.directory}/", "", 1)
                counts.broken.append(text if name in text else f"{name}: {text}")
            counts.records.append(records)
            counts.payload_bytes.append(size)
        # Compare the totals, because rows after the last record are not compared above.
        if sum(counts.records) != len(rows):
            counts.different.append(
                f"split {split} has {count_of(sum(counts.records), 'record')}, but {PACKED_COHORTS} has "
                f"{count_of(len(rows), 'row')}"
            )
        return counts

    def _read_payloads(self, path: Path) -> Iterator[bytes]:
        if self.facts.format == "array_record":
            return array_record.read_records(path)
        return (record.payload for record in tfrecord.read_records(path))


def _group_payloads(payloads: Iterator[bytes], rows: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for payload in payloads:
        batch.append(payload)
        if len(batch) == rows:
            yield batch
            batch = []
    if batch:
        yield batch


def _decode_columns(
    payloads: list[bytes], columns: list[FeatureColumn], start_token: int, max_tokens: int
) -> dict[str, NDArray[Any]]:
    """Decode the columns of some records, padded to ``max_tokens`` values, the length of the longest possible row."""
    try:
        arrays = example.decode_rows(payloads, columns)
    except FormatError as error:
        raise FormatError(f"records from {start_token} on: {error}") from None
    return {name: _pad_columns(values, max_tokens) for name, values in arrays.items()}


def _pad_columns(values: NDArray[Any], width: int) -> NDArray[Any]:
    # Pad to the length of the longest possible row, as `RowShape.values` does, so that both arrays have the same shape.
    missing = max(0, width - values.shape[1])
    return np.pad(values, ((0, 0), (0, missing)), constant_values=example.ABSENT) if missing else values


def _find_differences(
    rebuilt_columns: Mapping[str, NDArray[Any]], stored_columns: Mapping[str, NDArray[Any]]
) -> Iterator[str]:
    for name, column in rebuilt_columns.items():
        if column.shape != stored_columns[name].shape:
            yield (
                f"column {name} has {count_of(len(column), 'row')}, but {PACKED_COHORTS} has "
                f"{len(stored_columns[name]):,}"
            )
        elif (is_wrong := (column != stored_columns[name]).any(axis=1)).any():
            yield f"row {int(is_wrong.argmax())}, column {name}: differs from {PACKED_COHORTS}"


def open_shards(cohort: ShardedCohort) -> CohortShards:
    """Open the shards of a cohort in a worker.

    Raises MissingArtifactError if the shards or the packed cohort are missing, and IntegrityError if they are damaged.
    """
    return CohortShards(
        directory=cohort.store.local(cohort.artifact),
        receipt=cohort.store.require(cohort.artifact),
        packed=cohort.store.local(cohort.packed),
        packed_receipt=cohort.store.require(cohort.packed),
        notes=cohort.notes,
        month=cohort.month,
    )


def check_records(shards: CohortShards) -> Finding:
    """Check that the files are shards 1 to N of each split, and that all checksums, columns and lengths are valid.

    Each shard must have the records and bytes in the receipt, and the declared number of rows; only the last one may
    have fewer.
    """
    counts = shards.counts.values()
    records = sum(sum(count.records) for count in counts)
    defects = [
        *_find_wrong_names(shards),
        *(defect for count in counts for defect in count.broken),
        *_find_wrong_counts(shards),
    ]
    return build_verdict(
        (f"{describe_artifact(shards.receipt)}: {defect}" for defect in defects),
        f"{count_of(records, 'record')} in {count_of(sum(len(count.records) for count in counts), 'shard')}: "
        "all checksums are correct.",
        f"`rows_per_shard` may have changed since the build. {_REBUILD}",
        facts={"records": records, "rows_per_shard": str(shards.notes.rows_per_shard)},
    )


def _find_wrong_names(shards: CohortShards) -> Iterator[str]:
    expected_names = {name for split in shards.splits for name in shards.list_names(split)}
    listed_names = {record.path for record in shards.receipt.files}
    yield from (f"{name} is not in the receipt" for name in sorted(expected_names - listed_names))
    yield from (f"{name} is not a shard of this cohort" for name in sorted(listed_names - expected_names))


def _find_wrong_counts(shards: CohortShards) -> Iterator[str]:
    limit = shards.notes.rows_per_shard
    for split, counts in shards.counts.items():
        split_facts, last_number = shards.splits[split], len(counts.records)
        entries = zip(
            counts.records, split_facts.shard_lengths, counts.payload_bytes, split_facts.payload_bytes, strict=True
        )
        for number, (name, (rows, length, size, expected_size)) in enumerate(
            zip(shards.list_names(split), entries, strict=True), 1
        ):
            # Compare each shard separately, because errors of several shards could cancel out in a sum.
            if (rows, size) != (length, expected_size):
                yield (
                    f"{name}: has {count_of(rows, 'record')} with {count_of(size, 'byte')} in total, but the receipt "
                    f"lists {count_of(length, 'record')} with {count_of(expected_size, 'byte')}"
                )
            if rows > limit or not rows or (rows < limit and number < last_number):
                yield (
                    f"{name}: has {count_of(rows, 'row')}, but with `rows_per_shard: {limit}`, every shard must have "
                    f"{count_of(limit, 'row')} (the last shard: 1 to {limit:,})"
                )


def check_packed_rows(shards: CohortShards) -> Finding:
    """Check that every stored value equals the packed rows, in order, and that these rows are the receipt's input."""
    counts = shards.counts.values()
    defects = [defect for count in counts for defect in count.different]
    # Report unreadable shards as a defect, because the check must not pass if it compared only some of the records.
    if broken := sum(len(count.broken) for count in counts):
        defects.append(f"{count_of(broken, 'shard')} cannot be read completely")
    if shards.receipt.inputs.get(PACKED_COHORTS) != shards.packed_receipt.content:
        defects.append(f"the shards were not built from the current rows of {PACKED_COHORTS}")
    rows = sum(sum(count.records) for count in counts)
    if shards.receipt.ledger != build_row_ledger(rows, [shards.packed_receipt.ledger]):
        defects.append(f"the ledger does not match the rows of {PACKED_COHORTS}")
    if not RowFacts.from_receipt(shards.receipt).is_compatible(RowFacts.from_receipt(shards.packed_receipt)):
        defects.append(f"its receipt describes different rows than the receipt of {PACKED_COHORTS}")
    return build_verdict(
        (f"{describe_artifact(shards.receipt)}: {defect}" for defect in defects),
        f"{count_of(rows, 'row is', 'rows are')} identical to the packed rows.",
        _REBUILD,
        facts={"rows": rows},
    )


SHARD_CHECKS: tuple[Check[CohortShards], ...] = (
    FILES_INTACT,
    Check(
        "records_intact",
        "Every split has shards 1 to N, named after the cohort. Every record has correct checksums and the declared "
        "columns. Every shard has the record count in the receipt, and every shard except the last has the declared "
        "record count.",
        check_records,
        version=2,
    ),
    Check(
        "matches_packed_rows",
        "The shards match the current rows of packed_cohorts, record by record.",
        check_packed_rows,
    ),
)
_KINDS: dict[FileFormat, set[str]] = {"tfrecord": {"tensorflow", "file"}, "array_record": {"file"}}


def build_cohort_shards_spec(notes: NotesDeclaration, format: FileFormat, *, spec: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of the shards in one format.

    Args:
        notes: The dataset.
        format: One of its formats.
        spec: The packed cohorts, whose partitions the shards share.
    """
    return ArtifactSpec(
        declaration=notes,
        name=COHORT_SHARDS[format],
        version=VERSION,
        description=f"Shards of each cohort (`rows_per_shard: {notes.rows_per_shard}`).",
        kinds=_KINDS[format],
        inputs=(spec,),
        partitions=spec.partitions,
        pool="cpu",
        recipes=partial(_build_recipes, notes, format),
        build=partial(_build_shards, notes, format),
        metadata=_build_metadata,
        columns=dict.fromkeys(notes.columns, _choose_column_type(notes)),
        column_descriptions={TOKENS: "Token ids of the row.", **COLUMN_DESCRIPTIONS},
        check_groups=(
            PartitionChecks(
                checks=SHARD_CHECKS,
                planned=lambda store, months: plan_sharded_cohorts(notes, store, months, format),
                open=open_shards,
                workers=lambda *_: CheckWorkers(engine=notes.engine, declared=notes.workers),
                guard=hide_quoted_data,
            ),
        ),
    )


def _choose_column_type(notes: NotesDeclaration) -> str:
    # Use int64, because an Example stores int64 values. TFDS casts them to int32, the type in `features.json`.
    return "list<int64>" if notes.stored_length is None else f"list<int64>[{notes.stored_length}]"


def plan_sharded_cohorts(
    notes: NotesDeclaration, store: ArtifactStore, months: Iterable[str], format: FileFormat = "tfrecord"
) -> list[ShardedCohort]:
    """Return the shards of the given months of ``notes`` in one format, to be built or checked, in order.

    A month without a packed cohort in ``store`` fails separately, when its shards are built.
    """
    month_keys = list(months)
    artifacts = [notes.artifact(PACKED_COHORTS, month) for month in month_keys]
    return [
        ShardedCohort(
            artifact=notes.artifact(COHORT_SHARDS[format], month),
            packed=artifact,
            store=store,
            notes=notes,
            format=format,
            month=month,
            source_bytes=0 if receipt is None else receipt.total_bytes,
        )
        for month, artifact, receipt in zip(month_keys, artifacts, store.receipts(artifacts), strict=True)
    ]


def _build_shards(notes: NotesDeclaration, format: FileFormat, request: BuildRequest) -> Iterator[Outcome]:
    cohorts = plan_sharded_cohorts(notes, request.store, request.partitions, format)
    return run_tasks(
        [TaskJob(cohort, ensure_sharded_cohort) for cohort in cohorts],
        workers=request.workers,
        engine=notes.engine,
        progress=request.progress,
    )


def _build_recipes(
    notes: NotesDeclaration, format: FileFormat, store: ArtifactStore, months: Sequence[str | None]
) -> Iterator[Recipe]:
    for cohort in plan_sharded_cohorts(notes, store, [month or "" for month in months], format):
        yield cohort.recipe(store.require(cohort.packed))


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    lengths = [
        rows for split in CohortShardsFacts.from_receipt(receipt).splits.values() for rows in split.shard_lengths
    ]
    return {"shards": len(lengths), "rows": sum(lengths)}
