"""One result of each proof for all shards of a blend, whichever of them a run is about."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from dataprep_assets.execution.pool import worker_count
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.spec import Proof
from dataprep_assets.graph.verdicts import Verdicts, of_all_partitions, prove_all
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan, load_blend_plan

__all__ = ["examine_shards"]


class _Shard(Protocol):
    @property
    def artifact(self) -> Artifact: ...


S = TypeVar("S", bound=_Shard)


def examine_shards(
    blend: BlendDeclaration,
    store: ArtifactStore,
    examined: Sequence[str],
    *,
    name: str,
    proofs: Sequence[Proof],
    shards: Callable[[BlendDeclaration, ArtifactStore, BlendPlan, Sequence[str]], Sequence[S]],
    prove: Callable[[S], dict[str, Finding]],
) -> Iterator[tuple[str, Finding]]:
    """Prove the shards of a run, and yield the finding of each proof on all shards.

    Args:
        blend: The dataset.
        store: Where its artifacts are.
        examined: The partitions of the run.
        name: The shards' artifact.
        proofs: Those that `prove` makes findings of.
        shards: Makes the shards with the given partition keys.
        prove: Every proof of one shard; picklable.
    """
    plan = load_blend_plan(blend, store)

    def prove_chosen(partitions: Sequence[str]) -> Verdicts:
        return prove_all(shards(blend, store, plan, partitions), prove, worker_count(blend.workers))

    yield from of_all_partitions(
        store,
        proofs,
        plan.partitions,
        examined,
        artifact=lambda partition: blend.artifact(name, partition),
        prove=prove_chosen,
    )
