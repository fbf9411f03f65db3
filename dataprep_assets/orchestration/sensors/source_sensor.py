"""`automation.on_new_files`: a sensor, or with a cron expression a schedule, that asks a dataset's source for changes.

A change launches the dataset's job once. If the source is out of reach, the tick says so in one sentence and the next
one asks again. A tick fetches and writes no data: `staleness.source_watch` says how a source is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import dagster as dg

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.privacy import privacy_of
from dataprep_assets.engine.staleness.source_watch import PollResult, SourceWatch, look
from dataprep_assets.engine.yaml.automation import Automation
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import DataprepError
from dataprep_assets.orchestration.keys import DATASET
from dataprep_assets.orchestration.runs.dataset_runs import in_progress
from dataprep_assets.orchestration.runs.deadline import run_with_deadline
from dataprep_assets.resources import StorageResource
from dataprep_assets.stores.private import private_files

SOURCE = "dataprep/source"
"""Run tag: the identity of the source that a run was launched for."""
CHANGE = "dataprep/change"
"""Run tag: a description of what changed in the source."""
LONGEST_LOOK_SECONDS = 40.0
"""A limit below the 60 s after which Dagster ends an evaluation with a stack trace."""


@dataclass(frozen=True, kw_only=True)
class _Tick:
    """What a tick found: a `sentence` to show, and the `look`, which is None if the source was not or could not be
    asked."""

    sentence: str
    look: PollResult | None = None


def watch_of(specs: Sequence[ArtifactSpec]) -> SourceWatch:
    """How the source of a dataset is asked; in each kind of dataset exactly one artifact reads it."""
    return next(spec.watch for spec in specs if spec.watch is not None)


def source_sensor(specs: Sequence[ArtifactSpec], automation: Automation, job: dg.JobDefinition) -> dg.SensorDefinition:
    """The sensor of a dataset that declares an interval.

    Args:
        specs: All artifacts of the dataset.
        automation: What is declared.
        job: What a change launches.
    """
    declaration, watch = specs[0].declaration, watch_of(specs)
    dataset = declaration.dataset

    @dg.sensor(
        name=f"{dataset}_on_new_files",
        job=job,
        minimum_interval_seconds=automation.interval,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Asks the source of {dataset} for changes, and builds what changed.",
    )
    def on_new_files(context: dg.SensorEvaluationContext, storage: StorageResource) -> dg.SensorResult:
        # the cursor: identity at the last successful look, and the number of launches so far. That number makes the
        # run key differ when a source returns to an earlier state, and stay the same after an interrupted tick
        seen, _, count = (context.cursor or "").partition(" ")
        launches = int(count or 0)
        asked = _ask(declaration, watch, storage, seen or None)
        if asked.look is None:
            # the cursor stays: what changed while the source was out of reach is seen when it is back
            return dg.SensorResult(skip_reason=asked.sentence, cursor=context.cursor)
        identity = asked.look.identity
        if not asked.look.change:
            return dg.SensorResult(skip_reason=asked.sentence, cursor=f"{identity} {launches}")
        # asked only now: most looks find nothing, and need no query of the run database
        if busy := in_progress(context.instance, dataset):
            # the cursor stays here, too: the change is still to be built when that run has ended
            return dg.SensorResult(skip_reason=_later(asked, busy), cursor=context.cursor)
        context.log.info(asked.sentence)
        request = dg.RunRequest(run_key=f"{identity} {launches}", tags=_tags(dataset, asked.look))
        return dg.SensorResult(run_requests=[request], cursor=f"{identity} {launches + 1}")

    return on_new_files


def source_schedule(
    specs: Sequence[ArtifactSpec], automation: Automation, job: dg.JobDefinition
) -> dg.ScheduleDefinition:
    """The schedule of a dataset that declares a cron expression.

    A schedule has no cursor: the tags of the last run that it launched have the identity of the source.

    Args:
        specs: All artifacts of the dataset.
        automation: What is declared.
        job: What a change launches.
    """
    declaration, watch = specs[0].declaration, watch_of(specs)
    dataset = declaration.dataset
    name = f"{dataset}_on_new_files"

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=automation.look_cron or "",
        execution_timezone=automation.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Asks the source of {dataset} for changes, and builds what changed.",
    )
    def on_new_files(context: dg.ScheduleEvaluationContext, storage: StorageResource) -> dg.RunRequest | dg.SkipReason:
        launched = dg.RunsFilter(tags={DATASET: dataset, "dagster/schedule_name": name})
        last = next(iter(context.instance.get_runs(launched, limit=1)), None)
        asked = _ask(declaration, watch, storage, last.tags.get(SOURCE) if last is not None else None)
        if asked.look is None or not asked.look.change:
            return dg.SkipReason(asked.sentence)
        if busy := in_progress(context.instance, dataset):
            return dg.SkipReason(_later(asked, busy))
        context.log.info(asked.sentence)
        return dg.RunRequest(tags=_tags(dataset, asked.look))

    return on_new_files


def _tags(dataset: str, found: PollResult) -> dict[str, str]:
    return {DATASET: dataset, SOURCE: found.identity, CHANGE: found.change}


def _later(asked: _Tick, busy: str) -> str:
    return f"{asked.sentence}; {busy}: it is looked at again when that has ended"


def _ask(declaration: DatasetDeclaration, watch: SourceWatch, storage: StorageResource, seen: str | None) -> _Tick:
    """Ask the source.

    Args:
        declaration: The dataset's declaration.
        watch: How its source is asked.
        storage: Where its plan is.
        seen: Identity of the source at the last successful look.
    """
    privacy = privacy_of(declaration, declaration.store(storage))
    try:
        with private_files(declaration.sensitive):
            poll = run_with_deadline(LONGEST_LOOK_SECONDS, lambda: look(watch, declaration.store(storage), seen))
    except TimeoutError:
        return _Tick(
            sentence=f"the source was not listed within {LONGEST_LOOK_SECONDS:.0f} s; it is asked again. Where it "
            "always takes that long, use `automation.schedule`"
        )
    except Exception as error:
        # what a tick raises is recorded with its stack, in words that may name a source file
        if not (declaration.sensitive or isinstance(error, DataprepError)):
            raise
        reason = privacy.error(error, "the source cannot be asked").rstrip(".")
        return _Tick(sentence=f"the source cannot be asked: {reason}; it is asked again")
    if poll.change:
        poll = replace(poll, change=privacy.text(poll.change, "the source changed"))
        return _Tick(sentence=poll.change, look=poll)
    same = "nothing changed since the last look" if poll.identity == seen else "the source is as it was planned"
    return _Tick(sentence=same, look=poll)
