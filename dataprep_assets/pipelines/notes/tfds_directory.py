"""The artifacts `<dataset>/tfds_directory` and `<dataset>/array_record_directory`: what a trainer's loader opens.

The shards of all cohorts in month order under their global names (`linked_directory`).

Missing months, shards made with other settings or from older rows, and patients in several cohorts are refused.

Entry points: `tfds_directory_spec`, `build_tfds_directory`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import tfds
from dataprep_assets.formats.example import FeatureColumn
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.finding import Finding, first_of, judged, name_of, verdict
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Markdown, Shown
from dataprep_assets.graph.spec import ArtifactSpec, Proof, Proofs
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, FileRef
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import RETRACTED
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.linked_directory import (
    DIRECTORIES,
    Directory,
    DirectoryFacts,
    link_shards,
    split_counts,
)
from dataprep_assets.pipelines.notes.maxtext import maxtext_line
from dataprep_assets.pipelines.notes.packed_files import (
    PACKED_COHORTS,
    PackedCohortFacts,
    RowFacts,
    packed_paths,
    read_patients,
)
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.provenance import PROVENANCE, ShardOrigin
from dataprep_assets.pipelines.notes.sharded_cohort import COHORT_SHARDS, CohortShardsFacts, row_ledger, shard_names
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
from dataprep_assets.stream.tokenizer import load_bundle

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
    columns = [FeatureColumn(name=name, length=notes.stored_length) for name in notes.columns]
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


VERSION = 2
_DESCRIPTIONS: dict[FileFormat, str] = {
    "tfrecord": "All cohorts under TFDS names, with `dataset_info.json` and `features.json`: tfds.builder reads it.",
    "array_record": "All cohorts as ArrayRecord files under TFDS names: grain reads it.",
}


class TfdsDirectoryFacts(DirectoryFacts):
    """Facts in the receipt of one dataset's directory."""

    directory: str
    version: str
    months: int
    patients: int
    patients_in_several_cohorts: int


def tfds_directory_spec(notes: NotesDeclaration, format: FileFormat, *, shards: ArtifactSpec) -> ArtifactSpec:
    """The directory in one format.

    Args:
        notes: The dataset.
        format: One of its formats.
        shards: The shards of every cohort in this format.
    """
    return ArtifactSpec(
        declaration=notes,
        name=DIRECTORIES[format],
        version=VERSION,
        description=_DESCRIPTIONS[format],
        kinds={"tensorflow", "file"},
        inputs=(shards,),
        recipes=lambda store, _: [_recipe(notes, _months(notes, store, format), format)],
        build=lambda request: [Outcome.of(*build_tfds_directory(notes, request.store, format))],
        metadata=partial(_metadata, notes, format),
        proofs=Proofs(proofs=DIRECTORY_PROOFS, examine=partial(_examine, notes, format)),
    )


def _examine(
    notes: NotesDeclaration, format: FileFormat, store: ArtifactStore, _: Sequence[str]
) -> Iterator[tuple[str, Finding]]:
    return prove_directory(notes, store, format)


def _metadata(
    notes: NotesDeclaration, format: FileFormat, store: ArtifactStore, receipt: Receipt
) -> Mapping[str, Shown]:
    facts = TfdsDirectoryFacts.of(receipt)
    return {
        **split_counts(receipt),
        "months": facts.months,
        "patients": facts.patients,
        "patients_in_several_cohorts": facts.patients_in_several_cohorts,
        "maxtext": Markdown("```\n" + maxtext_line(notes, store, format) + "\n```"),
    }


@dataclass(frozen=True, kw_only=True)
class _Month:
    month: str
    shards: Artifact
    receipt: Receipt
    facts: CohortShardsFacts
    packed: Artifact
    packed_receipt: Receipt


