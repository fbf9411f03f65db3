"""Build and report of an artifact in a Dagster step; shared by the steps of assets and of a dataset's job.

Each partition is reported when it is finished, with its own metadata and data version. Therefore finished partitions
are known even if a worker dies or a user stops the run. If some partitions failed, the step's failure lists them with
their errors, and Dagster does not retry the step. "Re-execute from failure" then builds exactly the failed partitions.

"Re-execute from failure" runs only the failed steps. If a source file was repaired in the meantime, the snapshot of the
previous run still has the digest of the damaged file, so everything built from it would be rejected. Therefore, if a
step fails on its source and another run built its records (`ArtifactSpec.records_source`), the step rebuilds the
records. If the same run built them, it does not: a file that changes between its snapshot and its reading is rejected
as damaged.

The last partition of a step is reported with the totals of all partitions, because Dagster shows only the metadata of
the last one.

Dagster gets few events, even if the step reports often: a line in the run's log every `LOG_SECONDS`, and observations
of the asset at increasing intervals. The module `terminal` serves terminals and pipes.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, DatasetInput
from dataprep_assets.engine.checks.results import find_failed_checks
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.engine.staleness.status import decide_checks
from dataprep_assets.errors import (
    ConfigError,
    DataprepError,
    MissingArtifactError,
    SourceError,
    TransferError,
    count_of,
    raise_detached,
)
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.pool import choose_worker_count
from dataprep_assets.execution.progress import Progress, Sink
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.commit import translate_os_error
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.orchestration.checks import build_check_evaluation, examine_artifact, log_evaluation
from dataprep_assets.orchestration.metadata import (
    build_metadata,
    build_total_metadata,
    build_version_tags,
    render_entries,
)
from dataprep_assets.orchestration.partitions import (
    FAILED_CHECKS,
    MISCONFIGURED,
    SENSITIVE,
    TOGETHER,
    Context,
    asset_key,
    build_step_name,
    job_name,
    register_in_order,
)
from dataprep_assets.orchestration.runs.runs import build_plan_materialization_metadata
from dataprep_assets.orchestration.runs.terminal import list_progress_sinks
from dataprep_assets.table import format_share

# Import the module only where lineage is declared, because most datasets have none.
if TYPE_CHECKING:
    from dataprep_assets.engine.lineage.senders import LineageSender

LOG_SECONDS = 15.0
OBSERVE_SECONDS = 60.0
"""Seconds before the first observation; shorter steps end before a user could open the asset's page."""
OBSERVE_SHARE = 0.1
"""Time until the next observation as a share of the elapsed time; a day has about 60 observations."""


class LogSink:
    """Sink that writes a line to the run's log every `LOG_SECONDS`, and one when the step ends."""

    def __init__(self, context: Context, title: str) -> None:
        self._log, self._title = context.log.info, title
        self._last_log_time = time.monotonic()

    def show(self, progress: Progress) -> None:
        if time.monotonic() - self._last_log_time >= LOG_SECONDS:
            self._last_log_time = time.monotonic()
            self._log(f"{self._title}: {progress.format_line()}")

    def close(self, progress: Progress) -> None:
        if progress.has_counts:
            self._log(f"{self._title}: {progress.format_line()}")


class ObservationSink:
    """Sink that reports observations of the asset while its step is running.

    Its metadata values are strings, because numbers from an unfinished step would become points in the asset's plots.
    """

    def __init__(self, context: Context, spec: ArtifactSpec) -> None:
        self._context, self._key = context, asset_key(spec)
        self._start_time = time.monotonic()
        self._next_time = self._start_time + OBSERVE_SECONDS

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if now < self._next_time:
            return
        self._next_time = now + max(OBSERVE_SECONDS, OBSERVE_SHARE * (now - self._start_time))
        self._context.log_event(
            dg.AssetObservation(
                asset_key=self._key,
                description=f"Running: {progress.format_line().strip()}",
                metadata={
                    "progress": format_share(progress.fraction),
                    "done": progress.amount,
                    "rate": progress.rate,
                    "time_left": progress.time_left,
                },
            )
        )

    def close(self, progress: Progress) -> None:
        """Do nothing, because the materialization or the failure shows how the step ended."""


