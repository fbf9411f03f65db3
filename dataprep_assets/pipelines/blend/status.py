"""What of a blend is not as it should be: the question that a second run asks before it does anything."""

from collections.abc import Callable, Iterator, Sequence

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import sweep
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finalize import ARTIFACT, Work, finished_shards, run_key
from dataprep_assets.pipelines.blend.indexed_bins import indexed_bins_works
from dataprep_assets.pipelines.blend.packed_sft import sft_works
from dataprep_assets.pipelines.blend.plan import BlendPlan, has_blend_plan, load_blend_plan, plan_blend, plan_key
from dataprep_assets.pipelines.blend.preview import preview_key
from dataprep_assets.pipelines.blend.rl.rl_jsonl import rl_works
from dataprep_assets.pipelines.blend.snapshot import snapshot_is_current
from dataprep_assets.pipelines.blend.stream import blend_certificate_key

Works = Callable[[BlendDeclaration, ArtifactStore, BlendPlan, Sequence[str]], Sequence[Work]]


def works_of(blend: BlendDeclaration) -> Works:
    """What makes the works of a stage's shards."""
    makers: dict[str, Works] = {"pretrain": indexed_bins_works, "sft": sft_works, "rl": rl_works}
    return makers[blend.stage]


def stale(blend: BlendDeclaration, store: ArtifactStore) -> Iterator[str]:
    """Names of artifacts that are missing, damaged or out of date, in build order; nothing when all is up to date.

    Reads artifacts as thoroughly as `verify` declares, and local sources whole; what is mirrored is believed to be at
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
    made = works_of(blend)(blend, store, frozen, frozen.partitions)
    unfinished = [w for w in made if store.current(w.artifact, w.key, blend.verify) is None]
    yield from (str(work.artifact) for work in unfinished)
    if unfinished:
        return
    run = blend.artifact(ARTIFACT, frozen.run_hash)
    shards = finished_shards(blend, store, frozen, made)
    if store.current(run, run_key(blend, store, frozen, shards), blend.verify) is None:
        yield str(run)


def sweep_blend(blend: BlendDeclaration, store: ArtifactStore) -> None:
    """Remove what killed runs left beside the artifacts of a blend of which nothing is stale."""
    plan = load_blend_plan(blend, store)
    made = works_of(blend)(blend, store, plan, plan.partitions)
    others = [blend.artifact(name) for name in ("blend_plan", "blend_preview", "engine_certificate")]
    snapshots = [blend.artifact("blend_snapshot", partition) for partition in plan.partitions]
    run = blend.artifact(ARTIFACT, plan.run_hash)
    sweep(store.directory(artifact) for artifact in [*others, *snapshots, *(w.artifact for w in made), run])
