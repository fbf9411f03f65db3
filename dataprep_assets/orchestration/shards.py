"""How an asset of many shards reports what became of each.

When every shard is there, one materialization a partition with its own metadata. When some failed, the finished ones
are reported as materialized all the same, the failed ones are named with their errors, and the step fails without a
retry: "re-execute from failure" then runs exactly the failed ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import dagster as dg

from dataprep_assets.errors import DataprepError
from dataprep_assets.execution.processes import Meter
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.orchestration.dataset import DatasetAssets, RunProgress, receipt_metadata
from dataprep_assets.pipelines.corpus.token_bins import ShardResult

Describe = Callable[[str, Receipt], Mapping[str, Any]]
"""From a partition and its receipt to the metadata that only this kind of artifact has."""


OnProgress = Callable[[Meter, int], None]
"""Gets the meter of a run of work, and the number of its workers."""


def nothing_more(partition: str, receipt: Receipt) -> Mapping[str, Any]:
    """No metadata beyond what every artifact has."""
    return {}


def report_shards(
    context: dg.AssetExecutionContext,
    dataset: DatasetAssets,
    artifact: str,
    store: ArtifactStore,
    outcomes: Iterable[ShardResult],
    *,
    describe: Describe = nothing_more,
    noun: str = "shard",
) -> Iterator[Any]:
    """Consume the outcomes and yield what Dagster is told; raises dg.Failure when a shard failed.

    `describe` adds metadata of the artifact's own to a partition's. The data version of a run of many shards is the
    digest of all their contents: Dagster keeps one a run.
    """
    done: dict[str, ShardResult] = {}
    failed: dict[str, Exception] = {}
    try:
        for outcome in outcomes:
            if outcome.error is not None:
                failed[outcome.partition] = outcome.error
                context.log.error(f"{outcome.partition}: {outcome.error}")
            else:
                done[outcome.partition] = outcome
    except BaseException:  # a dead worker or an interrupt: what is committed is reported before it goes on
        yield from _materializations(context, dataset, artifact, store, done, describe)
        raise
    if failed:
        yield from _materializations(context, dataset, artifact, store, done, describe)
        shown = dict(sorted(failed.items())[:20])
        raise dg.Failure(
            description=f"{len(failed)} of {len(failed) + len(done)} {noun}s failed; the others are finished and kept. "
            + " | ".join(f"{partition}: {error}" for partition, error in shown.items()),
            metadata={
                f"failed_{noun}s": dg.MetadataValue.table(
                    [dg.TableRecord({noun: partition, "error": str(error)}) for partition, error in shown.items()]
                )
            },
            allow_retries=False,
        )
    reused = sum(o.reused for o in done.values())
    context.log.info(f"{len(done)} {noun}s: {len(done) - reused} built, {reused} up to date")
    contents = {}
    for partition in context.partition_keys:
        outcome = done[partition]
        assert outcome.receipt is not None
        contents[partition] = outcome.receipt.content
        place = store.location(dataset.declaration.artifact(artifact, partition))
        context.add_asset_metadata(
            metadata={
                **receipt_metadata(outcome.receipt, place, outcome.reused),
                **describe(partition, outcome.receipt),
            },
            partition_key=partition,
        )
    version = next(iter(contents.values())) if len(contents) == 1 else digest_value(contents)
    yield dg.MaterializeResult(data_version=dg.DataVersion(version[:32]))


def report_work(
    context: dg.AssetExecutionContext,
    dataset: DatasetAssets,
    artifact: str,
    store: ArtifactStore,
    start: Callable[[OnProgress], Iterable[ShardResult]],
    *,
    workers: int,
    describe: Describe = nothing_more,
    noun: str = "shard",
) -> Iterator[Any]:
    """`report_shards` of work on worker processes, which `start` begins, with its progress shown."""
    show = RunProgress(context, "/".join(context.asset_key.path))
    last: list[Meter] = []

    def on_progress(meter: Meter, count: int) -> None:
        last[:] = [meter]
        show(meter, count)

    try:
        yield from report_shards(context, dataset, artifact, store, start(on_progress), describe=describe, noun=noun)
    finally:
        show.close(last[0] if last else None, workers)


def report_fetches(
    context: dg.AssetExecutionContext,
    dataset: DatasetAssets,
    artifact: str,
    store: ArtifactStore,
    source_bytes: int,
    fetch: Callable[[str, Callable[[int], None]], tuple[Receipt, bool]],
) -> Iterator[Any]:
    """`report_shards` of fetching the run's partitions one after another, with its progress shown.

    `fetch` has one partition, and calls what it is given with the bytes that have come.
    """

    def start(on_progress: OnProgress) -> Iterator[ShardResult]:
        meter = Meter(source_bytes)

        def fetched(count: int) -> None:
            meter.add({"source_bytes": count})
            on_progress(meter, 1)

        for partition in context.partition_keys:
            try:
                receipt, reused = fetch(partition, fetched)
                yield ShardResult(partition=partition, receipt=receipt, reused=reused)
            except DataprepError as error:
                yield ShardResult(partition=partition, error=error)

    return report_work(context, dataset, artifact, store, start, workers=1)


def _materializations(
    context: dg.AssetExecutionContext,
    dataset: DatasetAssets,
    artifact: str,
    store: ArtifactStore,
    done: dict[str, ShardResult],
    describe: Describe,
) -> Iterator[dg.AssetMaterialization]:
    for partition, outcome in done.items():
        if outcome.receipt is not None:
            place = store.location(dataset.declaration.artifact(artifact, partition))
            yield dg.AssetMaterialization(
                asset_key=context.asset_key,
                partition=partition,
                metadata={
                    **receipt_metadata(outcome.receipt, place, outcome.reused),
                    **describe(partition, outcome.receipt),
                },
                tags={"dagster/data_version": outcome.receipt.content[:32]},
            )