def build_sinks(context: Context, spec: ArtifactSpec) -> list[Sink]:
    """Return the sinks that show the progress of a step that builds an artifact."""
    title = "/".join(spec.path)
    return [LogSink(context, title), ObservationSink(context, spec), *list_progress_sinks(title)]


def build_partitions(
    context: Context, spec: ArtifactSpec, request: BuildRequest, report: Callable[[ArtifactSpec, Outcome], None]
) -> Iterator[Outcome]:
    """Yield the outcomes of building partitions.

    A partition that fails on its source is retried if another run built its records, which may be out of date. `report`
    is called with each rebuilt record.
    """
    records = [source for source in _list_records(spec) if not _is_built_by_run(context, source)]
    failed: dict[str, Outcome] = {}
    for outcome in spec.build(request):
        if records and isinstance(outcome.error, SourceError):
            failed[outcome.partition] = outcome
        else:
            yield outcome
    retried_partitions = (
        [partition for partition in failed if _rebuild_records(context, records, request, partition, report)]
        if failed
        else []
    )
    yield from (outcome for partition, outcome in failed.items() if partition not in retried_partitions)
    if retried_partitions:
        yield from spec.build(replace(request, partitions=retried_partitions))


def _list_records(spec: ArtifactSpec) -> list[ArtifactSpec]:
    """Return the artifacts that describe a step's source, inputs first: the manifest and the snapshot of its files."""
    direct = [source for source in spec.inputs if isinstance(source, ArtifactSpec) and source.records_source]
    return [record for source in direct for record in (*_list_records(source), source)]


def _is_built_by_run(context: Context, record: ArtifactSpec) -> bool:
    selection, steps = context.run.asset_selection, context.run.step_keys_to_execute
    if steps is not None:  # the run re-executes a job or assets from the point of failure
        step_names = {name for step in steps for name in step.split(TOGETHER)}
        return not step_names.isdisjoint({build_step_name(record), "__".join(record.path)})
    return selection is None or asset_key(record) in selection


def _rebuild_records(
    context: Context,
    records: Sequence[ArtifactSpec],
    request: BuildRequest,
    partition: str,
    report: Callable[[ArtifactSpec, Outcome], None],
) -> bool:
    """Rebuild the records of a partition; return False if that also fails."""
    for record in records:
        partitions = () if record.partitions is None else (partition,)
        try:
            (outcome,) = record.build(replace(request, partitions=partitions))
        except DataprepError as error:
            outcome = Outcome(partition=partition, error=error)
        if outcome.error is not None:
            warning = load_privacy(record.declaration, request.store).public_error(outcome.error, "/".join(record.path))
            context.log.warning(f"{'/'.join(record.path)}: {partition}: {warning}")
            return False
        if not outcome.reused:
            context.log.warning(f"{'/'.join(record.path)}: {partition}: was rebuilt, because its source has changed")
            report(record, outcome)
    return True


def _refuse_sensitive_inputs(context: Context, spec: ArtifactSpec) -> None:
    """Raise ConfigError if the artifact's dataset reads a sensitive dataset of the same code location.

    `dataprep run` has compared the declarations before it starts a run. Its runs have no code location.
    """
    try:
        repository = context.repository_def
    # Catch every exception, because Dagster raises one of its internal classes if the run has no code location.
    except Exception:
        return
    graph = repository.asset_graph
    own_keys = [key for key in graph.get_all_asset_keys() if key.path[0] == spec.declaration.dataset]
    inputs = {key for own_key in own_keys for key in graph.get(own_key).parent_keys} - {*own_keys}
    for key in sorted(inputs):
        if graph.has(key) and SENSITIVE in graph.get(key).tags:
            raise ConfigError(spec.sensitive_input.format(name=key.path[0]))


_MAX_SHOWN_FAILURES = 20


