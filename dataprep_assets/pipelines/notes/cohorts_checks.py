"""Checks of datasets of packed notes and of their combinations.

Of the assets with a partition a cohort, a check has one result for all cohorts: 288 months are not proven again for
each of them. A run of the checks alone is about every month.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.verdicts import Verdicts, Work, prove_all
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.checks import checks_of, of_all_partitions
from dataprep_assets.orchestration.dataset import DatasetAssets, worker_count
from dataprep_assets.pipelines.corpus.engine_certificate_checks import engine_certificate_checks
from dataprep_assets.pipelines.notes.cohort_shards import COHORT_SHARDS, shards_works
from dataprep_assets.pipelines.notes.cohort_shards_proofs import SHARD_PROOFS, prove_cohort_shards
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration, ReplayDeclaration
from dataprep_assets.pipelines.notes.engine_certificate import load_certificate
from dataprep_assets.pipelines.notes.packed_cohorts import PACKED_COHORTS, cohort_works
from dataprep_assets.pipelines.notes.packed_cohorts_proofs import COHORT_PROOFS, prove_cohort
from dataprep_assets.pipelines.notes.replay_proofs import COMBINED_PROOFS, VIRTUAL_PROOFS, prove_combined
from dataprep_assets.pipelines.notes.tfds_directory import DIRECTORIES
from dataprep_assets.pipelines.notes.tfds_directory_proofs import DIRECTORY_PROOFS, prove_directory
from resources import StorageResource

W = TypeVar("W", bound=Work)

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
    return _of_all_months(dataset, notes, PACKED_COHORTS, COHORT_PROOFS, cohort_works, prove_cohort)


def cohort_shards_checks(
    dataset: DatasetAssets, notes: NotesDeclaration, format: FileFormat
) -> dg.AssetChecksDefinition:
    """The checks of the shards in one format."""
    works = partial(shards_works, format=format)
    return _of_all_months(dataset, notes, COHORT_SHARDS[format], SHARD_PROOFS, works, prove_cohort_shards)


def _of_all_months(
    dataset: DatasetAssets,
    notes: NotesDeclaration,
    artifact: str,
    proofs: Mapping[str, str],
    works: Callable[[NotesDeclaration, ArtifactStore, Sequence[str]], Sequence[W]],
    prove: Callable[[W], dict[str, Finding]],
) -> dg.AssetChecksDefinition:
    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store = dataset.store(storage)

        def prove_months(months: Sequence[str]) -> Verdicts:
            found = works(notes, store, months)
            return prove_all(found, prove, worker_count(notes.workers), silent=notes.sensitive)

        yield from of_all_partitions(
            context.run,
            store,
            notes.months.expected,
            proofs,
            artifact=lambda month: notes.artifact(artifact, month),
            prove=prove_months,
            noun="cohort",
        )

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