def _months(notes: NotesDeclaration, store: ArtifactStore, format: FileFormat) -> list[_Month]:
    """Every declared month, in order. Raises MissingArtifactError naming the ones that are not there."""
    months = notes.months.expected
    shards = [notes.artifact(COHORT_SHARDS[format], month) for month in months]
    packed = [notes.artifact(PACKED_COHORTS, month) for month in months]
    found = []
    missing = []
    receipts = zip(months, shards, store.receipts(shards), packed, store.receipts(packed), strict=True)
    for month, artifact, receipt, rows, rows_receipt in receipts:
        if receipt is None or rows_receipt is None:
            missing.append(month)
        else:
            found.append(
                _Month(
                    month=month,
                    shards=artifact,
                    receipt=receipt,
                    facts=CohortShardsFacts.of(receipt),
                    packed=rows,
                    packed_receipt=rows_receipt,
                )
            )
    if missing:
        shown = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise MissingArtifactError(
            f"{notes.dataset}: {len(missing)} of {len(months)} months are not there: {shown}. Materialize "
            f"these partitions of packed_cohorts and {COHORT_SHARDS[format]} first"
        )
    _require_same(notes, found)
    return found


def _require_same(notes: NotesDeclaration, months: Sequence[_Month]) -> None:
    declared = {
        "columns": list(notes.columns),
        "row_length": notes.capacity,
        "layout": notes.layout,
        "rows_per_shard": notes.rows_per_shard,
        "tokenizer": load_bundle(notes.tokenizer).digest,
    }
    first = RowFacts.of(months[0].receipt)
    for found in months:
        facts, receipt = found.facts, found.receipt
        if receipt.inputs[PACKED_COHORTS] != found.packed_receipt.content:
            raise IntegrityError(
                f"{found.shards}: made of older rows than packed_cohorts has now. Materialize it again"
            )
        stored = facts.model_dump() | {"tokenizer": receipt.inputs["tokenizer"]}
        # Compared with what is declared now. What the declaration does not say by itself, as the ids of tokens, must be
        # the same in all months at least.
        wrong = [name for name, value in declared.items() if stored[name] != value]
        # the name of a tokenizer may change: its digest is compared above
        alike = RowFacts.model_fields.keys() - {"tokenizer"}
        wrong += sorted(name for name in alike if getattr(facts, name) != getattr(first, name))
        if wrong or facts.splits.keys() != notes.splits.keys():
            raise IntegrityError(
                f"{found.shards}: made with another {', '.join(wrong) or 'set of splits'} than is declared now, or "
                f"than {months[0].month} has. Materialize packed_cohorts and its shards again: only stale ones "
                "are rebuilt"
            )


def _recipe(notes: NotesDeclaration, months: Sequence[_Month], format: FileFormat) -> Recipe:
    declared = [notes.dataset, notes.description, notes.tfds_version, notes.duplicate_patients, format]
    contents = [[m.month, m.receipt.key, m.receipt.content, m.packed_receipt.content] for m in months]
    return Recipe(
        artifact=notes.artifact(DIRECTORIES[format]),
        key=digest_value(["tfds_directory", VERSION, declared, contents]),
        version=VERSION,
        settings={
            "dataset": notes.dataset,
            "description": notes.description,
            "tfds_version": notes.tfds_version,
            "duplicate_patients": notes.duplicate_patients,
            "format": format,
        },
        # shards with the same bytes can have another recipe
        sources={"recipes of the shards": digest_value([m.receipt.key for m in months])},
        upstream={f"{m.shards.name}/{m.month}": m.receipt.content for m in months}
        | {f"{m.packed.name}/{m.month}": m.packed_receipt.content for m in months},
    )


