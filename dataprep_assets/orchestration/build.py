"""Job of a dataset, `build_<dataset>`: one run builds and checks all partitions of all artifacts.

The job has a step per artifact, in the order of the graph. A step builds and checks each partition according to
`staleness.decide`, and logs both as public events. For an up-to-date partition it only reads the receipts. The job
needs no existing partitions, because their keys are known only from a manifest or a plan.

A failed step blocks only the steps that depend on it. Finished work is kept, so launching the job again, or
re-executing the run from its failure, resumes there.

`dataprep run` executes the same job in its own process (`runs`).
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import dagster as dg

from dataprep_assets.engine.artifact.build import ancestors, in_order, together
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.decide import CHECK_FAILED, DAMAGED, Action
from dataprep_assets.engine.staleness.status import check_decisions, decisions_of, prune_retracted, sweep
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.checks import check_evaluation, log_evaluation
from dataprep_assets.orchestration.partitions import DATASET, job_name, step_name
from dataprep_assets.orchestration.runs.runs import POOLS, Recorded, stay_at_work
from dataprep_assets.orchestration.runs.step_build import StepBuild, refusals, refuse_failed
from dataprep_assets.resources import StorageResource
from dataprep_assets.stores.files import private_files

_CHECK = "no_retracted_document"
_Event = dg.AssetMaterialization | dg.AssetCheckEvaluation


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The result of a step: the numbers of built and reused partitions, and the checks that warned.

    An artifact without partitions counts as one partition.
    """

    built: int
    reused: int
    warned: Sequence[str] = ()


