"""The artifact `<dataset>/indexed_bins`, a partition a shard: Megatron's bin and idx of a pretraining blend.

The shard is the canonical token stream, built as the corpus pipeline builds it (`corpus/token_bins.py`): its
`tokens.bin` is Megatron's `.bin`, and `tokens.idx` is derived from the same document ends. `<directory>/tokens` is the
prefix that Megatron opens.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, Partitions, Proofs, RunStep
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.blend_snapshot import shard_parts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.indexed_bins_proofs import INDEXED_BINS_PROOFS, prove_indexed_bins
from dataprep_assets.pipelines.blend.plan import BlendPlan, load_blend_plan
from dataprep_assets.pipelines.blend.shard_proofs import examine_shards
from dataprep_assets.pipelines.blend.stream import blend_stream
from dataprep_assets.pipelines.corpus.engine_certificate import load_certificate
from dataprep_assets.pipelines.corpus.token_bins import build_token_bins, index_metadata
from dataprep_assets.pipelines.corpus.token_shard import TokenShard

__all__ = ["INDEXED_BINS", "indexed_bins_shards", "indexed_bins_spec"]

INDEXED_BINS = "indexed_bins"


def indexed_bins_spec(
    blend: BlendDeclaration, *, partitions: Partitions, inputs: tuple[ArtifactSpec, ...], step: RunStep
) -> ArtifactSpec:
    """The bin and idx of each shard.

    Args:
        blend: The dataset.
        partitions: Its shards.
        inputs: Their snapshots, and the certificate of the engine.
        step: The run in which snapshots and shards are made.
    """
    return ArtifactSpec(
        declaration=blend,
        name=INDEXED_BINS,
        description="Megatron's bin and idx of each shard: tokenized once.",
        kinds={"numpy", "huggingface"},
        inputs=inputs,
        partitions=partitions,
        step=step,
        pool="cpu",
        recipes=partial(_recipes, blend),
        build=partial(_build, blend),
        metadata=index_metadata,
        proofs=Proofs(
            proofs=INDEXED_BINS_PROOFS,
            examine=partial(
                examine_shards,
                blend,
                name=INDEXED_BINS,
                proofs=INDEXED_BINS_PROOFS,
                shards=indexed_bins_shards,
                prove=prove_indexed_bins,
            ),
        ),
    )


def indexed_bins_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[TokenShard]:
    """The shards with these partition keys, ready to build.

    `blend` is the declaration, `store` holds the artifacts, `plan` is the committed plan. Raises MissingArtifactError
    when a snapshot or the certificate is missing.
    """
    certificate = load_certificate(blend, store)
    shards = []
    for partition in partitions:
        unit, planned = plan.find(partition)
        shards.append(
            TokenShard(
                artifact=blend.artifact(INDEXED_BINS, partition),
                store=store,
                plan=blend_stream(blend, certificate, unit.dataset.text_field),
                budget=blend.bad_records.budget,
                files=shard_parts(blend, store, plan, partition),
                sizes=(planned.total_bytes,),
                megatron=True,
                salt=blend.force,
            )
        )
    return shards


def _chosen(blend: BlendDeclaration, store: ArtifactStore, partitions: Iterable[str | None]) -> list[TokenShard]:
    return indexed_bins_shards(blend, store, load_blend_plan(blend, store), [p or "" for p in partitions])


def _recipes(blend: BlendDeclaration, store: ArtifactStore, partitions: Sequence[str | None]) -> Iterator[Recipe]:
    return (shard.recipe for shard in _chosen(blend, store, partitions))


def _build(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    shards = _chosen(blend, request.store, request.partitions)
    return build_token_bins(shards, workers=request.workers, verification=blend.verify, progress=request.progress)
