"""The asset of a blend's shards, a partition a shard, of whichever kind its stage makes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import dagster as dg

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Verification
from dataprep_assets.orchestration.dataset import CPU_POOL, SHARDS_PER_RUN, worker_count
from dataprep_assets.orchestration.shards import Describe, OnProgress, nothing_more, report_work
from dataprep_assets.pipelines.blend.blend_plan_asset import BlendAssets
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.corpus.token_bins import ShardResult
from resources import StorageResource

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)

ShardWorks = Callable[[BlendDeclaration, ArtifactStore, BlendPlan, Sequence[str]], Sequence[W]]
"""The works of the given shards of a blend's plan."""


class BuildShards(Protocol[W_contra]):
    """Builds all shards on worker processes: yields each as soon as it is verified, built or failed."""

    def __call__(
        self, shards: Sequence[W_contra], /, *, workers: int, verification: Verification, on_progress: OnProgress
    ) -> Iterator[ShardResult]: ...


def blend_shards_asset(
    dataset: BlendAssets,
    artifact: str,
    works: ShardWorks[W],
    build: BuildShards[W],
    *,
    kinds: Iterable[str],
    description: str,
    certified: bool = True,
    describe: Describe = nothing_more,
) -> dg.AssetsDefinition:
    """The asset `<dataset>/<artifact>`. `certified`: an engine encodes text, and waits for its certificate."""
    blend = dataset.blend

    @dg.asset(
        key=dataset.key(artifact),
        deps=[dataset.key(name) for name in ("blend_snapshot", *(["engine_certificate"] if certified else []))],
        partitions_def=dataset.partitions,
        backfill_policy=dg.BackfillPolicy.multi_run(SHARDS_PER_RUN),
        pool=CPU_POOL,
        **dataset.common(kinds, description),
    )
    def shards(context: dg.AssetExecutionContext, storage: StorageResource) -> Any:
        store = dataset.store(storage)
        chosen = works(blend, store, dataset.plan(store), context.partition_keys)
        workers = worker_count(blend.workers)

        def start(on_progress: OnProgress) -> Iterator[ShardResult]:
            return build(chosen, workers=workers, verification=blend.verify, on_progress=on_progress)

        yield from report_work(context, dataset, artifact, store, start, workers=workers, describe=describe)

    return shards
