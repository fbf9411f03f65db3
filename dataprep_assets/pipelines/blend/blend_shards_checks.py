"""The checks of a blend's shards, of whichever kind its stage makes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import dagster as dg

from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.verdicts import Verdicts, Work, prove_all
from dataprep_assets.orchestration.checks import checks_of, of_all_partitions
from dataprep_assets.orchestration.dataset import worker_count
from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.blend_shards_asset import ShardWorks
from resources import StorageResource

W = TypeVar("W", bound=Work)


def shard_checks(
    dataset: BlendAssets,
    artifact: str,
    descriptions: Mapping[str, str],
    works: ShardWorks[W],
    prove: Callable[[W], dict[str, Finding]],
) -> dg.AssetChecksDefinition:
    """The checks of a shard artifact: `works` are those of the given shards, and `prove` runs every proof of one."""
    blend = dataset.blend

    def findings(context: dg.AssetCheckExecutionContext, storage: StorageResource) -> Iterator[tuple[str, Finding]]:
        store = dataset.store(storage)
        plan = dataset.plan(store)

        def prove_shards(partitions: Sequence[str]) -> Verdicts:
            return prove_all(works(blend, store, plan, partitions), prove, worker_count(blend.workers))

        yield from of_all_partitions(
            context.run,
            store,
            plan.partitions,
            descriptions,
            artifact=lambda partition: blend.artifact(artifact, partition),
            prove=prove_shards,
        )

    return checks_of(dataset.key(artifact), descriptions, findings)
