"""Packed cohorts (`<dataset>/packed_cohorts`, one partition per cohort, `YYYY-MM`): each month's notes as packed rows.

A failed cohort does not stop the other cohorts. `packed_files` describes the files, and `packed_cohort` builds them.

A patient in several months is an error before the first month is packed. The directory of all months would also reject
it (`tfds_directory`), but only after hours of packing. Patients of unpacked months are read from the source without
encoding a note, and patients of packed months from their `patients.bin`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.losses import BAD_RECORD, FILTER, Loss, find_dropped_rows
from dataprep_assets.engine.artifact.metadata_values import ShownValue
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
from dataprep_assets.engine.checks.check import count_documents, join_first
from dataprep_assets.engine.checks.verdicts import CheckWorkers, PartitionChecks
from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError, count_of
from dataprep_assets.execution.jobs import Outcome, TaskJob, run_tasks
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.integrity.artifacts import ArtifactStore, find_missing_subjects
from dataprep_assets.integrity.receipt import RETRACTED, Receipt
from dataprep_assets.pipelines.notes.cohorts.cohort_source import CohortFile, list_cohorts
from dataprep_assets.pipelines.notes.cohorts.packed_cohort import VERSION, PackedCohort, ensure_packed_cohort
from dataprep_assets.pipelines.notes.cohorts.packed_cohorts_checks import COHORT_CHECKS, open_cohort
from dataprep_assets.pipelines.notes.cohorts.packed_files import PACKED_COHORTS, PackedCohortFacts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.notes_plan import build_notes_plan
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data, hide_source_names
from dataprep_assets.pipelines.notes.reading import (
    DIGEST_BYTES,
    EMPTY,
    MISSING_METADATA,
    Note,
    digest_note,
    read_notes,
)
from dataprep_assets.pipelines.notes.retractions import (
    find_current_retractions,
    find_retracted_artifacts,
    read_cohort_patients,
)
from dataprep_assets.sources.access import LocalTree
from dataprep_assets.sources.upstream import UpstreamPartitions
from dataprep_assets.stream.declaration import find_exceeded_budget
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.source import list_upstream_assets, open_source
from dataprep_assets.stream.stream_losses import configure_checks, find_tokenizer_losses
from dataprep_assets.stream.token_stream import load_encoder


def build_notes_watch(notes: NotesDeclaration) -> SourceWatch:
    """Return the watch that detects changes in the cohort files. Descriptions and errors do not contain file names."""
    return SourceWatch(identity=partial(_compute_identity, notes), changes=partial(_describe_changes, notes))


def _compute_identity(notes: NotesDeclaration, _: ArtifactStore) -> SourceIdentity:
    files = list_cohorts(notes)
    return identify_listing(
        [[month, file.bytes] for month, file in files.items()],
        [[month, _stamp_file(notes, month, file)] for month, file in files.items()],
    )


def _stamp_file(notes: NotesDeclaration, month: str, file: CohortFile) -> int | str:
    """Return a value that reveals an edit of the same size: a modification time or, for a remote file, a version."""
    access = open_source(notes.source)
    if not isinstance(access, LocalTree | UpstreamPartitions) or access.mirrored:
        return file.listed.etag or ""
    with hide_source_names(month):
        return read_modification_time(access.path(file.listed), month)


def _describe_changes(notes: NotesDeclaration, store: ArtifactStore) -> str:
    """Describe the changes since the current cohorts were packed, by the sizes of their files in the receipts."""
    files, months = list_cohorts(notes), notes.months.expected_keys
    receipts = store.receipts([notes.artifact(PACKED_COHORTS, month) for month in months])
    packed_receipts = {month: receipt for month, receipt in zip(months, receipts, strict=True) if receipt is not None}
    return join_counts(
        [
            (len(files.keys() - packed_receipts.keys()), "cohort", "new"),
            (
                sum(
                    # Compare only sizes, because comparing digests would read every file. The source's identity also
                    # reveals edits that do not change the size.
                    (ledger := packed_receipts[month].ledger) is not None and ledger.source_bytes != file.bytes
                    for month, file in files.items()
                    if month in packed_receipts
                ),
                "cohort",
                "changed",
            ),
        ]
    )


Digests = NDArray[np.void]


def require_patients_once(notes: NotesDeclaration, store: ArtifactStore, cohorts: Sequence[PackedCohort]) -> None:
    """Raise IntegrityError with the months that share patients, unless ``notes`` allow it or all months are packed.

    ``cohorts`` are the cohorts of the run; ``store`` has the cohorts that were packed before. Unreadable files are
    ignored here, because packing reports them.
    """
    if notes.duplicate_patients != "fail":
        return
    patients_by_month = _read_packed_patients(notes, store)
    # Skip months without a file, because packing reports them.
    in_this_run = {cohort.month: cohort for cohort in cohorts if cohort.file is not None}
    unread_months = [month for month in in_this_run if month not in patients_by_month]
    if not unread_months:
        return
    digests = patients_by_month | {month: _read_patients(in_this_run[month]) for month in unread_months}
    if not (months := _find_months_sharing_patients(digests)):
        return
    # Before rejecting these months, read the sources of the months that this run repacks, because their stored patients
    # may be out of date.
    digests |= {
        month: _read_patients(in_this_run[month])
        for month in months
        if month in patients_by_month and month in in_this_run
    }
    if months := _find_months_sharing_patients(digests):
        all_digests = np.concatenate([digests[month] for month in months])
        repeated_count = int(np.count_nonzero(np.unique(all_digests, return_counts=True)[1] > 1))
        raise IntegrityError(
            f"{notes.dataset}: {count_of(repeated_count, 'patient is', 'patients are')} in several cohorts, including "
            f"{join_first(months, 8)}. Nothing was packed. Correct the source, or declare `duplicate_patients: allow`"
        )


def _read_packed_patients(notes: NotesDeclaration, store: ArtifactStore) -> dict[str, Digests]:
    """Return month → the patients in its rows, for the packed months."""
    patients_by_month = {}
    artifacts = [notes.artifact(PACKED_COHORTS, month) for month in notes.months.expected_keys]
    for artifact, receipt in zip(artifacts, store.receipts(artifacts), strict=True):
        if receipt is not None and artifact.partition is not None:
            patients_by_month[artifact.partition] = _sort_digests(read_cohort_patients(store, artifact, receipt).held)
    return patients_by_month


def _read_patients(cohort: PackedCohort) -> Digests:
    """Return the patients in a month's file that have a note to pack."""
    digests: set[bytes] = set()
    with suppress(DataprepError), hide_quoted_data(cohort.month):
        digests.update(_read_digests(cohort))
    return _sort_digests(digests - cohort.plan.retracted)


