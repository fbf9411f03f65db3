"""The job of a dataset, `build_<dataset>`: one run makes and checks all of it, however many partitions there are.

The job has a step for each artifact, in the order of the graph. A step does what `staleness.decide` says of each
partition, builds and checks, and logs both as public events; what is up to date costs reading its receipts.
Nothing has to exist beforehand, not even the partitions, which only a manifest or a plan knows. A step that fails holds
up those that need it, and no others; whatever it finished is kept, so launching the job again, or re-executing the run
from its failure, goes on from there.

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
    """How an artifact came to be there: how many of its partitions were built and reused (one without any counts as
    one), and its checks that did not pass and do not block."""

    built: int
    reused: int
    warned: Sequence[str] = ()


class BuildListener(Protocol):
    """What goes on beside a build: it is told of each artifact and its partitions (none if it has none)."""

    def before(self, spec: ArtifactSpec, partitions: Sequence[str], *, current: bool) -> None:
        """Called before an artifact is made, or left as it is because it is `current`; may raise DataprepError."""

    def checking(self, spec: ArtifactSpec) -> None:
        """Called before the checks of an artifact that was made."""
        return  # not abstract

    def after(self, spec: ArtifactSpec, partitions: Sequence[str], result: StepResult) -> None:
        """Called when the artifact is there and its checks let it pass; may raise DataprepError."""

    def failed(self, spec: ArtifactSpec, why: str) -> None:
        """Called when an artifact cannot be made, or a check blocks it; `why` may be empty."""
        return  # not abstract

    def report_line(self, sentence: str) -> None:
        """Called with what a step warns of, and with what the last one did."""
        return  # not abstract


def job_of(
    specs: Sequence[ArtifactSpec],
    *,
    only: Mapping[ArtifactSpec, Sequence[str]] | None = None,
    attendants: Sequence[BuildListener] = (),
) -> dg.JobDefinition:
    """The job of a dataset.

    Args:
        specs: All artifacts of the dataset, inputs before what is made of them.
        only: The artifacts to make, each with the partitions to make of it; None for everything.
        attendants: Who attends to the build, in this process.
    """
    declaration = specs[0].declaration
    dataset = declaration.dataset
    chosen = [spec for spec in specs if only is None or spec in only]

    @dg.job(
        name=job_name(dataset),
        description=f"Build and check all of {dataset}. Artifacts that are up to date are kept.",
        tags={DATASET: dataset},
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        made: dict[ArtifactSpec, Any] = {}
        for members in together(chosen):
            step = _step(members, specs, only or {}, attendants).alias(step_name(*members))
            # by identity: artifacts that are made together have one output, and it is waited for once
            needs = {id(made[s]): made[s] for spec in members for s in spec.inputs if s in made}
            output = step(after=list(needs.values())) if needs else step()
            made.update(dict.fromkeys(members, output))
        if only is None:
            last = [made[spec] for spec in chosen if not any(spec in other.inputs for other in chosen)]
            _end(specs, attendants).alias("end")(after=list({id(output): output for output in last}.values()))

    return job


def _step(
    members: Sequence[ArtifactSpec],
    specs: Sequence[ArtifactSpec],
    only: Mapping[ArtifactSpec, Sequence[str]],
    attendants: Sequence[BuildListener],
) -> dg.OpDefinition:
    """The step that makes one artifact of the dataset's `specs`, or those that are made together."""
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
                chosen = partitions if spec not in only else [key for key in partitions if key in only[spec]]
                if chosen or spec.partitions is None:
                    try:
                        yield from _JobBuild(context, spec, store, chosen, attendants).done(specs)
                    except (DataprepError, dg.Failure) as error:
                        # what an error of ours says may not leave; `refusals` makes a failure of it
                        why = error.description or "" if isinstance(error, dg.Failure) else ""
                        for attendant in attendants:
                            attendant.failed(spec, why)
                        raise
        yield dg.Output(None)

    return step