class BuildListener(Protocol):
    """Receiver of a build's events; each call has the artifact and its partitions (empty if it has none)."""

    def before(self, spec: ArtifactSpec, partitions: Sequence[str], *, current: bool) -> None:
        """Handle an artifact before it is built, or kept because it is `current`; may raise DataprepError."""

    def checking(self, spec: ArtifactSpec) -> None:
        """Handle a built artifact before its checks run."""
        return  # not abstract

    def after(self, spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> None:
        """Handle an artifact that is present and not blocked by a check; may raise DataprepError."""

    def failed(self, spec: ArtifactSpec, why: str) -> None:
        """Handle an artifact that cannot be built or is blocked by a check; `why` may be empty."""
        return  # not abstract

    def report_line(self, sentence: str) -> None:
        """Report a warning of a step, or a removal by the last step."""
        return  # not abstract


def job_of(
    specs: Sequence[ArtifactSpec],
    *,
    only: Mapping[ArtifactSpec, Sequence[str]] | None = None,
    attendants: Sequence[BuildListener] = (),
) -> dg.JobDefinition:
    """Return the job of a dataset.

    Args:
        specs: All artifacts of the dataset, inputs before the artifacts that are built from them.
        only: The artifacts to build, each with its selected partitions; None builds everything.
        attendants: Listeners in this process that receive the events of the build.
    """
    declaration = specs[0].declaration
    dataset = declaration.dataset
    selected = [spec for spec in specs if only is None or spec in only]

    @dg.job(
        name=job_name(dataset),
        description=f"Build and check all of {dataset}. Artifacts that are up to date are kept.",
        tags={DATASET: dataset},
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        outputs: dict[ArtifactSpec, Any] = {}
        for members in together(selected):
            step = _step(members, specs, only or {}, attendants).alias(step_name(*members))
            # by identity, because artifacts that are built together share one output, which is needed once
            needs = {id(outputs[s]): outputs[s] for spec in members for s in spec.inputs if s in outputs}
            output = step(after=list(needs.values())) if needs else step()
            outputs.update(dict.fromkeys(members, output))
        if only is None:
            final_outputs = [
                outputs[spec] for spec in selected if not any(spec in reader.inputs for reader in selected)
            ]
            _end(specs, attendants).alias("end")(after=list({id(output): output for output in final_outputs}.values()))

    return job


def _step(
    members: Sequence[ArtifactSpec],
    specs: Sequence[ArtifactSpec],
    only: Mapping[ArtifactSpec, Sequence[str]],
    attendants: Sequence[BuildListener],
) -> dg.OpDefinition:
    """Return the step that builds one artifact, or several artifacts together; `specs` are the dataset's artifacts."""
    declaration, pool = members[0].declaration, members[0].pool

    @dg.op(
        name=f"make__{declaration.dataset}__{step_name(*members)}",
        description=members[0].description,
        ins={"after": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
        pool=None if pool is None else POOLS[pool],
    )
    def step(context: dg.OpExecutionContext, storage: StorageResource) -> Iterator[Any]:
        stay_at_work(context)
        store = declaration.store(storage)
        with private_files(declaration.sensitive), refusals(members[0], store):
            for spec, partitions in in_order(members, store):
                selected = partitions if spec not in only else [key for key in partitions if key in only[spec]]
                if selected or spec.partitions is None:
                    try:
                        yield from _JobBuild(context, spec, store, selected, attendants).build_and_check(specs)
                    except (DataprepError, dg.Failure) as error:
                        # pass on no message of a DataprepError, which may be private; `refusals` converts it to a
                        # dg.Failure
                        why = error.description or "" if isinstance(error, dg.Failure) else ""
                        for attendant in attendants:
                            attendant.failed(spec, why)
                        raise
        yield dg.Output(None)

    return step


class _JobBuild:
    """The build of an artifact, or of some of its partitions, in a run of the job."""

    def __init__(
        self,
        context: dg.OpExecutionContext,
        spec: ArtifactSpec,
        store: ArtifactStore,
        partitions: Sequence[str],
        attendants: Sequence[BuildListener],
    ) -> None:
        self._context, self._spec, self._store, self._attendants = context, spec, store, attendants
        self._partitions = partitions
        self._slots: list[str | None] = list(partitions) if spec.partitions is not None else [None]
        self._recorded = Recorded(context.instance)
        self._evaluations: list[dg.AssetCheckEvaluation] = []  # not reported yet

    def build_and_check(self, specs: Sequence[ArtifactSpec]) -> Iterator[_Event]:
        """Build out-of-date partitions, run due checks, and yield the events of both.

        With `verify: size`, damage to an input can remain unnoticed. Therefore, if the build or a check fails, all
        inputs are fully verified and damaged ones are rebuilt. Then the build is retried once.
        """
        try:
            yield from self._run_once()
        except (DataprepError, dg.Failure):
            # before the inputs are rebuilt, because the verdicts are about the old inputs
            decisions = check_decisions(self._spec, self._store, self._slots)
            healed, failed = False, {slot for slot in self._slots if decisions[slot].kind == CHECK_FAILED}
            for source in specs:
                if source in ancestors([self._spec]) and source.kept:
                    damaged = _damaged(source, self._store)
                    healed |= bool(damaged)
                    yield from self._made_again(source, damaged)
            if not healed:
                # not reported earlier, because a repaired input would make the failed check obsolete
                yield from self._evaluations
                raise
            try:
                yield from self._run_once(failed)
            except dg.Failure:
                yield from self._evaluations
                raise

    def _run_once(self, failed: Set[str | None] = frozenset()) -> Iterator[_Event]:
        spec, store, slots, attendants = self._spec, self._store, self._slots, self._attendants
        making = StepBuild(self._context, spec, store, partial(_tell, attendants))
        decided = decisions_of(spec, store, slots, events=self._recorded)
        # slots to check are also passed to the build, which fetches the mirrored files that their checks read
        slots_to_build = [slot for slot in slots if slot in failed or decided[slot].action is not Action.KEEP]
        is_current = not failed and all(item.action is Action.KEEP for item in decided.values())
        for attendant in attendants:
            attendant.before(spec, self._partitions, current=is_current)
        if slots_to_build:
            rebuilt = {
                s for s in slots_to_build if decided[s].action is Action.BUILD and decided[s].kind == CHECK_FAILED
            }
            reused = {slot for slot in slots_to_build if slot not in failed and decided[slot].action is Action.CHECK}
            yield from making.build(slots_to_build, rebuild=rebuilt | failed, told=reused)
        else:
            # another machine may have built the plan, so this machine's instance may not have its partitions
            making.register_plans()
        if not is_current:
            for attendant in attendants:
                attendant.checking(spec)
            self._evaluations = making.prove(slots)
        result = StepResult(
            built=making.built,
            reused=len(slots) - making.built,
            warned=[item.check_name for item in self._evaluations if not item.passed],
        )
        refuse_failed(self._evaluations)
        yield from self._evaluations
        self._evaluations = []
        if is_current:
            self._context.log.info(f"{'/'.join(spec.path)}: up to date")
        for attendant in attendants:
            attendant.after(spec, self._partitions, result)

    def _made_again(self, source: ArtifactSpec, damaged: Sequence[str | None]) -> Iterator[_Event]:
        if damaged:
            name = "/".join(source.path)
            self._context.log.warning(
                f"{name}: damaged, so it is rebuilt: {', '.join(slot or name for slot in damaged)}"
            )
            making = StepBuild(self._context, source, self._store)
            yield from making.build(damaged, rebuild=set(damaged))
            evaluations = making.prove(damaged)
            yield from evaluations
            refuse_failed(evaluations)


def _tell(attendants: Sequence[BuildListener], sentence: str) -> None:
    for attendant in attendants:
        attendant.report_line(sentence)


def _damaged(spec: ArtifactSpec, store: ArtifactStore) -> list[str | None]:
    """Return the slots of an artifact whose damage only a full verification finds."""
    if (spec.verification or spec.declaration.verify) == "full":
        return []
    decisions = decisions_of(spec, store, spec.slots(store), verification="full")
    return [slot for slot, decision in decisions.items() if decision.kind == DAMAGED]


def _end(specs: Sequence[ArtifactSpec], attendants: Sequence[BuildListener]) -> dg.OpDefinition:
    """Return the last step, which removes files of killed runs and obsolete artifacts with retracted documents."""
    declaration = specs[0].declaration

    @dg.op(
        name=f"make__{declaration.dataset}__end",
        description="Removes leftovers of killed runs, and obsolete artifacts that hold retracted documents.",
        ins={"after": dg.In(dg.Nothing)},
        out=dg.Out(dg.Nothing),
    )
    def end(context: dg.OpExecutionContext, storage: StorageResource) -> None:
        stay_at_work(context)
        store = declaration.store(storage)
        with private_files(declaration.sensitive), refusals(specs[-1], store):
            sweep(specs, store)
            removed = {str(artifact): is_removed for artifact, is_removed in prune_retracted(specs, store)}
            for artifact, is_removed in removed.items():
                sentence = (
                    f"{'removed' if is_removed else 'kept, because a run is building it'} "
                    f"(no longer needed): {artifact}"
                )
                context.log.info(sentence)
                _tell(attendants, sentence)
            if removed:
                _judge_again(context, specs, store)
        if not all(removed.values()):
            raise dg.Failure(
                f"{declaration.dataset}: another run is building obsolete artifacts that hold retracted documents. "
                "Run again when it has ended",
                allow_retries=False,
            )

    return end


def _judge_again(context: dg.OpExecutionContext, specs: Sequence[ArtifactSpec], store: ArtifactStore) -> None:
    """Reevaluate the checks that warned about the removed artifacts, from stored verdicts."""
    for spec in specs:
        before = Recorded(context.instance).evaluations(spec).get(_CHECK)
        if before is None or before.passed or before.blocks or not spec.checks:
            continue
        for name, finding in spec.examine(store, []):
            if name == _CHECK:
                log_evaluation(context, check_evaluation(spec, store, name, finding))
