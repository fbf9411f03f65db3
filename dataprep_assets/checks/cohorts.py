"""Checks of datasets of packed notes and of their combinations.

Of the assets with a partition a cohort, a check has one result for all cohorts: those of the run are examined in
parallel, for the others the remembered verdict on their present content counts. So 288 months are not proven again for
each of them, the latest result is about all of them, and a bad cohort stays visible until it is mended. A run of the
checks alone is about every month.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import dagster as dg

from dataprep_assets.assets.dataset import DatasetAssets, partitions_of_run, worker_count
from dataprep_assets.builds.notes.declaration import FileFormat, NotesDeclaration, ReplayDeclaration
from dataprep_assets.builds.notes.engine_certificate import load_certificate
from dataprep_assets.builds.notes.packed_cohorts import NAME as PACKED
from dataprep_assets.builds.notes.packed_cohorts import cohort_works
from dataprep_assets.builds.notes.tfds_directory import NAMES as DIRECTORIES
from dataprep_assets.builds.notes.tfrecord_shards import NAMES as SHARDS
from dataprep_assets.builds.notes.tfrecord_shards import shards_works
from dataprep_assets.checks.engine_certificate import engine_certificate_checks
from dataprep_assets.checks.findings import checks_of, summarized
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.proofs.cohort_shards import SHARD_PROOFS, prove_cohort_shards
from dataprep_assets.proofs.finding import Finding
from dataprep_assets.proofs.packed_cohorts import COHORT_PROOFS, prove_cohort
from dataprep_assets.proofs.tfds_directory import (
    COMBINED_PROOFS,
    DIRECTORY_PROOFS,
    VIRTUAL_PROOFS,
    prove_combined,
    prove_directory,
)
from dataprep_assets.proofs.verdicts import prove_all, remembered
from resources import StorageResource

Proven = Iterator[tuple[str, dict[str, Finding]]]

REPORTS = ("rows_filled", "tfds_reads")
"""What is told without failing the run; every other check blocks.

A check blocks when rows would be lost, be read wrongly, teach across documents or leak patients into another split:
what is trained on them is wasted, or must not be used. Half-empty rows only cost time. `tfds_reads` repeats with the
real reader what the blocking checks prove without it, and is a warning where TensorFlow is not installed: the machines
that build a dataset need not have it.
"""


def cohorts_checks(dataset: DatasetAssets, notes: NotesDeclaration) -> Sequence[dg.AssetChecksDefinition]:
    """Every check of a dataset of packed notes, in the order of its graph."""
    certificate = engine_certificate_checks(
        dataset, notes.tokenizer, notes.document, lambda store: load_certificate(notes, store)
    )
    per_format = [
        make(dataset, notes, format)
        for format in notes.formats
        for make in (cohort_shards_checks, tfds_directory_checks)
    ]
    return [certificate, packed_cohorts_checks(dataset, notes), *per_format]


def packed_cohorts_checks(dataset: DatasetAssets, notes: NotesDeclaration) -> dg.AssetChecksDefinition:
    """The checks of `<dataset>/packed_cohorts`."""

    def prove(store: ArtifactStore, months: Sequence[str]) -> Proven:
        works = {work.month: work for work in cohort_works(notes, store, months)}
        return prove_all(works, prove_cohort, worker_count(notes.workers), silent=notes.sensitive)

    return _of_all_months(dataset, notes, PACKED, COHORT_PROOFS, prove)


def cohort_shards_checks(
    dataset: DatasetAssets, notes: NotesDeclaration, format: FileFormat
) -> dg.AssetChecksDefinition:
    """The checks of the shards in one format."""

    def prove(store: ArtifactStore, months: Sequence[str]) -> Proven:
        works = {work.month: work for work in shards_works(notes, store, months, format)}
        return prove_all(works, prove_cohort_shards, worker_count(notes.workers), silent=notes.sensitive)

    return _of_all_months(dataset, notes, SHARDS[format], SHARD_PROOFS, prove)


def _of_all_months(
    dataset: DatasetAssets,
    notes: NotesDeclaration,
    artifact: str,
    proofs: Mapping[str, str],
    prove: Callable[[ArtifactStore, Sequence[str]], Proven],
) -> dg.AssetChecksDefinition:
    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store, months = dataset.store(storage), notes.months.expected
        examined = partitions_of_run(context.run, months)
        found = dict(prove(store, examined))
        unknown = 0
        for month in months:
            if month not in found:
                kept = remembered(notes.artifact(artifact, month), store)
                unknown += kept is None
                found |= {month: kept} if kept else {}
        for name in proofs:
            yield name, summarized({m: found[m][name] for m in sorted(found)}, examined, unknown, noun="cohort")

    return checks_of(dataset.key(artifact), proofs, findings, reports=REPORTS)


def tfds_directory_checks(
    dataset: DatasetAssets, notes: NotesDeclaration, format: FileFormat
) -> dg.AssetChecksDefinition:
    """The checks of the directory in one format."""

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        yield from prove_directory(notes, dataset.store(storage), format)

    return checks_of(dataset.key(DIRECTORIES[format]), DIRECTORY_PROOFS, findings, reports=REPORTS)


def combined_cohorts_checks(dataset: DatasetAssets, replay: ReplayDeclaration) -> Sequence[dg.AssetChecksDefinition]:
    """Every check of a combination."""
    proofs = VIRTUAL_PROOFS if replay.mode == "virtual" else COMBINED_PROOFS

    def findings(_: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        yield from prove_combined(replay, dataset.store(storage))

    return [checks_of(dataset.key(DIRECTORIES[replay.format]), proofs, findings, reports=REPORTS)]
