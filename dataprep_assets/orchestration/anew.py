"""Lets a re-execution repair: a step that failed on its source is built once more, after the records of that source.

"Re-execute from failure" runs only the failed steps. If a source file was repaired in the meantime, the snapshot of the
previous run, which was green, still has the digest of the damaged file, and everything made of it would be refused. So
a step whose records (`ArtifactSpec.records_source`) were made by another run makes them again when it fails on its
source. Within one run it does not: a file that changes between its snapshot and its reading is refused as damaged.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dataprep_assets.errors import DataprepError, SourceError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.graph.privacy import privacy_of
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest
from dataprep_assets.orchestration.keys import TOGETHER, Context, asset_key, step_name


def built(
    context: Context, spec: ArtifactSpec, request: BuildRequest, report: Callable[[ArtifactSpec, Outcome], None]
) -> Iterator[Outcome]:
    """Yield the outcomes of building partitions; those that fail on their source get a second try if their records are
    of another run and may be out of date. `report` is called with each record that was made again."""
    records = [source for source in _records(spec) if not _made_by_this_run(context, source)]
    failed: dict[str, Outcome] = {}
    for outcome in spec.build(request):
        if records and isinstance(outcome.error, SourceError):
            failed[outcome.partition] = outcome
        else:
            yield outcome
    renewed = (
        [partition for partition in failed if _renewed(context, records, request, partition, report)] if failed else []
    )
    yield from (outcome for partition, outcome in failed.items() if partition not in renewed)
    if renewed:
        yield from spec.build(replace(request, partitions=renewed))


def _records(spec: ArtifactSpec) -> list[ArtifactSpec]:
    """The artifacts from which a step knows its source, inputs first: the manifest and the snapshot of its files."""
    direct = [source for source in spec.inputs if isinstance(source, ArtifactSpec) and source.records_source]
    return [record for source in direct for record in (*_records(source), source)]


def _made_by_this_run(context: Context, record: ArtifactSpec) -> bool:
    selection, steps = context.run.asset_selection, context.run.step_keys_to_execute
    if steps is not None:  # executed again from a failure: a run of the job, or of assets
        made = {name for step in steps for name in step.split(TOGETHER)}
        return not made.isdisjoint({step_name(record), "__".join(record.path)})
    return selection is None or asset_key(record) in selection


def _renewed(
    context: Context,
    records: Sequence[ArtifactSpec],
    request: BuildRequest,
    partition: str,
    report: Callable[[ArtifactSpec, Outcome], None],
) -> bool:
    """Make the records of a partition again; False if that fails too."""
    for record in records:
        partitions = () if record.partitions is None else (partition,)
        try:
            (outcome,) = record.build(replace(request, partitions=partitions))
        except DataprepError as error:
            outcome = Outcome(partition=partition, error=error)
        if outcome.error is not None:
            told = privacy_of(record.declaration, request.store).error(outcome.error, "/".join(record.path))
            context.log.warning(f"{'/'.join(record.path)}: {partition}: {told}")
            return False
        if not outcome.reused:
            context.log.warning(f"{'/'.join(record.path)}: {partition}: its source has changed since; made again")
            report(record, outcome)
    return True