class StepBuild:
    """Build of one artifact in a step."""

    def __init__(
        self,
        context: Context,
        spec: ArtifactSpec,
        store: ArtifactStore,
        report_warning: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare the build; each warning is logged and, if `report_warning` is given, passed to it."""
        self.built_slots: list[str | None] = []  # the partitions that `build` did not reuse
        self._context, self._spec, self._store, self._report_warning = context, spec, store, report_warning
        if spec.sensitive_input:
            _refuse_sensitive_inputs(context, spec)
        self._lineage_senders: list[LineageSender] = []
        if spec.declaration.lineage is not None:
            from dataprep_assets.engine.lineage.senders import open_senders

            self._lineage_senders = open_senders(spec.declaration.lineage, store)

    def build(
        self,
        slots: Sequence[str | None],
        *,
        rebuild: Set[str | None] = frozenset(),
        warned_slots: Set[str | None] = frozenset(),
    ) -> Iterator[dg.AssetMaterialization]:
        """Build these partitions, or reuse the current ones; yield the materialization of each.

        Raises dg.Failure if a blocking check of an input failed, or at the end if a partition failed. An error of an
        unpartitioned artifact is raised unchanged.

        Args:
            slots: The partitions; `[None]` for an unpartitioned artifact.
            rebuild: Partitions to build even if their keys are current.
            warned_slots: Already reported partitions, which are not reported again if they are reused.
        """
        spec, context = self._spec, self._context
        _refuse_failed_inputs(spec, self._store, slots)
        _require_retraction_list(spec, self._store, slots)
        tags, failed, reused = build_version_tags(spec, context.instance), dict[str, Exception](), list[bool]()
        partitions = [slot for slot in slots if slot is not None]
        workers, privacy = choose_worker_count(spec.declaration.workers), load_privacy(spec.declaration, self._store)

        def warn(sentence: str) -> None:
            message = privacy.public_text(sentence, f"{'/'.join(spec.path)}: a warning")
            context.log.warning(message)
            if self._report_warning is not None:
                self._report_warning(message)

        progress = Progress(workers=workers, sinks=build_sinks(context, spec), amounts=not privacy.closed)
        rebuilt_artifacts = [spec.locate_artifact(self._store, slot) for slot in slots if slot in rebuild]
        request = BuildRequest(
            store=self._store.mark_for_rebuild(rebuilt_artifacts) if rebuilt_artifacts else self._store,
            partitions=partitions,
            workers=workers,
            progress=progress,
            warn=warn,
        )
        try:
            for outcome in build_partitions(context, spec, request, self._report_record):
                # Raise the error of an unpartitioned artifact now, because nothing else remains to be built.
                # `convert_errors` turns the error into the step's failure.
                if outcome.error is not None and spec.partitions is None:
                    raise outcome.error
                if outcome.error is not None:
                    failed[outcome.partition] = outcome.error
                    reason = _format_error(spec, self._store, outcome.error, outcome.partition)
                    context.log.error(f"{outcome.partition}: {reason}")
                    continue
                reused.append(outcome.reused)
                slot = None if spec.partitions is None else outcome.partition
                if not outcome.reused:
                    self.built_slots.append(slot)
                if not (outcome.reused and slot in warned_slots):
                    is_last = len(reused) + len(failed) == len(slots)
                    yield self._build_materialization(outcome, tags, with_totals=is_last)
        finally:
            progress.close()
            self._report_unsent_events(warn)
        if failed:
            raise _build_failure(spec, self._store, failed, len(reused))
        self.register_plans()
        if spec.partitions is not None:
            new = sum(not is_reused for is_reused in reused)
            total = count_of(len(reused), spec.noun)
            line = f"{total}: {new:,} built, {len(reused) - new:,} reused"
            context.log.info(privacy.public_text(line, f"{'/'.join(spec.path)}: built"))

    def evaluate_checks(self, slots: Sequence[str | None]) -> list[dg.AssetCheckEvaluation]:
        """Run the due checks of the artifact and return the evaluations of all its checks."""
        spec = self._spec
        if not spec.checks:
            return []
        results = examine_artifact(spec, self._store, slots)
        return [build_check_evaluation(spec, self._store, name, finding) for name, finding in results.items()]

    def register_plans(self) -> None:
        """Register the dynamic partitions that the artifact plans."""
        for partitions in self._spec.plans:
            register_in_order(self._context.instance, partitions.dynamic or "", partitions.keys(self._store))

    def _build_materialization(
        self, outcome: Outcome, tags: Mapping[str, str], *, with_totals: bool = False
    ) -> dg.AssetMaterialization:
        spec, receipt = self._spec, outcome.receipt
        metadata = render_entries(spec, {**outcome.metadata, **build_plan_materialization_metadata(spec)})
        content = outcome.content
        if receipt is not None:
            totals = build_total_metadata(spec, self._store) if with_totals and spec.partitions is not None else {}
            metadata = {**totals, **build_metadata(spec, self._store, receipt, outcome.reused), **metadata}
            content = receipt.content
            for sender in () if outcome.reused else self._lineage_senders:
                sender.send(receipt, spec.rows(receipt))
        return dg.AssetMaterialization(
            asset_key=asset_key(spec),
            partition=outcome.partition if spec.partitions is not None else None,
            metadata=metadata,
            tags={**tags, "dagster/data_version": content[:32]},
        )

    def _report_unsent_events(self, warn: Callable[[str], None]) -> None:
        for sender in self._lineage_senders:
            try:
                sender.finish()
            except (ConfigError, TransferError) as error:
                warn(str(error))

    def _report_record(self, record: ArtifactSpec, outcome: Outcome) -> None:
        """Report a rebuilt record of the source, with its checks."""
        tags = build_version_tags(record, self._context.instance)
        record_build = StepBuild(self._context, record, self._store)
        self._context.log_event(record_build._build_materialization(outcome, tags))
        for evaluation in record_build.evaluate_checks([None if record.partitions is None else outcome.partition]):
            log_evaluation(self._context, evaluation)


def raise_for_failed_checks(evaluations: Iterable[dg.AssetCheckEvaluation]) -> None:
    """Raise dg.Failure if a blocking check of an artifact failed."""
    failed = [
        evaluation
        for evaluation in evaluations
        if evaluation.blocking and not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.ERROR
    ]
    if failed:
        # Include the findings, because the page of the run shows only this text above the stack.
        findings = " | ".join(
            f"check {evaluation.check_name} failed: {evaluation.description}" for evaluation in failed
        )
        raise dg.Failure(
            f"{failed[0].asset_key.to_user_string()}: {findings}",
            metadata={FAILED_CHECKS: len(failed)},
            allow_retries=False,
        )


def _require_retraction_list(spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]) -> None:
    """Raise ConfigError if the retraction list no longer exists, and a rebuild would restore the removed documents."""
    path: Path | None = getattr(spec.declaration, "retractions", None)
    # Only artifacts with partitions record the documents that they dropped.
    if path is None or spec.partitions is None or not slots or path.exists():
        return
    # Look at all partitions that exist, because a partition may have had a different name.
    dataset, name = spec.declaration.dataset, spec.locate_artifact(store, slots[0]).name
    partitions = store.partitions(dataset, name)
    artifacts = [Artifact(dataset=dataset, name=name, partition=partition) for partition in partitions]
    if finished_receipts := list(_read_receipts(store, artifacts)):
        # Import the module here, because a first run does not need it.
        from dataprep_assets.engine.staleness.rebuild import count_dropped_rows

        if any(count_dropped_rows(finished_receipts).values()):
            raise ConfigError(
                f"retractions: {path} does not exist, but {'/'.join(spec.path)} was built without the documents on it. "
                "Restore the list. If all removed documents may return, create an empty file"
            )


def _read_receipts(store: ArtifactStore, artifacts: Sequence[Artifact]) -> Iterator[Receipt]:
    """Yield the receipts of finished artifacts, without damaged ones."""
    try:
        yield from filter(None, store.receipts(artifacts))
    except DataprepError:
        # Read the receipts one by one. In a bucket, this is slower.
        for artifact in artifacts:
            with suppress(DataprepError):
                yield from filter(None, [store.receipt(artifact)])


def _refuse_failed_inputs(spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]) -> None:
    """Raise dg.Failure if a blocking check of an input of these slots currently fails.

    In a dataset's job the checks of the inputs run earlier, but in the UI a single artifact can be launched.
    """
    for source in spec.inputs:
        failed = set[str]()
        if isinstance(source, ArtifactSpec):
            with suppress(DataprepError):  # the build reports the error
                # If both artifacts have the same partitions, check the input only for the partitions that are being
                # built, because other failed partitions do not affect them.
                has_same_partitions = source.partitions is not None and source.partitions is spec.partitions
                decisions = decide_checks(source, store, slots if has_same_partitions else source.slots(store))
                failed = {check for decision in decisions.values() for check in decision.checks}
        elif isinstance(source, DatasetInput):
            failed = find_failed_checks(source, store)
        if failed:
            names, dataset = ", ".join(sorted(failed)), source.path[0]
            raise dg.Failure(
                f"nothing is built from {'/'.join(source.path)}, because its blocking "
                f"{'check' if len(failed) == 1 else 'checks'} {names} failed. Run `dataprep status {dataset}` to see "
                f"the findings, or `dataprep run {dataset}` to rebuild and check it",
                allow_retries=False,
            )


@contextmanager
def convert_errors(spec: ArtifactSpec, store: ArtifactStore) -> Iterator[None]:
    """Convert errors of a step into dg.Failure without a traceback and without retries.

    The message gives the remedy, and a retry would fail the same way. For a sensitive dataset bugs are converted as
    well, because their messages may quote the data.
    """
    try:
        yield
    except DataprepError as error:
        message = _format_error(spec, store, error, "/".join(spec.path))
        raise dg.Failure(message, metadata=_flag_misconfiguration([error]), allow_retries=False) from None
    except OSError as error:
        message = _format_error(spec, store, translate_os_error(error, store.root), "/".join(spec.path))
        raise dg.Failure(message, allow_retries=False) from None
    except dg.Failure:
        raise
    except Exception as error:
        if not spec.declaration.sensitive:
            raise
        message = _format_error(spec, store, error, "/".join(spec.path))
        raise_detached(dg.Failure(message, allow_retries=False))


def _format_error(spec: ArtifactSpec, store: ArtifactStore, error: Exception, location: str) -> str:
    """Format an error for the UI; for a missing artifact, add the job that builds it."""
    advice = ""
    if isinstance(error, MissingArtifactError):
        datasets = [source.dataset for source in spec.inputs if isinstance(source, DatasetInput)]
        jobs = " and ".join(map(job_name, dict.fromkeys(datasets))) or job_name(spec.declaration.dataset)
        verb = "build" if " and " in jobs else "builds"
        advice = f". The job{'s' if verb == 'build' else ''} {jobs} {verb} all missing artifacts in order"
    return load_privacy(spec.declaration, store).public_error(error, location, advice)


def _flag_misconfiguration(errors: Iterable[Exception]) -> dict[str, bool]:
    """Return the metadata of a failure that only a change to the declaration or environment can resolve."""
    return {MISCONFIGURED: True} if all(isinstance(error, ConfigError) for error in errors) else {}


def _build_failure(
    spec: ArtifactSpec, store: ArtifactStore, failed: Mapping[str, Exception], done_count: int
) -> dg.Failure:
    noun, first_failures = spec.noun, sorted(failed.items())[:_MAX_SHOWN_FAILURES]
    errors = {partition: _format_error(spec, store, error, partition) for partition, error in first_failures}
    summary = f"{len(failed):,} of {count_of(len(failed) + done_count, noun)} failed; "
    if spec.declaration.sensitive:
        summary = "failed; "
    elif len(failed) > _MAX_SHOWN_FAILURES:
        errors[f"and {len(failed) - _MAX_SHOWN_FAILURES:,} more"] = f"the log names every {noun}"
    by_error: dict[str, list[str]] = {}
    for partition, error in errors.items():
        by_error.setdefault(error, []).append(partition)
    return dg.Failure(
        description=summary
        + ("the others are finished and kept. " if done_count else "")
        + " | ".join(f"{', '.join(partitions)}: {error}" for error, partitions in by_error.items()),
        metadata={
            f"failed_{noun}s": dg.MetadataValue.table(
                [dg.TableRecord({noun: partition, "error": error}) for partition, error in errors.items()]
            ),
            **_flag_misconfiguration(failed.values()),
        },
        allow_retries=False,
    )
