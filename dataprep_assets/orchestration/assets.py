"""Turns an artifact's spec into its Dagster asset.

A partitioned asset reports each partition when it is finished, with its own metadata and data version. If some failed,
they are named with their errors, and the step fails without a retry: "re-execute from failure" then runs exactly those.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import dagster as dg

from dataprep_assets.errors import BadRecordError, CorruptSourceError, DataprepError, MissingArtifactError
from dataprep_assets.execution.pool import worker_count
from dataprep_assets.execution.progress import Progress
from dataprep_assets.graph.shown import number_of
from dataprep_assets.graph.small_cells import cells_of
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.disk_room import refused
from dataprep_assets.orchestration.anew import built
from dataprep_assets.orchestration.keys import DAMAGED_SOURCES, asset_key, job_name
from dataprep_assets.orchestration.metadata import definition_metadata, metadata_of, rendered_entries
from dataprep_assets.orchestration.partitions import definition_of, register_in_order
from dataprep_assets.orchestration.plans import made_of, plan_metadata
from dataprep_assets.orchestration.pools import POOLS
from dataprep_assets.orchestration.progress import sinks_of
from dataprep_assets.orchestration.versions import partition_event, reported, version_of
from dataprep_assets.planning.cost import SHARDS_A_RUN
from dataprep_assets.resources import StorageResource, io_manager
from dataprep_assets.stores.private import privately

__all__ = ["asset_of"]

_FAILURES_SHOWN = 20


def asset_of(
    spec: ArtifactSpec,
    tags: Mapping[str, str] = MappingProxyType({}),
    freshness: dg.FreshnessPolicy | None = None,
) -> dg.AssetsDefinition:
    """The asset of an artifact, with `tags` in addition to those of its declaration, and a freshness policy if any."""

    @dg.asset(**_arguments(spec, tags), freshness_policy=freshness)
    def artifact(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store = spec.declaration.store(storage)
        workers = worker_count(spec.declaration.workers)
        cells = cells_of(spec.declaration)
        progress = Progress(workers=workers, sinks=sinks_of(context), shown=cells.count)
        request = BuildRequest(
            store=store,
            partitions=context.partition_keys if spec.partitions is not None else (),
            workers=workers,
            progress=progress,
            warn=lambda sentence: context.log.warning(cells.text(sentence)),
        )
        try:
            reported_of = _single if spec.partitions is None else _reported
            yield from privately(reported_of(context, spec, store, request), spec.declaration.sensitive)
        except DataprepError as error:  # a refusal says what to do: no stack, and no retry, which would meet the same
            raise dg.Failure(_told(spec, error), allow_retries=False) from None
        except OSError as error:
            if spec.declaration.sensitive:
                error.filename = None  # it may be named after a patient
            raise dg.Failure(str(refused(error, store.root)), allow_retries=False) from None
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
            **({io_manager.PRIVATE: True} if declaration.sensitive else {}),
            **plan_metadata(spec),
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
) -> Iterator[Any]:
    """Build an unpartitioned artifact. Its data version is its content, so that Dagster's "out of date" is true."""
    (outcome,) = spec.build(request)
    if outcome.error is not None:
        raise outcome.error
    for partitions in spec.plans:
        register_in_order(context.instance, partitions.dynamic or "", partitions.keys(store))
    shown = rendered_entries(spec, {**outcome.metadata, **made_of(spec)})
    if outcome.receipt is None:
        yield dg.MaterializeResult(metadata=shown, data_version=version_of(outcome.content))
        return
    yield dg.MaterializeResult(
        metadata={**metadata_of(spec, store, outcome.receipt, outcome.reused), **shown},
        data_version=version_of(outcome.receipt.content),
    )


def _reported(
    context: dg.AssetExecutionContext, spec: ArtifactSpec, store: ArtifactStore, request: BuildRequest
) -> Iterator[Any]:
    """Build partitions and report each to Dagster as it is finished; raises dg.Failure if one failed.

    So the finished ones are known even if a worker dies or somebody stops the run.
    """
    reused = {}
    failed: dict[str, Exception] = {}
    for outcome in built(context, spec, request):
        if outcome.error is not None:
            failed[outcome.partition] = outcome.error
            context.log.error(f"{outcome.partition}: {_told(spec, outcome.error)}")
            continue
        assert outcome.receipt is not None
        reused[outcome.partition] = outcome.reused
        metadata = metadata_of(spec, store, outcome.receipt, outcome.reused)
        yield partition_event(context, outcome.partition, outcome.receipt.content, metadata)
    if failed:
        raise _failure(spec, failed, len(reused))
    new = sum(not there for there in reused.values())
    context.log.info(f"{number_of(len(reused), spec.noun)}: {new:,} built, {len(reused) - new:,} reused")
    yield reported()


def _told(spec: ArtifactSpec, error: Exception) -> str:
    """The text of an error for the UI: for a missing artifact also what makes it; without small counts."""
    if isinstance(error, MissingArtifactError):
        return f"{error}. The job {job_name(spec.declaration.dataset)} makes all that is missing, in order"
    return cells_of(spec.declaration).text(str(error))


def _failure(spec: ArtifactSpec, failed: Mapping[str, Exception], done: int) -> dg.Failure:
    noun = spec.noun
    of_sources = all(isinstance(error, CorruptSourceError | BadRecordError) for error in failed.values())
    shown = {partition: _told(spec, error) for partition, error in sorted(failed.items())[:_FAILURES_SHOWN]}
    if len(failed) > _FAILURES_SHOWN:
        shown[f"and {len(failed) - _FAILURES_SHOWN:,} more"] = f"the log names every {noun}"
    return dg.Failure(
        description=f"{len(failed):,} of {number_of(len(failed) + done, noun)} failed; "
        "the others are finished and kept. "
        + " | ".join(f"{partition}: {error}" for partition, error in shown.items()),
        metadata={
            f"failed_{noun}s": dg.MetadataValue.table(
                [dg.TableRecord({noun: partition, "error": error}) for partition, error in shown.items()]
            ),
            **({DAMAGED_SOURCES: len(failed)} if of_sources else {}),
        },
        allow_retries=False,
    )
