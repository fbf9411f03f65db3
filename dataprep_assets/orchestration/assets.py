"""From an artifact's spec to its Dagster asset.

An asset of partitions reports each of them when it is finished, with its own metadata and its own data version. When
some failed, the failed ones are named with their errors, and the step fails without a retry: "re-execute from failure"
then runs exactly those.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import dagster as dg

from dataprep_assets.execution.pool import worker_count
from dataprep_assets.execution.progress import Progress
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.shown import number_of
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, OtherDataset
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.orchestration.metadata import definition_metadata, metadata_of, rendered
from dataprep_assets.orchestration.partitions import definition_of, register_in_order
from dataprep_assets.orchestration.progress import sinks_of
from dataprep_assets.orchestration.versions import partition_event, reported, version_of
from dataprep_assets.planning.cost import SHARDS_A_RUN
from resources import StorageResource, io_manager

__all__ = ["asset_key", "asset_of", "store_of"]

POOLS = {"network": "dataprep_network", "cpu": "dataprep_cpu"}
_FAILURES_SHOWN = 20


def asset_key(spec: ArtifactSpec | OtherDataset) -> dg.AssetKey:
    """The key of an artifact's asset."""
    return dg.AssetKey(list(spec.path))


def store_of(declaration: DatasetDeclaration, storage: StorageResource) -> ArtifactStore:
    """Where a dataset's artifacts are."""
    return storage.artifacts(declaration.storage)


def asset_of(spec: ArtifactSpec, tags: Mapping[str, str] = MappingProxyType({})) -> dg.AssetsDefinition:
    """The asset of an artifact, with these tags beside those of its declaration."""

    @dg.asset(**_arguments(spec, tags))
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


def _arguments(spec: ArtifactSpec, tags: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of `dg.asset`."""
    declaration = spec.declaration
    arguments: dict[str, Any] = {
        "key": asset_key(spec),
        "deps": [asset_key(source) for source in spec.inputs],
        "group_name": declaration.dataset,
        "kinds": set(spec.kinds),
        "owners": list(declaration.owners),
        "description": "\n\n".join(filter(None, (spec.description, declaration.description))),
        "tags": {**tags, **({"dataprep/sensitive": "true"} if declaration.sensitive else {})},
        "metadata": {
            **definition_metadata(spec),
            **({io_manager.STORAGE: declaration.storage} if declaration.storage else {}),
        },
        "code_version": str(spec.version),
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
        return dg.MaterializeResult(metadata=shown, data_version=version_of(outcome.content))
    return dg.MaterializeResult(
        metadata={**metadata_of(spec, store, outcome.receipt, outcome.reused), **shown},
        data_version=version_of(outcome.receipt.content),
    )


def _reported(
    context: dg.AssetExecutionContext, spec: ArtifactSpec, store: ArtifactStore, request: BuildRequest
) -> Iterator[Any]:
    """Build partitions and tell Dagster of each as it is finished; raises dg.Failure when one failed.

    So what is finished when a worker dies, or a person stops the run, is known.
    """
    reused = {}
    failed: dict[str, Exception] = {}
    for outcome in spec.build(request):
        if outcome.error is not None:
            failed[outcome.partition] = outcome.error
            context.log.error(f"{outcome.partition}: {outcome.error}")
            continue
        assert outcome.receipt is not None
        reused[outcome.partition] = outcome.reused
        metadata = metadata_of(spec, store, outcome.receipt, outcome.reused)
        yield partition_event(context, outcome.partition, outcome.receipt.content, metadata)
    if failed:
        raise _failure(spec.noun, failed, len(reused))
    built = sum(not there for there in reused.values())
    context.log.info(f"{number_of(len(reused), spec.noun)}: {built:,} built, {len(reused) - built:,} reused")
    yield reported()


def _failure(noun: str, failed: Mapping[str, Exception], done: int) -> dg.Failure:
    shown = dict(sorted(failed.items())[:_FAILURES_SHOWN])
    return dg.Failure(
        description=f"{len(failed):,} of {number_of(len(failed) + done, noun)} failed; "
        "the others are finished and kept. "
        + " | ".join(f"{partition}: {error}" for partition, error in shown.items()),
        metadata={
            f"failed_{noun}s": dg.MetadataValue.table(
                [dg.TableRecord({noun: partition, "error": str(error)}) for partition, error in shown.items()]
            )
        },
        allow_retries=False,
    )