def _read_digests(cohort: PackedCohort) -> Iterator[bytes]:
    assert cohort.file is not None
    notes, key, retracted_notes = cohort.plan.notes, cohort.plan.key, cohort.plan.retracted
    reader, fields, template = (
        cohort.file.open_reader(cohort.file.fetch()),
        notes.cohorts.fields,
        notes.compile_header(),
    )
    for item in read_notes(reader, fields, template, key=key, month=cohort.month):
        if isinstance(item, Note) and not (retracted_notes and digest_note(key, item) in retracted_notes):
            yield item.patient


def _sort_digests(digests: frozenset[bytes] | set[bytes]) -> Digests:
    return np.frombuffer(b"".join(sorted(digests)), np.dtype((np.void, DIGEST_BYTES)))


def _find_months_sharing_patients(digests: Mapping[str, Digests]) -> list[str]:
    """Return the months, in order, that share a patient with another month."""
    # Add an empty array, because `np.concatenate` needs at least one array.
    all_digests = np.concatenate([*digests.values(), np.zeros(0, np.dtype((np.void, DIGEST_BYTES)))])
    distinct, counts = np.unique(all_digests, return_counts=True)
    repeated = distinct[counts > 1]
    return sorted(month for month, digests in digests.items() if repeated.size and np.isin(digests, repeated).any())


def build_packed_cohorts_spec(
    notes: NotesDeclaration, *, months: Partitions, certificate: ArtifactSpec
) -> ArtifactSpec:
    """Return the spec of a dataset's packed cohorts.

    Args:
        notes: The dataset.
        months: Its cohorts.
        certificate: The engine certificate.
    """
    return ArtifactSpec(
        declaration=notes,
        name=PACKED_COHORTS,
        version=VERSION,
        description="Packed rows of each birth month, as `<YYYY>-<MM>.jsonl` and as Parquet.",
        kinds={"json", "parquet"},
        inputs=(*list_upstream_assets(notes.source), certificate),
        partitions=months,
        watch=build_notes_watch(notes),
        find_retracted=partial(find_retracted_artifacts, notes),
        pool="cpu",
        recipes=partial(_build_recipes, notes),
        build=partial(_build_cohorts, notes),
        metadata=_build_metadata,
        losses=lambda _, receipts: _find_losses(notes, receipts),
        rows=_count_rows,
        check_groups=(
            PartitionChecks(
                checks=configure_checks(COHORT_CHECKS, notes.prove.level, notes.tokenizer),
                planned=partial(packed_cohorts, notes),
                open=open_cohort,
                workers=lambda *_: CheckWorkers(engine=notes.engine, declared=notes.workers),
                guard=hide_quoted_data,
                documents=count_documents,
            ),
        ),
    )


