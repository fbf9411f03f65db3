"""The artifacts `<dataset>/tfrecord_shards` and `<dataset>/array_record_shards`, one partition per cohort.

The rows of each cohort as shards that trainers read. `sharded_cohort` makes them.

Its checks read every record once: checksums are verified, the payload is decoded without TensorFlow, and the columns
are compared with the invariants of packed rows and with the columnar file that the shards were made from. A few rows
are in memory at a time. Messages name files, records, columns and positions, never a token.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import DataprepError, FormatError
from dataprep_assets.execution.jobs import Outcome, TaskJob, run_tasks
from dataprep_assets.execution.pool import worker_count
from dataprep_assets.formats import array_record, example, tfrecord
from dataprep_assets.formats.example import FeatureColumn
from dataprep_assets.formats.packed_rows import open_packed
from dataprep_assets.graph.finding import Finding, files_intact, judged, name_of, verdict
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Shown
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, Proof, Proofs
from dataprep_assets.graph.verdicts import find_in_workers, of_all_partitions
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.packing.row_defects import find_row_defects
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.packed_files import PACKED_COHORTS, RowFacts, packed_paths
from dataprep_assets.pipelines.notes.packed_rows_proofs import token_defects
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.row_shape import RowShape
from dataprep_assets.pipelines.notes.sharded_cohort import (
    COHORT_SHARDS,
    VERSION,
    CohortShardsFacts,
    ShardedCohort,
    SplitShards,
    ensure_sharded_cohort,
    row_ledger,
    shard_names,
)
from dataprep_assets.plural import count_of
from dataprep_assets.stream.tokenizer import load_bundle

SHARD_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof("names_complete", "The files are shards 1 to N of each split, named as their cohort, and nothing else."),
    Proof(
        "records_intact",
        "The checksums of every record are right, and it has the declared columns and lengths.",
    ),
    Proof("lengths_counted", "The rows and payload bytes of each shard, counted, are those of the receipt."),
    Proof("only_the_last_is_shorter", "Every shard has the declared rows; only the last of a cohort has fewer."),
    Proof(
        "rows_valid",
        "Every stored row holds the invariants: segments, positions, labels, padding, ids in the vocabulary.",
    ),
    Proof("equals_packed_rows", "Record for record, the shards are the rows of packed_cohorts as it is now."),
)

_REBUILD = "Materialize this partition of the shards again"
_POSITIONS = 1 << 17
"""Positions of the rows that are compared at a time: their columns stay in a core's cache."""


