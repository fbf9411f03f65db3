"""From an artifact's spec to its Dagster asset.

An asset of partitions reports each of them. When every one is there, one materialization a partition with its own
metadata. When some failed, the finished ones are reported as materialized all the same, the failed ones are named with
their errors, and the step fails without a retry: "re-execute from failure" then runs exactly the failed ones.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from dataprep_assets.errors import DataprepError, MissingArtifactError
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.pool import worker_count
from dataprep_assets.execution.progress import Progress
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.orchestration.anew import built
from dataprep_assets.orchestration.keys import asset_key, job_name, store_of
from dataprep_assets.orchestration.metadata import metadata_of, rendered
from dataprep_assets.orchestration.partitions import definition_of, register_in_order
from dataprep_assets.orchestration.plans import made_of, plan_metadata
from dataprep_assets.orchestration.progress import sinks_of
from dataprep_assets.planning.cost import SHARDS_A_RUN
from resources import StorageResource, io_manager

__all__ = ["asset_key", "asset_of", "store_of"]

POOLS = {"network": "dataprep_network", "cpu": "dataprep_cpu"}
_FAILURES_SHOWN = 20


def asset_of(spec: ArtifactSpec, freshness: dg.FreshnessPolicy | None = None) -> dg.AssetsDefinition:
    """The asset of an artifact, with a freshness policy where one is declared."""

    @dg.asset(**_arguments(spec), freshness_policy=freshness)
    def artifact(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store = store_of(spec.declaration, storage)
        workers = worker_count(spec.declaration.workers)
        progress = Progress(workers=workers, sinks=sinks_of(context))
        request = BuildRequest(
            store=store,
            partitions=context.partition_keys if spec.partitions is not None else (),
            workers=workers,
            progress=progress,
            warn=context.log.warning,
        )
        try:
            if spec.partitions is None:
                yield _single(context, spec, store, request)
            else:
                yield from _reported(context, spec, store, request)
        except DataprepError as error:  # a refusal says what to do: no stack, and no retry that meets the same
            raise dg.Failure(_told(spec, error), allow_retries=False) from None
        finally:
            progress.close()

    return artifact


def _arguments(spec: ArtifactSpec) -> dict[str, Any]:
    """The arguments of `dg.asset`."""
    declaration = spec.declaration
    arguments: dict[str, Any] = {
        "key": asset_key(spec),
        "deps": [asset_key(source) for source in spec.inputs],
        "group_name": declaration.dataset,
        "kinds": set(spec.kinds),
        "owners": list(declaration.owners),
        "description": "\n\n".join(filter(None, (spec.description, declaration.description))),
        "tags": {"dataprep/sensitive": "true"} if declaration.sensitive else {},
        "metadata": {
            **({io_manager.STORAGE: declaration.storage} if declaration.storage else {}),
            **plan_metadata(spec),
        },
        "io_manager_key": io_manager.KEY,
    }
    if spec.pool is not None:
        arguments["pool"] = POOLS[spec.pool]
    if spec.partitions is not None:
        arguments["partitions_def"] = definition_of(spec.partitions)
        arguments["backfill_policy"] = dg.BackfillPolicy.multi_run(SHARDS_A_RUN)
    return arguments


def _single(
    context: dg.AssetExecutionContext, spec: ArtifactSpec, store: ArtifactStore, request: BuildRequest
) -> dg.MaterializeResult[Any]:
    """Build an unpartitioned artifact; its data version is its content, so that "out of date" is true."""
    (outcome,) = spec.build(request)
    if outcome.error is not None:
        raise outcome.error
    for partitions in spec.plans:
        register_in_order(context.instance, partitions.dynamic or "", partitions.keys(store))
    shown = {name: rendered(value) for name, value in {**outcome.metadata, **made_of(spec)}.items()}
    if outcome.receipt is None:
        return dg.MaterializeResult(metadata=shown, data_version=dg.DataVersion(outcome.content[:32]))
    return dg.MaterializeResult(
        metadata={**metadata_of(spec, store, outcome.receipt, outcome.reused), **shown},
        data_version=dg.DataVersion(outcome.receipt.content[:32]),
    )


def _reported(
    context: dg.AssetExecutionContext, spec: ArtifactSpec, store: ArtifactStore, request: BuildRequest
) -> Iterator[Any]:
    """Build partitions and yield what Dagster is told; raises dg.Failure when one failed.

    The data version of a run of many is the digest of all their contents: Dagster keeps one a run.
    """
    done: dict[str, Outcome] = {}
    failed: dict[str, Exception] = {}
    try:
        for outcome in built(context, spec, request):
            if outcome.error is not None:
                failed[outcome.partition] = outcome.error
                context.log.error(f"{outcome.partition}: {outcome.error}")
            else:
                done[outcome.partition] = outcome
    except BaseException:  # a dead worker or an interrupt: what is committed is reported before it goes on
        yield from _materializations(context, spec, store, done)
        raise
    if failed:
        yield from _materializations(context, spec, store, done)
        raise _failure(spec, failed, len(done))
    reused = sum(outcome.reused for outcome in done.values())
    context.log.info(f"{len(done)} {spec.noun}s: {len(done) - reused} built, {reused} up to date")
    contents = {}
    for partition in context.partition_keys:
        outcome = done[partition]
        assert outcome.receipt is not None
        contents[partition] = outcome.receipt.content
        context.add_asset_metadata(
            metadata=metadata_of(spec, store, outcome.receipt, outcome.reused), partition_key=partition
        )
    version = next(iter(contents.values())) if len(contents) == 1 else digest_value(contents)
    yield dg.MaterializeResult(data_version=dg.DataVersion(version[:32]))


def _told(spec: ArtifactSpec, error: Exception) -> str:
    """What a person reads of an error: where something is missing, what makes it as well."""
    if isinstance(error, MissingArtifactError):
        return f"{error}. The job {job_name(spec.declaration.dataset)} makes all that is missing, in order"
    return str(error)


def _failure(spec: ArtifactSpec, failed: Mapping[str, Exception], done: int) -> dg.Failure:
    noun = spec.noun
    shown = {partition: _told(spec, error) for partition, error in sorted(failed.items())[:_FAILURES_SHOWN]}
    return dg.Failure(
        description=f"{len(failed)} of {len(failed) + done} {noun}s failed; the others are finished and kept. "
        + " | ".join(f"{partition}: {error}" for partition, error in shown.items()),
        metadata={
            f"failed_{noun}s": dg.MetadataValue.table(
                [dg.TableRecord({noun: partition, "error": error}) for partition, error in shown.items()]
            )
        },
        allow_retries=False,
    )


def _materializations(
    context: dg.AssetExecutionContext, spec: ArtifactSpec, store: ArtifactStore, done: Mapping[str, Outcome]
) -> Iterator[dg.AssetMaterialization]:
    for partition, outcome in done.items():
        if outcome.receipt is not None:
            yield dg.AssetMaterialization(
                asset_key=context.asset_key,
                partition=partition,
                metadata=metadata_of(spec, store, outcome.receipt, outcome.reused),
                tags={"dagster/data_version": outcome.receipt.content[:32]},
            )