def packed_cohorts(notes: NotesDeclaration, store: ArtifactStore, months: Iterable[str]) -> list[PackedCohort]:
    """Return the cohorts of the given months, to be packed or checked, in order.

    Raises ConfigError for a month that ``notes`` does not declare, MissingArtifactError if the engine certificate is
    not in ``store``, and the errors of `list_cohorts`.
    """
    plan = build_notes_plan(notes, load_certificate(notes, store))
    files = list_cohorts(notes)
    expected_months = set(notes.months.expected_keys)
    chosen_months = list(months)
    for month in chosen_months:
        if month not in expected_months:
            raise ConfigError(
                f"{notes.dataset}: unknown month {month}. Available: {notes.months.first} to {notes.months.last}"
            )
    return [
        PackedCohort(
            artifact=notes.artifact(PACKED_COHORTS, month),
            store=store,
            plan=plan,
            month=month,
            file=files.get(month),
            retracted=find_current_retractions(store, notes.artifact(PACKED_COHORTS, month), plan.retracted),
            exceeded_budget=find_exceeded_budget(
                notes.bad_records.policy,
                notes.bad_records.budget,
                store,
                notes.artifact(PACKED_COHORTS, month),
                plan.is_bad,
            ),
        )
        for month in chosen_months
    ]


def build_packed_cohorts(
    cohorts: Sequence[PackedCohort],
    *,
    workers: int,
    engine: TaskEngine = ON_PROCESSES,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """Build the cohorts that are out of date, several at a time; yield each once it is verified, built or failed.

    Args:
        cohorts: The cohorts to pack.
        workers: Maximum number of workers, which does not affect the bytes.
        engine: The engine that runs the tasks.
        progress: Counts and shows the work. None shows nothing.

    Raises:
        WorkerDiedError: The workers of a cohort kept dying; finished cohorts are committed.
    """
    # Load the tokenizer before workers are forked, so that the workers share the tokenizer's memory. The tokenizer is
    # needed only if a cohort has no receipt.
    missing_cohorts = find_missing_subjects(cohorts)
    return run_tasks(
        [TaskJob(cohort, ensure_packed_cohort) for cohort in cohorts],
        workers=workers,
        engine=engine,
        progress=progress,
        prepare=partial(load_encoder, missing_cohorts[0].plan.stream) if missing_cohorts else None,
    )


def _build_cohorts(notes: NotesDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    cohorts = packed_cohorts(notes, request.store, request.partitions)
    require_patients_once(notes, request.store, cohorts)
    return build_packed_cohorts(cohorts, workers=request.workers, engine=notes.engine, progress=request.progress)


def _build_recipes(notes: NotesDeclaration, store: ArtifactStore, months: Sequence[str | None]) -> Iterator[Recipe]:
    """Yield the recipes for the current source, for which every cohort file is read completely.

    With a retraction list, the key of a missing cohort is known only after packing, which shows the entries that apply.
    """
    for cohort in packed_cohorts(notes, store, [month or "" for month in months]):
        recipe = cohort.current_recipe
        is_known = not cohort.plan.retracted or store.receipt(cohort.artifact) is not None
        yield recipe if is_known else replace(recipe, key="")


def _count_rows(receipt: Receipt) -> int:
    return sum(split.rows for split in PackedCohortFacts.from_receipt(receipt).splits.values())


def _find_losses(notes: NotesDeclaration, receipts: Sequence[Receipt]) -> Iterator[Loss]:
    """Yield dropped and truncated notes, by reason and month, and the months that need no file."""
    actions = {RETRACTED: "", EMPTY: "", **({MISSING_METADATA: FILTER} if notes.template.missing == "drop" else {})}
    yield from find_dropped_rows(receipts, lambda reason: actions.get(reason, BAD_RECORD), unit="note")
    yield from find_tokenizer_losses(receipts)
    documents = sum(receipt.ledger.documents for receipt in receipts if receipt.ledger)
    cut_notes = Counter[str]()
    for receipt in receipts:
        splits = PackedCohortFacts.from_receipt(receipt).splits.values()
        cut_notes[str(receipt.partition)] += sum(split.truncated_documents for split in splits)
    yield Loss(
        action="cut",
        reason="long_notes",
        count=cut_notes.total(),
        of=documents,
        unit="note",
        files=dict((+cut_notes).most_common()),
    )
    missing = notes.months.allow_missing
    yield Loss(
        action="left out",
        reason="allow_missing",
        count=len(missing),
        of=len(missing) + len(notes.months.expected_keys),
        unit="month",
        files=dict.fromkeys(missing, 1),
    )


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    """Return counts of patients and rows, and the fill of the rows."""
    facts = PackedCohortFacts.from_receipt(receipt)
    rows = _count_rows(receipt)
    metadata: dict[str, ShownValue] = {
        "patients": facts.patients,
        "patients_without_notes": facts.patients_without_notes,
        # Store the length as text, because Dagster would plot a number over time, but the length is a declared
        # constant.
        "row_length": str(facts.row_length),
        "layout": facts.layout,
        "rows": rows,
    }
    if rows and receipt.ledger is not None and facts.layout == "prepacked":
        metadata["fill"] = round(receipt.ledger.tokens / (rows * facts.row_length), 5)
    return metadata
