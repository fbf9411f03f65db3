"""Proofs on the directory of one dataset: its own files, and the cohorts that its shards come from.

Entry points: `DIRECTORY_PROOFS`, `prove_directory`. What holds for every directory is in `tfds_metadata_proofs`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dataprep_assets.formats import tfds
from dataprep_assets.formats.example import Column
from dataprep_assets.graph.finding import Finding, first_of, judged, name_of, verdict
from dataprep_assets.graph.spec import Proof
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.ledger import RETRACTED
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.packed_files import (
    PACKED_COHORTS,
    PackedCohortFacts,
    RowFacts,
    packed_paths,
    read_patients,
)
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.provenance import PROVENANCE, ShardOrigin
from dataprep_assets.pipelines.notes.sharded_cohort import COHORT_SHARDS, row_ledger
from dataprep_assets.pipelines.notes.tfds_metadata_proofs import (
    METADATA_PROOFS,
    REBUILD,
    REBUILD_SOURCES,
    TFDS_READS,
    TfdsDirectory,
    metadata_findings,
    tfds_reads,
)
from dataprep_assets.plural import count_of

DIRECTORY_PROOFS = (
    *METADATA_PROOFS,
    Proof(
        "equals_cohort_shards",
        "Each shard is, byte for byte, one of a cohort as it is now; rows equal the JSON lines.",
    ),
    Proof(
        "months_complete",
        "Every declared month is there once, in order, with all its shards; none is missing or twice.",
    ),
    Proof("patients_disjoint", "No patient is in two splits or in two cohorts."),
    TFDS_READS,
)


def prove_directory(notes: NotesDeclaration, store: ArtifactStore, format: FileFormat) -> Iterator[tuple[str, Finding]]:
    """Every proof of the directory of ``notes`` in ``format`` in ``store``, by name.

    Raises DataprepError when its receipt cannot be read at all.
    """
    directory = TfdsDirectory.open(notes, store, format)
    columns = [Column(name=name, length=notes.stored_length) for name in notes.columns]
    with unquoting(notes.dataset):
        yield from metadata_findings(directory, columns)
        yield "equals_cohort_shards", equals_cohort_shards(directory, notes, store)
        yield "months_complete", months_complete(directory, notes, store)
        yield "patients_disjoint", patients_disjoint(notes, store)
        yield "tfds_reads", tfds_reads(directory)


@judged
def equals_cohort_shards(directory: TfdsDirectory, notes: NotesDeclaration, store: ArtifactStore) -> Finding:
    """Every shard has the digest of the cohort's shard that provenance names, which is made of the present rows.

    The cohorts of ``notes`` are those in ``store`` now.
    """
    months = notes.months.expected
    shards = store.receipts([notes.artifact(COHORT_SHARDS[directory.format], month) for month in months])
    packed = store.receipts([notes.artifact(PACKED_COHORTS, month) for month in months])
    receipts = {month: receipt for month, receipt in zip(months, shards, strict=True) if receipt is not None}
    defects, rows = [], 0
    # the first link of a chain: each month's shards are made of its present rows
    for month, of_shards, of_rows in zip(months, shards, packed, strict=True):
        if of_shards is None or of_rows is None:
            defects.append(f"{month}: its shards or its packed rows are not there any more")
        elif of_shards.inputs.get(PACKED_COHORTS) != of_rows.content:
            defects.append(f"{month}: its shards are made of other rows than {PACKED_COHORTS} has now")
        else:
            rows += sum(split.rows for split in PackedCohortFacts.of(of_rows).splits.values())
    # the second: each file of the directory is one of these shards
    for split, entries in directory.provenance.items():
        for name, origin in entries:
            record = directory.receipt.file(f"{directory.dataset}/{directory.version}/{name}")
            source = receipts.get(origin.partition)
            known = {} if source is None else {file.path: file.sha256 for file in source.files}
            if (origin.dataset, origin.repeat) != (notes.dataset, 0):
                said = f"{PROVENANCE} has it of {origin.dataset}, {origin.repeat} times before"
                defects.append(f"{name} of {split}: {said}; it is of {notes.dataset}, and there once")
            if not record.sha256 == origin.sha256 == known.get(origin.source_shard):
                defects.append(f"{name} of {split}: not the bytes that {origin.partition} has in {origin.source_shard}")
    listed = {split.name: directory.info.shard_names(split) for split in directory.info.splits}
    if listed != {split: [name for name, _ in entries] for split, entries in directory.provenance.items()}:
        defects.append(f"{PROVENANCE} has not one entry for each shard of {tfds.DATASET_INFO}, in order")
    defects += directory.miscounted
    declared = sum(split.rows for split in directory.info.splits)
    if declared != rows:
        defects.append(f"{declared} rows in {tfds.DATASET_INFO}, {rows} in the JSON lines of all cohorts")
    if directory.receipt.ledger != row_ledger(rows, (receipt.ledger for receipt in receipts.values())):
        defects.append("its ledger is not that of its cohorts' shards")
    if not all(RowFacts.of(receipt).alike(RowFacts.of(directory.receipt)) for receipt in receipts.values()):
        defects.append("its receipt tells of other rows than those of its cohorts' shards")
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{rows} rows, every shard a cohort's, byte for byte.",
        REBUILD_SOURCES,
        facts={"rows": rows, "months": len(months)},
    )


@judged
def months_complete(directory: TfdsDirectory, notes: NotesDeclaration, store: ArtifactStore) -> Finding:
    """The months of each split are in order, each in one run of shards 1 to n, and together those declared.

    A month without rows has no shard: one of `months.allow_empty`, or one in ``store`` of which all was retracted.
    """
    seen: set[str] = set()
    defects = []
    for split, entries in directory.provenance.items():
        # a month for each stretch of its shards: one that comes twice here is torn apart by another
        runs = [month for at, (_, origin) in enumerate(entries) if (month := origin.partition) != _before(entries, at)]
        twice = sorted(month for month, count in Counter(runs).items() if count > 1)
        defects += [f"{split}: {month} occurs twice" for month in twice]
        if runs != sorted(runs):
            defects.append(f"{split}: its months are not in order")
        shards = Counter(origin.source_shard for _, origin in entries)
        defects += [f"{split}: {shard} occurs twice" for shard, count in shards.items() if count > 1]
        for month in dict.fromkeys(runs):
            of_month = [origin.source_shard for _, origin in entries if origin.partition == month]
            # how many there have to be, as their names say: `…-of-003.tfrecords`
            said = of_month[0].rpartition("-of-")[2].partition(".")[0]
            total = int(said) if said.isdecimal() else 0
            if of_month != sorted(of_month) or len(of_month) != total:
                defects.append(f"{split}: {month} has {len(of_month)} of {total} shards, or not in their order")
        seen.update(runs)
    expected = set(notes.months.expected)
    unseen = sorted(expected - seen)
    packed = store.receipts([notes.artifact(PACKED_COHORTS, month) for month in unseen])
    rowless = {
        month
        for month, receipt in zip(unseen, packed, strict=True)
        if month in notes.months.allow_empty or _is_retracted(receipt)
    }
    if missing := [month for month in unseen if month not in rowless]:
        defects.append(f"{len(missing)} months are missing: {first_of(missing)}")
    if strange := sorted(seen - expected):
        defects.append(f"{len(strange)} months are not declared: {first_of(strange)}")
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{count_of(len(seen), 'month')}, each there once and in order.",
        REBUILD,
        facts={"months": len(seen), "months_without_rows": len(rowless)},
    )


def _is_retracted(packed: Receipt | None) -> bool:
    ledger = None if packed is None else packed.ledger
    return ledger is not None and not ledger.documents and bool(ledger.dropped.get(RETRACTED))


def _before(entries: Sequence[tuple[str, ShardOrigin]], at: int) -> str | None:
    return entries[at - 1][1].partition if at else None


@judged
def patients_disjoint(notes: NotesDeclaration, store: ArtifactStore) -> Finding:
    """The keyed digests of all months: none in two splits; none in two cohorts, unless that is declared."""
    of_split: dict[str, list[Any]] = {split: [] for split in notes.splits}
    for month in notes.months.expected:
        paths = packed_paths(notes, month)
        folder = store.local(notes.artifact(PACKED_COHORTS, month), [path.patients for path in paths.values()])
        for split, path in paths.items():
            of_split[split].append(read_patients(folder / path.patients))
    distinct, several, defects = 0, 0, list[str]()
    in_splits = []
    for split, of_months in of_split.items():
        found, counts = np.unique(np.concatenate(of_months), return_counts=True)
        # once for each split, so that whoever occurs twice among all of them is in two splits
        in_splits.append(found)
        distinct += found.size
        again = int(np.count_nonzero(counts > 1))
        several += again
        if again and notes.duplicate_patients == "fail":
            twice = found[counts > 1]
            months = [m for m, d in zip(notes.months.expected, of_months, strict=True) if np.isin(d, twice).any()]
            defects.append(f"{split}: {again} patients are in several cohorts, of {first_of(months, 8)}")
    _, counts = np.unique(np.concatenate(in_splits), return_counts=True)
    if leaked := int(np.count_nonzero(counts > 1)):
        defects.append(f"{leaked} patients are in several splits")
    return verdict(
        (f"{notes.dataset}: {d}" for d in defects),
        f"{distinct} patients, {several} of them in several cohorts" + (", as declared." if several else "."),
        "Correct the source, or declare `duplicate_patients: allow` where cohorts may share patients",
        facts={"patients": distinct, "in_several_cohorts": several, "in_several_splits": leaked},
    )
