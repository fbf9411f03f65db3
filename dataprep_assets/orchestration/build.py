"""Job of a dataset, `build_<dataset>`: one run builds and checks all partitions of all artifacts.

The job has a step per artifact, in the order of the graph. A step builds and checks each partition according to
`staleness.decide`, and logs both as public events. For an up-to-date partition it only reads the receipts. The job
needs no existing partitions, because their keys are known only from a manifest or a plan.

A failed step blocks only the steps that depend on it. Finished work is kept, so launching the job again, or
re-executing the run from its failure, resumes there.

`dataprep run` executes the same job in its own process (`runs`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import dagster as dg

from dataprep_assets.bounds import return_freed_memory
from dataprep_assets.engine.artifact.build import find_ancestors, group_by_build, iterate_builds
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import NO_RETRACTED
from dataprep_assets.engine.staleness.decide import CHECK_FAILED, DAMAGED, Action
from dataprep_assets.engine.staleness.status import decide_checks, decide_slots, prune_retracted, remove_leftovers
from dataprep_assets.engine.staleness.step_times import RUN, Build, StepTimes, build_size_function
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.checks import build_check_evaluation, log_evaluation
from dataprep_assets.orchestration.partitions import DATASET, build_step_name, job_name
from dataprep_assets.orchestration.runs.runs import POOLS, DagsterEvents, hold_run_lock_until_exit
from dataprep_assets.orchestration.runs.step_build import StepBuild, convert_errors, raise_for_failed_checks
from dataprep_assets.resources import StorageResource
from dataprep_assets.stores.files import private_files

_Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Result of a step: its built and reused partitions, and its warnings.

    Attributes:
        built_slots: The built partitions; `[None]` for a built artifact without partitions.
        reused: Number of partitions that were not built. An artifact without partitions counts as one partition.
        warned: Names of the checks that warned.
    """

    built_slots: Sequence[str | None]
    reused: int
    warned: Sequence[str] = ()

    @property
    def built_count(self) -> int:
        """Number of built partitions."""
        return len(self.built_slots)


