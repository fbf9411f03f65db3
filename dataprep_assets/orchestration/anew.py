"""Lets a re-execution repair: a step that failed on its source is built once more, after the records of that source.

"Re-execute from failure" runs only the failed steps. If a source file was repaired in the meantime, the snapshot of the
previous run, which was green, still has the digest of the damaged file, and everything made of it would be refused. So
a step whose records (`ArtifactSpec.records_source`) were made by another run makes them again when it fails on its
source. Within one run it does not: a file that changes between its snapshot and its reading is refused as damaged.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import dagster as dg

from dataprep_assets.errors import DataprepError, SourceError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest
from dataprep_assets.orchestration.checks import check_evaluation
from dataprep_assets.orchestration.keys import asset_key
from dataprep_assets.orchestration.metadata import metadata_of
from dataprep_assets.orchestration.plans import made_of
from dataprep_assets.orchestration.versions import version_of

__all__ = ["built"]


def built(context: dg.AssetExecutionContext, spec: ArtifactSpec, request: BuildRequest) -> Iterator[Outcome]:
    """Yield the outcomes of building partitions; those that fail on their source get a second try if their records are
    of another run and may be out of date."""
    records = [source for source in _records(spec) if not _made_by_this_run(context, source)]
    failed: dict[str, Outcome] = {}
    for outcome in spec.build(request):
        if records and isinstance(outcome.error, SourceError):
            failed[outcome.partition] = outcome
        else:
            yield outcome
    renewed = [partition for partition in failed if _renewed(context, records, request, partition)] if failed else []
    yield from (outcome for partition, outcome in failed.items() if partition not in renewed)
    if renewed:
        yield from spec.build(replace(request, partitions=renewed))


def _records(spec: ArtifactSpec) -> list[ArtifactSpec]:
    """The artifacts from which a step knows its source, inputs first: the manifest and the snapshot of its files."""
    direct = [source for source in spec.inputs if isinstance(source, ArtifactSpec) and source.records_source]
    return [record for source in direct for record in (*_records(source), source)]


def _made_by_this_run(context: dg.AssetExecutionContext, record: ArtifactSpec) -> bool:
    selection, steps = context.run.asset_selection, context.run.step_keys_to_execute
    selected = selection is None or asset_key(record) in selection
    return selected and (steps is None or "__".join(record.path) in steps)


def _renewed(
    context: dg.AssetExecutionContext, records: Sequence[ArtifactSpec], request: BuildRequest, partition: str
) -> bool:
    """Make the records of a partition again; False if that fails too."""
    for record in records:
        partitions = () if record.partitions is None else (partition,)
        try:
            (outcome,) = record.build(replace(request, partitions=partitions))
        except DataprepError as error:
            outcome = Outcome(partition=partition, error=error)
        if outcome.error is not None:
            context.log.warning(f"{'/'.join(record.path)}: {partition}: {outcome.error}")
            return False
        if not outcome.reused:
            context.log.warning(f"{'/'.join(record.path)}: {partition}: its source has changed since; made again")
            _report(context, record, request, outcome)
    return True


def _report(context: dg.AssetExecutionContext, record: ArtifactSpec, request: BuildRequest, outcome: Outcome) -> None:
    """Report a record that was made to Dagster, with its checks."""
    key, receipt = asset_key(record), outcome.receipt
    assert receipt is not None
    context.log_event(
        dg.AssetMaterialization(
            asset_key=key,
            partition=receipt.partition if record.partitions is not None else None,
            metadata={**metadata_of(record, request.store, receipt, outcome.reused), **made_of(record)},
            tags={"dagster/data_version": version_of(receipt.content).value},
        )
    )
    if record.proofs is None:
        return
    for name, finding in record.proofs.examine(request.store, () if record.partitions is None else [outcome.partition]):
        context.log_event(check_evaluation(record, name, finding))