def build_tfds_directory(
    notes: NotesDeclaration, store: ArtifactStore, format: FileFormat = "tfrecord"
) -> tuple[Receipt, bool]:
    """Build the directory in ``format`` unless it is current. Returns its receipt and whether it was reused.

    Raises MissingArtifactError naming the months that are not in ``store``; raises IntegrityError for shards that do
    not belong together and, unless ``notes`` allow it, for patients in several cohorts; raises ConfigError for a split
    without a row and for a format that is not declared.
    """
    if format not in notes.formats:
        raise ConfigError(f"{notes.dataset}: format {format} is not among the declared {list(notes.formats)}")
    months = _months(notes, store, format)

    def write(staged: Path) -> Written:
        # refused before anything is linked
        patients, several = _patients(notes, store, months)
        directory = _directory(notes, months, format)
        joined = link_shards(staged, store, directory)
        rows = sum(split.rows for split in directory.info().splits)
        in_shards = sum(m.receipt.ledger.documents for m in months if m.receipt.ledger is not None)
        if rows != in_shards:
            raise IntegrityError(f"{notes.dataset}: {rows} rows of {in_shards} in its shards. This is a bug")
        return Written(
            inputs={m.month: m.receipt.content for m in months} | {"tokenizer": months[0].receipt.inputs["tokenizer"]},
            facts=TfdsDirectoryFacts(
                **RowFacts.of(months[0].receipt).to_json(),
                directory=directory.path,
                version=directory.version,
                format=format,
                splits=directory.counts(),
                months=len(months),
                patients=patients,
                patients_in_several_cohorts=several,
            ),
            ledger=row_ledger(rows, (m.receipt.ledger for m in months)),
            joined=joined,
        )

    with unquoting(notes.dataset):
        return ensure(_recipe(notes, months, format), store, write, notes.verify)


def _directory(notes: NotesDeclaration, months: Sequence[_Month], format: FileFormat) -> Directory:
    splits = {split: [o for m in months for o in _origins(notes, m, split, format)] for split in notes.splits}
    # TFDS takes no split without a shard
    if empty := [split for split, origins in splits.items() if not origins]:
        raise ConfigError(f"{notes.dataset}: splits {empty} have no row; declare larger shares, or leave them out")
    return Directory(
        dataset=notes.dataset,
        description=notes.description,
        version=notes.tfds_version,
        format=format,
        columns=tuple(FeatureColumn(name=name, length=notes.stored_length) for name in notes.columns),
        splits=splits,
    )


def _origins(notes: NotesDeclaration, month: _Month, split: str, format: FileFormat) -> list[ShardOrigin]:
    lengths, sizes = month.facts.splits[split].shard_lengths, month.facts.splits[split].payload_bytes
    origins = []
    for name, rows, payload_bytes in zip(
        shard_names(notes, split, month.month, len(lengths), format), lengths, sizes, strict=True
    ):
        record = month.receipt.file(name)
        origins.append(
            ShardOrigin(
                dataset=notes.dataset,
                partition=month.month,
                source_shard=name,
                rows=rows,
                payload_bytes=payload_bytes,
                sha256=record.sha256,
                part=FileRef(month.shards, record),
            )
        )
    return origins


def _patients(notes: NotesDeclaration, store: ArtifactStore, months: Sequence[_Month]) -> tuple[int, int]:
    """Number of patients, and of those in several cohorts; raises IntegrityError for the latter if they are refused."""
    of_month = []
    for found in months:
        paths = [path.patients for path in packed_paths(notes, found.month).values()]
        directory = store.local(found.packed, paths)
        of_month.append(np.concatenate([read_patients(directory / path) for path in paths]))
    every = np.concatenate(of_month)
    distinct, counts = np.unique(every.view("V16"), return_counts=True)
    twice = distinct[counts > 1]
    if twice.size and notes.duplicate_patients == "fail":
        among = [found.month for found, here in zip(months, of_month, strict=True) if np.isin(here, twice).any()]
        raise IntegrityError(
            f"{notes.dataset}: patients in several cohorts: {twice.size}, of {first_of(among, 8)}. Correct the source, "
            "or declare `duplicate_patients: allow`"
        )
    return int(distinct.size), int(twice.size)