@dataclass(kw_only=True)
class _Counted:
    """The result of reading the shards of one split: records and payload bytes of each, and defects by proof."""

    records: list[int] = field(default_factory=list)
    payload_bytes: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class CohortShards:
    """The shards of one cohort to prove, and the directory and receipt of the packed rows that they were made from."""

    directory: Path
    receipt: Receipt
    packed: Path
    packed_receipt: Receipt
    notes: NotesDeclaration
    month: str
    vocab_size: int

    @cached_property
    def facts(self) -> CohortShardsFacts:
        """The receipt's facts; raises IntegrityError when one is missing."""
        return CohortShardsFacts.of(self.receipt)

    @property
    def splits(self) -> Mapping[str, SplitShards]:
        """Split → its shards in the receipt."""
        return self.facts.splits

    def names(self, split: str) -> list[str]:
        """The files that a split must have, in order."""
        total = len(self.splits[split].shard_lengths)
        return shard_names(self.notes, split, self.month, total, self.facts.format)

    @cached_property
    def counted(self) -> Mapping[str, _Counted]:
        """Split → the result of reading all its records."""
        return {split: self._count(split) for split in self.splits}

    def _count(self, split: str) -> _Counted:
        rows = open_packed(self.packed / packed_paths(self.notes, self.month)[split].rows, masked=False)
        found, shape = _Counted(), RowFacts.of(self.packed_receipt).shape
        columns = [FeatureColumn(name=name, length=self.notes.stored_length) for name in shape.columns]
        step = max(1, _POSITIONS // shape.row_length)
        for number, name in enumerate(self.names(split)):
            # where the shard has to begin, whatever was read before it: a record lost there does not shift this one
            first = number * self.facts.rows_per_shard
            records = size = 0
            try:
                for payloads in _batches(self._payloads(self.directory / name), step):
                    batch = _decoded(payloads, columns, records, shape.row_length)
                    at = first + records
                    records += len(payloads)
                    size += sum(map(len, payloads))
                    stored = shape.values(rows.block(at, at + len(payloads)))
                    where = f"{name}, of the records from {records - len(payloads)} on"
                    found.invalid += [f"{where}: {d}" for d in self._invalid(batch, shape)]
                    found.different += [f"{where}: {d}" for d in _differences(batch, stored)]
            except FormatError as error:
                found.broken.append(str(error).replace(f"{self.directory}/", "", 1))
            found.records.append(records)
            found.payload_bytes.append(size)
        # rows behind the last record were compared with nothing
        if sum(found.records) != len(rows):
            found.different.append(f"{sum(found.records)} records of {split}, {len(rows)} rows in {PACKED_COHORTS}")
        return found

    def _payloads(self, path: Path) -> Iterator[bytes]:
        if self.facts.format == "array_record":
            return array_record.records(path)
        return (record.payload for record in tfrecord.records(path))

    def _invalid(self, columns: Mapping[str, NDArray[Any]], shape: RowShape) -> Iterator[str]:
        if self.notes.layout == "unpacked":
            yield from token_defects(columns, shape, self.vocab_size)
            return
        for defect in find_row_defects(
            columns,
            row_length=shape.row_length,
            pad_id=shape.pad_id,
            vocab_size=self.vocab_size,
            pad_is_reserved=not self.notes.pad_may_occur,
        ):
            yield str(defect)


def _batches(payloads: Iterator[bytes], rows: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for payload in payloads:
        batch.append(payload)
        if len(batch) == rows:
            yield batch
            batch = []
    if batch:
        yield batch


def _decoded(payloads: list[bytes], columns: list[FeatureColumn], before: int, most: int) -> dict[str, NDArray[Any]]:
    """The columns of some records, as wide as the longest row may be: ``most`` values."""
    try:
        found = example.decode_rows(payloads, columns)
    except FormatError as error:
        raise FormatError(f"of the records from {before} on, {error}") from None
    return {name: _widened(values, most) for name, values in found.items()}


def _widened(values: NDArray[Any], width: int) -> NDArray[Any]:
    # `RowBlock.columns` fills its arrays to the longest row, so both have one shape
    missing = max(0, width - values.shape[1])
    return np.pad(values, ((0, 0), (0, missing)), constant_values=example.ABSENT) if missing else values


def _differences(found: Mapping[str, NDArray[Any]], stored: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    for name, column in found.items():
        if column.shape != stored[name].shape:
            yield f"column {name} has {len(column)} rows, {PACKED_COHORTS} {len(stored[name])}"
        elif (wrong := (column != stored[name]).any(axis=1)).any():
            yield f"row {int(wrong.argmax())}, column {name}: not that of {PACKED_COHORTS}"


def prove_cohort_shards(cohort: ShardedCohort) -> dict[str, Finding]:
    """Every proof of the shards of one cohort, by name; shards or rows that are missing fail them all."""
    try:
        with unquoting(cohort.month):
            receipt, packed_receipt = cohort.store.require(cohort.artifact), cohort.store.require(cohort.packed)
            shards = CohortShards(
                directory=cohort.store.local(cohort.artifact),
                receipt=receipt,
                packed=cohort.store.local(cohort.packed),
                packed_receipt=packed_receipt,
                notes=cohort.notes,
                month=cohort.month,
                vocab_size=load_bundle(cohort.notes.tokenizer).vocab_size,
            )
    except DataprepError as error:  # an unreadable receipt is the finding
        return {proof.name: Finding(passed=False, summary=str(error)) for proof in SHARD_PROOFS}
    with unquoting(cohort.month):
        return {
            "files_intact": files_intact(shards.directory, shards.receipt, _REBUILD),
            "names_complete": names_complete(shards),
            "records_intact": records_intact(shards),
            "lengths_counted": lengths_counted(shards),
            "only_the_last_is_shorter": only_the_last_is_shorter(shards),
            "rows_valid": rows_valid(shards),
            "equals_packed_rows": equals_packed_rows(shards),
        }


@judged
def names_complete(shards: CohortShards) -> Finding:
    """The receipt lists shards 1 to N of each split and nothing else, and they are there."""
    wanted = {name for split in shards.splits for name in shards.names(split)}
    listed = {record.path for record in shards.receipt.files}
    there = {name for name in wanted if (shards.directory / name).is_file()}
    where = name_of(shards.receipt)
    defects = [f"{where}: {name} is not in the receipt" for name in sorted(wanted - listed)]
    defects += [f"{where}: {name} is not a shard of this cohort" for name in sorted(listed - wanted)]
    defects += [f"{where}: {name} is not there" for name in sorted(wanted - there)]
    return verdict(defects, f"{count_of(len(wanted), 'shard')}, all named.", _REBUILD, facts={"shards": len(wanted)})


def _all(shards: CohortShards, kind: str) -> list[str]:
    where = name_of(shards.receipt)
    return [f"{where}: {d}" for of in shards.counted.values() for d in getattr(of, kind)]


def _unread(shards: CohortShards) -> list[str]:
    """Shards that could not be read and so were not examined: no proof passes on half of the records."""
    broken = sum(len(of.broken) for of in shards.counted.values())
    return [f"{name_of(shards.receipt)}: {broken} shards cannot be read to their end"] if broken else []


@judged
def records_intact(shards: CohortShards) -> Finding:
    """Both checksums of every record, and its columns and their lengths."""
    records = sum(sum(of.records) for of in shards.counted.values())
    return verdict(
        _all(shards, "broken"), f"{records} records, every checksum right.", _REBUILD, facts={"records": records}
    )


@judged
def lengths_counted(shards: CohortShards) -> Finding:
    """Each shard's records and payload bytes: a wrong length that another shard makes up for is found."""
    defects = []
    for split, of in shards.counted.items():
        recorded, names = shards.splits[split], shards.names(split)
        for name, counted, length in zip(names, of.records, recorded.shard_lengths, strict=True):
            if counted != length:
                defects.append(f"{name}: {counted} records, the receipt says {length}")
        for name, counted, size in zip(names, of.payload_bytes, recorded.payload_bytes, strict=True):
            if counted != size:
                defects.append(f"{name}: {counted} payload bytes, the receipt says {size}")
    records = sum(sum(of.records) for of in shards.counted.values())
    shards_there = sum(len(of.records) for of in shards.counted.values())
    return verdict(
        (f"{name_of(shards.receipt)}: {d}" for d in defects),
        f"{records} records in {count_of(shards_there, 'shard')}, each as many as the receipt says.",
        _REBUILD,
        facts={"records": records, "shards": shards_there},
    )


@judged
def only_the_last_is_shorter(shards: CohortShards) -> Finding:
    """Counted rows of each shard, against the declared number."""
    most = shards.notes.rows_per_shard
    defects = []
    for split, of in shards.counted.items():
        for number, (name, rows) in enumerate(zip(shards.names(split), of.records, strict=True), 1):
            if rows > most or not rows or (rows < most and number < len(of.records)):
                defects.append(f"{name}: {rows} rows, {most} are declared and only the last shard has fewer")
    return verdict(
        (f"{name_of(shards.receipt)}: {d}" for d in defects),
        f"All shards but the last are full: `rows_per_shard` is {most}.",
        f"rows_per_shard may have changed since. {_REBUILD}",
        facts={"rows_per_shard": str(most)},
    )


@judged
def rows_valid(shards: CohortShards) -> Finding:
    """Every stored row holds the invariants of its layout."""
    rows = sum(sum(of.records) for of in shards.counted.values())
    defects = [*_all(shards, "invalid"), *_unread(shards)]
    return verdict(defects, f"{rows} rows hold every invariant.", _REBUILD, facts={"rows": rows})


@judged
def equals_packed_rows(shards: CohortShards) -> Finding:
    """Every stored value equals that of the packed rows, in order, and the receipt names these rows as its input."""
    defects = [*_all(shards, "different"), *_unread(shards)]
    if shards.receipt.inputs.get(PACKED_COHORTS) != shards.packed_receipt.content:
        defects.append(f"{name_of(shards.receipt)}: made of other rows than {PACKED_COHORTS} has now")
    rows = sum(sum(of.records) for of in shards.counted.values())
    if shards.receipt.ledger != row_ledger(rows, [shards.packed_receipt.ledger]):
        defects.append(f"{name_of(shards.receipt)}: its ledger is not that of these rows")
    if not RowFacts.of(shards.receipt).alike(RowFacts.of(shards.packed_receipt)):
        defects.append(f"{name_of(shards.receipt)}: its receipt tells of other rows than that of {PACKED_COHORTS}")
    return verdict(defects, f"{rows} rows, all equal.", _REBUILD, facts={"rows": rows})


_KINDS: dict[FileFormat, set[str]] = {"tfrecord": {"tensorflow", "file"}, "array_record": {"file"}}


def cohort_shards_spec(notes: NotesDeclaration, format: FileFormat, *, packed: ArtifactSpec) -> ArtifactSpec:
    """The shards in one format.

    Args:
        notes: The dataset.
        format: One of its formats.
        packed: The packed cohorts, whose partitions the shards share.
    """
    return ArtifactSpec(
        declaration=notes,
        name=COHORT_SHARDS[format],
        version=VERSION,
        description=f"Shards of at most {notes.rows_per_shard} examples of each cohort.",
        kinds=_KINDS[format],
        inputs=(packed,),
        partitions=packed.partitions,
        pool="cpu",
        recipes=partial(_recipes, notes, format),
        build=partial(_build, notes, format),
        metadata=_metadata,
        columns=dict.fromkeys(notes.columns, _column_type(notes)),
        proofs=Proofs(proofs=SHARD_PROOFS, examine=partial(_examine, notes, format)),
    )


def _column_type(notes: NotesDeclaration) -> str:
    # as an Example stores integers; TFDS casts them to the int32 of its features.json
    return "list<int64>" if notes.stored_length is None else f"list<int64>[{notes.stored_length}]"


def sharded_cohorts(
    notes: NotesDeclaration, store: ArtifactStore, months: Iterable[str], format: FileFormat = "tfrecord"
) -> list[ShardedCohort]:
    """The shards in one format of the given months of ``notes``, to be made or proven, in their order.

    A month whose packed cohort is not in ``store`` fails alone, when its shards are built.
    """
    chosen = list(months)
    packed = [notes.artifact(PACKED_COHORTS, month) for month in chosen]
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
        for month, artifact, receipt in zip(chosen, packed, store.receipts(packed), strict=True)
    ]


def _build(notes: NotesDeclaration, format: FileFormat, request: BuildRequest) -> Iterator[Outcome]:
    cohorts = sharded_cohorts(notes, request.store, request.partitions, format)
    return run_tasks(
        [TaskJob(cohort, ensure_sharded_cohort) for cohort in cohorts],
        workers=request.workers,
        engine=notes.engine,
        progress=request.progress,
    )


def _recipes(
    notes: NotesDeclaration, format: FileFormat, store: ArtifactStore, months: Sequence[str | None]
) -> Iterator[Recipe]:
    for cohort in sharded_cohorts(notes, store, [month or "" for month in months], format):
        yield cohort.recipe(store.require(cohort.packed))


def _examine(
    notes: NotesDeclaration, format: FileFormat, store: ArtifactStore, examined: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    workers = worker_count(notes.workers)
    cohorts = {cohort.month: cohort for cohort in sharded_cohorts(notes, store, examined, format)}
    return of_all_partitions(
        store,
        SHARD_PROOFS,
        notes.months.expected,
        examined,
        artifact=partial(notes.artifact, COHORT_SHARDS[format]),
        prove=lambda months: find_in_workers(
            [cohorts[month] for month in months], prove_cohort_shards, workers, engine=notes.engine
        ),
        noun="cohort",
    )


def _metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    lengths = [rows for split in CohortShardsFacts.of(receipt).splits.values() for rows in split.shard_lengths]
    return {"shards": len(lengths), "rows": sum(lengths)}