class BuildListener(Protocol):
    """Listener for the events of a build; `partitions` is empty for an unpartitioned artifact."""

    def before(self, spec: ArtifactSpec, partitions: Sequence[str], *, current: bool) -> None:
        """Handle an artifact before it is built or, if `current`, kept; may raise DataprepError."""

    def checking(self, spec: ArtifactSpec) -> None:
        """Handle a built artifact before its checks run."""
        return  # subclasses need not override this method

    def after(self, spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> None:
        """Handle an artifact that is present and not blocked by a check; may raise DataprepError."""

    def failed(self, spec: ArtifactSpec, reason: str) -> None:
        """Handle an artifact that cannot be built or is blocked by a check; `reason` may be empty."""
        return  # subclasses need not override this method

    def report_line(self, sentence: str) -> None:
        """Report a warning of a step, or a removal by the last step."""
        return  # subclasses need not override this method


class StepTimer(BuildListener):
    """Timer of a build's steps; `keep` saves the times, from which the next run's duration is forecast.

    Args:
        start_time: Start of the run, in seconds of `time.monotonic`.
    """

    def __init__(self, start_time: float) -> None:
        self._start_time = self._step_start_time = start_time
        self._steps: list[tuple[ArtifactSpec, StepResult, float]] = []

    def exclude(self, seconds: float) -> None:
        """Exclude setup time before the first step, because later runs do not repeat that setup."""
        self._start_time += seconds

    def before(self, spec: ArtifactSpec, partitions: Sequence[str], *, current: bool) -> None:
        """Start the clock of a step."""
        self._step_start_time = time.monotonic()

    def after(self, spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> None:
        """Store the duration of a step, including its checks."""
        self._steps.append((spec, result, time.monotonic() - self._step_start_time))

    def keep(self, times: StepTimes, specs: Sequence[ArtifactSpec], store: ArtifactStore, *, complete: bool) -> None:
        """Save the durations of steps that built something and, for a `complete` run, the time between steps."""
        overhead_seconds = time.monotonic() - self._start_time - sum(seconds for *_, seconds in self._steps)
        size_of, builds = build_size_function(specs, store), dict[str, list[Build]]()
        for spec, result, seconds in self._steps:
            if result.built_count and (size := size_of(spec, result.built_slots)) is not None:
                builds.setdefault(spec.name, []).append((size, seconds))
        if builds and complete:
            builds[RUN] = [(1.0, max(0.0, overhead_seconds))]
        times.add(specs[0].declaration, builds)


def build_job(
    specs: Sequence[ArtifactSpec],
    *,
    only: Mapping[ArtifactSpec, Sequence[str] | None] | None = None,
    listeners: Sequence[BuildListener] = (),
) -> dg.JobDefinition:
    """Return the job of a dataset.

    Args:
        specs: All artifacts of the dataset, inputs before the artifacts that are built from them.
        only: The artifacts to build, each with its selected partitions, or None for all of them; None builds
            everything.
        listeners: Listeners in this process that receive the events of the build.
    """
    declaration = specs[0].declaration
    dataset = declaration.dataset
    selected = [spec for spec in specs if only is None or spec in only]

    @dg.job(
        name=job_name(dataset),
        description=f"Builds and checks the whole dataset {dataset}. Artifacts that are up to date are kept.",
        tags={DATASET: dataset},
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        outputs: dict[ArtifactSpec, Any] = {}
        for members in group_by_build(selected):
            step = _build_step(members, specs, only or {}, listeners).alias(build_step_name(*members))
            # Compare outputs by identity, because artifacts that are built together share one output, which is needed
            # only once.
            needs = {id(outputs[s]): outputs[s] for spec in members for s in spec.inputs if s in outputs}
            output = step(after=list(needs.values())) if needs else step()
            outputs.update(dict.fromkeys(members, output))
        if only is None:
            final_outputs = [
                outputs[spec] for spec in selected if not any(spec in reader.inputs for reader in selected)
            ]
            _build_last_step(specs, listeners).alias("end")(
                after=list({id(output): output for output in final_outputs}.values())
            )

    return job


def _build_step(
    members: Sequence[ArtifactSpec],
    specs: Sequence[ArtifactSpec],
    only: Mapping[ArtifactSpec, Sequence[str] | None],
    listeners: Sequence[BuildListener],
) -> dg.OpDefinition:
    """Return the step that builds one artifact, or several artifacts together; `specs` are the dataset's artifacts."""
    declaration, pool = members[0].declaration, members[0].pool

    @dg.op(
        name=f"make__{declaration.dataset}__{build_step_name(*members)}",
        description=members[0].description,
        ins={"after": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        pool=None if pool is None else POOLS[pool],
    )
    def step(context: dg.OpExecutionContext, storage: StorageResource) -> Iterator[Any]:
        hold_run_lock_until_exit(context)
        store = declaration.store(storage)
        with private_files(declaration.sensitive), convert_errors(members[0], store):
            for spec, partitions in iterate_builds(members, store):
                keys = only.get(spec)
                selected = partitions if keys is None else [key for key in partitions if key in keys]
                if selected or spec.partitions is None:
                    try:
                        yield from _JobBuild(context, spec, store, selected, listeners).build_and_check(specs)
                    except (DataprepError, dg.Failure) as error:
                        # Omit the message of a DataprepError, because it may be private. `convert_errors` later
                        # converts this error to a dg.Failure.
                        reason = error.description or "" if isinstance(error, dg.Failure) else ""
                        for listener in listeners:
                            listener.failed(spec, reason)
                        raise
        return_freed_memory()
        yield dg.Output(None)

    return step


class _JobBuild:
    """Build of an artifact, or of some of its partitions, in a run of the job."""

    def __init__(
        self,
        context: dg.OpExecutionContext,
        spec: ArtifactSpec,
        store: ArtifactStore,
        partitions: Sequence[str],
        listeners: Sequence[BuildListener],
    ) -> None:
        self._context, self._spec, self._store, self._listeners = context, spec, store, listeners
        self._partitions = partitions
        self._slots: list[str | None] = list(partitions) if spec.partitions is not None else [None]
        self._dagster_events = DagsterEvents(context.instance)
        self._evaluations: list[dg.AssetCheckEvaluation] = []  # collected until the step reports them

    def build_and_check(self, specs: Sequence[ArtifactSpec]) -> Iterator[_Event]:
        """Build out-of-date partitions, run due checks, and yield the events of both.

        With `verify: size`, damage to an input can remain unnoticed. Therefore, if the build or a check fails, all
        inputs are fully verified and damaged ones are rebuilt. Then the build is retried once.
        """
        try:
            yield from self._run_once()
        except (DataprepError, dg.Failure):
            # Decide before the inputs are rebuilt, because the verdicts refer to the old inputs.
            decisions = decide_checks(self._spec, self._store, self._slots)
            has_rebuilt, failed = False, {slot for slot in self._slots if decisions[slot].kind == CHECK_FAILED}
            for source in specs:
                if source in find_ancestors([self._spec]) and source.kept:
                    damaged = _find_damaged_slots(source, self._store)
                    has_rebuilt |= bool(damaged)
                    yield from self._rebuild_damaged_artifacts(source, damaged)
            if not has_rebuilt:
                # Report only now, because a rebuilt input would have made the failed check obsolete.
                yield from self._evaluations
                raise
            try:
                yield from self._run_once(failed)
            except dg.Failure:
                yield from self._evaluations
                raise

    def _run_once(self, failed: Set[str | None] = frozenset()) -> Iterator[_Event]:
        spec, store, slots, listeners = self._spec, self._store, self._slots, self._listeners
        step_build = StepBuild(self._context, spec, store, partial(_notify_listeners, listeners))
        decisions = decide_slots(spec, store, slots, events=self._dagster_events)
        # Also build the slots that are only checked, because the build downloads the mirrored files for their checks.
        slots_to_build = [slot for slot in slots if slot in failed or decisions[slot].action is not Action.KEEP]
        is_current = not failed and all(item.action is Action.KEEP for item in decisions.values())
        for listener in listeners:
            listener.before(spec, self._partitions, current=is_current)
        if slots_to_build:
            rebuilt = {
                s for s in slots_to_build if decisions[s].action is Action.BUILD and decisions[s].kind == CHECK_FAILED
            }
            reused = {slot for slot in slots_to_build if slot not in failed and decisions[slot].action is Action.CHECK}
            yield from step_build.build(slots_to_build, rebuild=rebuilt | failed, warned_slots=reused)
        else:
            # Register the plan's partitions, because another machine may have built the plan and this instance may lack
            # them.
            step_build.register_plans()
        if not is_current:
            for listener in listeners:
                listener.checking(spec)
            self._evaluations = step_build.evaluate_checks(slots)
        result = StepResult(
            built_slots=step_build.built_slots,
            reused=len(slots) - len(step_build.built_slots),
            warned=[item.check_name for item in self._evaluations if not item.passed],
        )
        raise_for_failed_checks(self._evaluations)
        yield from self._evaluations
        self._evaluations = []
        if is_current:
            self._context.log.info(f"{'/'.join(spec.path)}: up to date")
        for listener in listeners:
            listener.after(spec, self._partitions, result)

    def _rebuild_damaged_artifacts(self, source: ArtifactSpec, damaged: Sequence[str | None]) -> Iterator[_Event]:
        if damaged:
            name = "/".join(source.path)
            parts = ", ".join(slot for slot in damaged if slot is not None)
            self._context.log.warning(f"{name}: damaged, so it is rebuilt" + (f" ({parts})" if parts else ""))
            step_build = StepBuild(self._context, source, self._store)
            yield from step_build.build(damaged, rebuild=set(damaged))
            evaluations = step_build.evaluate_checks(damaged)
            yield from evaluations
            raise_for_failed_checks(evaluations)


def _notify_listeners(listeners: Sequence[BuildListener], sentence: str) -> None:
    for listener in listeners:
        listener.report_line(sentence)


def _find_damaged_slots(spec: ArtifactSpec, store: ArtifactStore) -> list[str | None]:
    """Return the slots of an artifact with damage that verification by size misses; none if verification is full."""
    if (spec.verification or spec.declaration.verify) == "full":
        return []
    decisions = decide_slots(spec, store, spec.slots(store), verification="full")
    return [slot for slot, decision in decisions.items() if decision.kind == DAMAGED]


def _build_last_step(specs: Sequence[ArtifactSpec], listeners: Sequence[BuildListener]) -> dg.OpDefinition:
    """Return the last step, which removes files of killed runs and obsolete artifacts with retracted documents."""
    declaration = specs[0].declaration

    @dg.op(
        name=f"make__{declaration.dataset}__end",
        description="Removes files of killed runs, and obsolete artifacts that contain retracted documents.",
        ins={"after": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
    )
    def end(context: dg.OpExecutionContext, storage: StorageResource) -> None:
        hold_run_lock_until_exit(context)
        store = declaration.store(storage)
        with private_files(declaration.sensitive), convert_errors(specs[-1], store):
            remove_leftovers(specs, store)
            removed_artifacts = {str(artifact): is_removed for artifact, is_removed in prune_retracted(specs, store)}
            for artifact, is_removed in removed_artifacts.items():
                sentence = f"{'removed' if is_removed else 'kept, because a run is building it'} (obsolete): {artifact}"
                context.log.info(sentence)
                _notify_listeners(listeners, sentence)
            if removed_artifacts:
                _reevaluate_warnings(context, specs, store)
        if not all(removed_artifacts.values()):
            raise dg.Failure(
                f"{declaration.dataset}: another run is building obsolete artifacts that contain retracted "
                "documents. Run this job again when it has finished",
                allow_retries=False,
            )

    return end


def _reevaluate_warnings(context: dg.OpExecutionContext, specs: Sequence[ArtifactSpec], store: ArtifactStore) -> None:
    """Evaluate the checks that warned about the removed artifacts again, using stored verdicts."""
    for spec in specs:
        previous_evaluation = DagsterEvents(context.instance).evaluations(spec).get(NO_RETRACTED)
        if previous_evaluation is None or previous_evaluation.passed or previous_evaluation.blocks or not spec.checks:
            continue
        for name, finding in spec.examine(store, []):
            if name == NO_RETRACTED:
                log_evaluation(context, build_check_evaluation(spec, store, name, finding))
