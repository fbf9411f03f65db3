"""Which artifacts of a blend are stale: the question that a second run asks before it does anything."""

from collections.abc import Callable, Iterator, Sequence

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import sweep
from dataprep_assets.pipelines.blend.blend_plan import has_blend_plan, load_blend_plan, plan_blend, plan_key
from dataprep_assets.pipelines.blend.blend_preview import preview_key
from dataprep_assets.pipelines.blend.blend_snapshot import snapshot_is_current
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import ShardToBuild, finished_shards
from dataprep_assets.pipelines.blend.indexed_bins import indexed_bins_shards
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.blend.rl.rl_jsonl import rl_shards
from dataprep_assets.pipelines.blend.runs import RUNS, run_key
from dataprep_assets.pipelines.blend.sft.packed_sft import sft_shards
from dataprep_assets.pipelines.blend.stream import blend_certificate_key

ShardsOf = Callable[[BlendDeclaration, ArtifactStore, BlendPlan, Sequence[str]], Sequence[ShardToBuild]]


def shards_of(blend: BlendDeclaration) -> ShardsOf:
    """The function that makes the shards of a blend's stage from partition keys."""
    makers: dict[str, ShardsOf] = {"pretrain": indexed_bins_shards, "sft": sft_shards, "rl": rl_shards}
    return makers[blend.stage]


def stale(blend: BlendDeclaration, store: ArtifactStore) -> Iterator[str]:
    """Names of artifacts that are missing, damaged or out of date, in build order; nothing when all is up to date.

    Reads artifacts as thoroughly as `verify` declares, and local sources whole; mirrored files are taken to be at
    the commit that the plan froze. What is downstream of a stale artifact is not examined.
    """
    if not has_blend_plan(blend, store):
        yield str(blend.artifact("blend_plan"))
        return
    frozen = load_blend_plan(blend, store)
    if plan_key(plan_blend(blend, frozen)) != plan_key(frozen):
        yield str(blend.artifact("blend_plan"))
        return
    if store.current(blend.artifact("blend_preview"), preview_key(blend, frozen)) is None:
        yield str(blend.artifact("blend_preview"))
    behind = [p for p in frozen.partitions if not snapshot_is_current(blend, store, frozen, p)]
    yield from (str(blend.artifact("blend_snapshot", partition)) for partition in behind)
    if behind:
        return
    certificate = blend.artifact("engine_certificate")
    if blend.stage != "rl" and store.current(certificate, blend_certificate_key(blend, frozen)) is None:
        yield str(certificate)
        return
    made = shards_of(blend)(blend, store, frozen, frozen.partitions)
    unfinished = [s for s in made if store.current(s.artifact, s.key, blend.verify) is None]
    yield from (str(shard.artifact) for shard in unfinished)
    if unfinished:
        return
    run = blend.artifact(RUNS, frozen.run_hash)
    shards = finished_shards(blend, store, frozen, made)
    if store.current(run, run_key(blend, store, frozen, shards), blend.verify) is None:
        yield str(run)


def sweep_blend(blend: BlendDeclaration, store: ArtifactStore) -> None:
    """Remove what killed runs left beside the artifacts of a blend of which nothing is stale."""
    plan = load_blend_plan(blend, store)
    made = shards_of(blend)(blend, store, plan, plan.partitions)
    others = [blend.artifact(name) for name in ("blend_plan", "blend_preview", "engine_certificate")]
    snapshots = [blend.artifact("blend_snapshot", partition) for partition in plan.partitions]
    run = blend.artifact(RUNS, plan.run_hash)
    sweep(store.directory(artifact) for artifact in [*others, *snapshots, *(shard.artifact for shard in made), run])