class _JobBuild:
    """The making of an artifact, or of some of its partitions, in a run of the job."""

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

    def done(self, specs: Sequence[ArtifactSpec]) -> Iterator[_Event]:
        """Build what is not current, prove what is not proven, and yield both.

        Where less than all bytes of an artifact is verified (`verify: size`), what it is made of may be damaged unseen:
        if it fails, that is verified to the last byte, and what is damaged is made again first, once.
        """
        try:
            yield from self._run_once()
        except (DataprepError, dg.Failure):
            # asked for first: a verdict is about the inputs that there were
            judged = check_decisions(self._spec, self._store, self._slots)
            healed, failed = False, {slot for slot in self._slots if judged[slot].kind == CHECK_FAILED}
            for source in specs:
                if source in ancestors([self._spec]) and source.kept:
                    damaged = _damaged(source, self._store)
                    healed |= bool(damaged)
                    yield from self._made_again(source, damaged)
            if not healed:
                # a failed check is reported only here: had an input been mended, the artifact would be judged anew
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
        # what is left to be checked is reused by its build, which fetches the files of a mirror that its checks read
        slots_to_build = [slot for slot in slots if slot in failed or decided[slot].action is not Action.KEEP]
        is_current = not failed and all(one.action is Action.KEEP for one in decided.values())
        for attendant in attendants:
            attendant.before(spec, self._partitions, current=is_current)
        if slots_to_build:
            rebuilt = {
                s for s in slots_to_build if decided[s].action is Action.BUILD and decided[s].kind == CHECK_FAILED
            }
            reused = {slot for slot in slots_to_build if slot not in failed and decided[slot].action is Action.CHECK}
            yield from making.build(slots_to_build, rebuild=rebuilt | failed, told=reused)
        else:
            # another machine may have made the plan, whose partitions the instance of this one does not know
            making.register_plans()
        if not is_current:
            for attendant in attendants:
                attendant.checking(spec)
            self._evaluations = making.prove(slots)
        result = StepResult(
            built=making.built,
            reused=len(slots) - making.built,
            warned=[one.check_name for one in self._evaluations if not one.passed],
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
            self._context.log.warning(f"{name}: damaged, so it is rebuilt: {', '.join(one or name for one in damaged)}")
            making = StepBuild(self._context, source, self._store)
            yield from making.build(damaged, rebuild=set(damaged))
            evaluations = making.prove(damaged)
            yield from evaluations
            refuse_failed(evaluations)


def _tell(attendants: Sequence[BuildListener], sentence: str) -> None:
    for attendant in attendants:
        attendant.report_line(sentence)


def _damaged(spec: ArtifactSpec, store: ArtifactStore) -> list[str | None]:
    """The slots of an artifact whose damage only a full verification sees."""
    if (spec.verification or spec.declaration.verify) == "full":
        return []
    decisions = decisions_of(spec, store, spec.slots(store), verification="full")
    return [slot for slot, one in decisions.items() if one.kind == DAMAGED]


def _end(specs: Sequence[ArtifactSpec], attendants: Sequence[BuildListener]) -> dg.OpDefinition:
    """The last step: what killed runs left goes, and what is in no plan and holds retracted documents."""
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
            removed = {str(artifact): gone for artifact, gone in prune_retracted(specs, store)}
            for artifact, gone in removed.items():
                sentence = (
                    f"{'removed' if gone else 'kept, because a run is building it'} (no longer needed): {artifact}"
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
    """Evaluate the checks that warned of what was removed, by remembered verdicts."""
    for spec in specs:
        before = Recorded(context.instance).evaluations(spec).get(_CHECK)
        if before is None or before.passed or before.blocks or not spec.checks:
            continue
        for found, finding in spec.examine(store, []):
            if found == _CHECK:
                log_evaluation(context, check_evaluation(spec, store, found, finding))
