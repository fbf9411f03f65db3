"""From an artifact's spec to its Dagster asset.

An asset of partitions reports each of them. When every one is there, one materialization a partition with its own
metadata. When some failed, the finished ones are reported as materialized all the same, the failed ones are named with
their errors, and the step fails without a retry: "re-execute from failure" then runs exactly the failed ones.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.execution.pool import worker_count
from dataprep_assets.execution.progress import Progress
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, OtherDataset
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.orchestration.metadata import receipt_metadata, rendered
from dataprep_assets.orchestration.partitions import definition_of, register_in_order
from dataprep_assets.orchestration.pools import POOLS
from dataprep_assets.orchestration.progress import sinks_of
from dataprep_assets.planning.cost import SHARDS_A_RUN
from resources import StorageResource, io_manager

__all__ = ["asset_key", "asset_of", "store_of"]

_FAILURES_SHOWN = 20


def asset_key(spec: ArtifactSpec | OtherDataset) -> dg.AssetKey:
    """The key of an artifact's asset: `<dataset>/[<split>/]<name>`."""
    return dg.AssetKey([spec.dataset, spec.name] if isinstance(spec, OtherDataset) else list(spec.path))


def store_of(declaration: DatasetDeclaration, storage: StorageResource) -> ArtifactStore:
    """Where a dataset's artifacts are."""
    return storage.artifacts(declaration.storage)


def asset_of(spec: ArtifactSpec) -> dg.AssetsDefinition:
    """The asset of an artifact."""

    @dg.asset(**_arguments(spec))
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
        "metadata": {io_manager.STORAGE: declaration.storage} if declaration.storage else {},
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
    shown = {name: rendered(value) for name, value in outcome.metadata.items()}
    if outcome.receipt is None:
        return dg.MaterializeResult(metadata=shown, data_version=dg.DataVersion(outcome.content[:32]))
    return dg.MaterializeResult(
        metadata={**_metadata(spec, store, outcome.receipt, outcome.reused), **shown},
        data_version=dg.DataVersion(outcome.receipt.content[:32]),
    )


def _metadata(spec: ArtifactSpec, store: ArtifactStore, receipt: Receipt, reused: bool) -> Mapping[str, Any]:
    location = store.location(spec.located(store, receipt.partition))
    own = {name: rendered(value) for name, value in spec.metadata(store, receipt).items()}
    return {**receipt_metadata(receipt, location, reused), **own}


def _reported(
    context: dg.AssetExecutionContext, spec: ArtifactSpec, store: ArtifactStore, request: BuildRequest
) -> Iterator[Any]:
    """Build partitions and yield what Dagster is told; raises dg.Failure when one failed.

    The data version of a run of many is the digest of all their contents: Dagster keeps one a run.
    """
    done: dict[str, Outcome] = {}
    failed: dict[str, Exception] = {}
    try:
        for outcome in spec.build(request):
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
        raise _failure(spec.noun, failed, len(done))
    reused = sum(outcome.reused for outcome in done.values())
    context.log.info(f"{len(done)} {spec.noun}s: {len(done) - reused} built, {reused} up to date")
    contents = {}
    for partition in context.partition_keys:
        outcome = done[partition]
        assert outcome.receipt is not None
        contents[partition] = outcome.receipt.content
        context.add_asset_metadata(
            metadata=_metadata(spec, store, outcome.receipt, outcome.reused), partition_key=partition
        )
    version = next(iter(contents.values())) if len(contents) == 1 else digest_value(contents)
    yield dg.MaterializeResult(data_version=dg.DataVersion(version[:32]))


def _failure(noun: str, failed: Mapping[str, Exception], done: int) -> dg.Failure:
    shown = dict(sorted(failed.items())[:_FAILURES_SHOWN])
    return dg.Failure(
        description=f"{len(failed)} of {len(failed) + done} {noun}s failed; the others are finished and kept. "
        + " | ".join(f"{partition}: {error}" for partition, error in shown.items()),
        metadata={
            f"failed_{noun}s": dg.MetadataValue.table(
                [dg.TableRecord({noun: partition, "error": str(error)}) for partition, error in shown.items()]
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
                metadata=_metadata(spec, store, outcome.receipt, outcome.reused),
                tags={"dagster/data_version": outcome.receipt.content[:32]},
            )
