"""The artifact `<dataset>/rl_jsonl`, a partition a shard: records for reinforcement learning, one JSON line each."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from dataprep_assets.execution.jobs import Outcome, run_tasks
from dataprep_assets.execution.progress import Progress
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest, Partitions, Proofs, RunStep
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Verification
from dataprep_assets.pipelines.blend.blend_snapshot import shard_parts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan, load_blend_plan
from dataprep_assets.pipelines.blend.rl.placeholders import fetch_sources
from dataprep_assets.pipelines.blend.rl.rl_jsonl_proofs import RL_JSONL_PROOFS, prove_rl_jsonl
from dataprep_assets.pipelines.blend.rl.shard import RlShard, build_rl_shard
from dataprep_assets.pipelines.blend.rl.transforms import declared_sources, fingerprint
from dataprep_assets.pipelines.blend.shard_proofs import examine_shards

__all__ = ["RL_JSONL", "build_rl_shards", "rl_jsonl_spec", "rl_shards"]

RL_JSONL = "rl_jsonl"


def rl_jsonl_spec(
    blend: BlendDeclaration, *, partitions: Partitions, inputs: tuple[ArtifactSpec, ...], step: RunStep
) -> ArtifactSpec:
    """The JSON lines of each shard.

    Args:
        blend: The dataset.
        partitions: Its shards.
        inputs: Their snapshots.
        step: The run in which snapshots and shards are made.
    """
    return ArtifactSpec(
        declaration=blend,
        name=RL_JSONL,
        description="Records of each shard, through the declared transforms.",
        kinds={"json"},
        inputs=inputs,
        partitions=partitions,
        step=step,
        pool="cpu",
        recipes=partial(_recipes, blend),
        build=partial(_build, blend),
        proofs=Proofs(
            proofs=RL_JSONL_PROOFS,
            examine=partial(
                examine_shards,
                blend,
                name=RL_JSONL,
                proofs=RL_JSONL_PROOFS,
                shards=rl_shards,
                prove=prove_rl_jsonl,
            ),
        ),
    )


def rl_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[RlShard]:
    """The shards with these partition keys, ready to build, with placeholder sources fetched.

    `blend` is the declaration, `store` holds the artifacts, `plan` is the committed plan. Raises MissingArtifactError
    without a snapshot.
    """
    options = blend.rl_options
    placeholders = fetch_sources(declared_sources(options.transforms), blend.sources)
    made_of = digest_value(fingerprint(options.transforms, blend.sources))
    return [
        RlShard(
            artifact=blend.artifact(RL_JSONL, partition),
            store=store,
            files=shard_parts(blend, store, plan, partition),
            transforms=options.transforms,
            fingerprint=made_of,
            placeholders=placeholders,
            compression=options.compression,
            bad_records=blend.bad_records.policy,
            budget=blend.bad_records.budget,
            source_bytes=plan.find(partition)[1].total_bytes,
            salt=blend.force,
        )
        for partition in partitions
    ]


def _chosen(blend: BlendDeclaration, store: ArtifactStore, partitions: Iterable[str | None]) -> list[RlShard]:
    return rl_shards(blend, store, load_blend_plan(blend, store), [p or "" for p in partitions])


def _recipes(blend: BlendDeclaration, store: ArtifactStore, partitions: Sequence[str | None]) -> Iterator[Recipe]:
    return (shard.recipe for shard in _chosen(blend, store, partitions))


def _build(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    shards = _chosen(blend, request.store, request.partitions)
    return build_rl_shards(shards, workers=request.workers, verification=blend.verify, progress=request.progress)


def build_rl_shards(
    shards: Sequence[RlShard],
    *,
    workers: int,
    verification: Verification = "full",
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """Build the shards that are not current, a task each, on processes of this machine.

    Args:
        shards: What to build.
        workers: Processes.
        verification: How thoroughly a finished shard is read before it is reused.
        progress: Counts and shows; None counts for nobody.

    Yields each shard's outcome as soon as it is verified, built or failed. A failed shard does not stop the others. A
    worker that dies does (WorkerDiedError), and what is finished is kept.
    """
    return run_tasks(shards, partial(build_rl_shard, verification=verification), workers=workers, progress=progress)
