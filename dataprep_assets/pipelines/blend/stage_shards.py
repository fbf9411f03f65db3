"""The shards of a blend: their kind for each stage, and the spec of the artifact that contains them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions
from dataprep_assets.engine.checks.check import count_documents
from dataprep_assets.engine.checks.verdicts import CheckWorkers, PartitionChecks
from dataprep_assets.execution.jobs import Outcome, run_tasks
from dataprep_assets.integrity.artifacts import ArtifactStore, find_missing_subjects
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.pipelines.blend.blend_shards import BlendShards
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, Stage
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import list_duplicate_checks
from dataprep_assets.pipelines.blend.finished_shards import ShardToBuild
from dataprep_assets.pipelines.blend.indexed_bins import INDEXED_BINS_SHARDS
from dataprep_assets.pipelines.blend.losses import find_shard_losses
from dataprep_assets.pipelines.blend.pairs.pairs import PAIRS_SHARDS
from dataprep_assets.pipelines.blend.plan.blend_snapshot import estimate_readings, prepare_fetches
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, load_blend_plan
from dataprep_assets.pipelines.blend.rl.rl_jsonl import RL_JSONL_SHARDS
from dataprep_assets.pipelines.blend.screening.contamination import list_screen_checks
from dataprep_assets.pipelines.blend.screening.row_rules import build_row_preparation
from dataprep_assets.pipelines.blend.screening.rule_checks import list_rule_checks
from dataprep_assets.pipelines.blend.sft.packed_sft import PACKED_SFT_SHARDS
from dataprep_assets.stream.shard_job import KeyedShard, build_whole_shard_jobs
from dataprep_assets.stream.stream_losses import configure_checks
from dataprep_assets.stream.token_stream import Fetch

S = TypeVar("S", bound=KeyedShard)

SHARDS: Mapping[Stage, BlendShards[Any]] = {
    "pretrain": INDEXED_BINS_SHARDS,
    "sft": PACKED_SFT_SHARDS,
    "pairs": PAIRS_SHARDS,
    "rl": RL_JSONL_SHARDS,
}
"""Stage → kind of its shards."""


def prepare_stage_shards(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> Sequence[ShardToBuild]:
    """Return all chosen shards of a plan, ready to build.

    `blend` is the declaration, `store` contains the artifacts, and `plan` is the committed plan. Raises
    MissingArtifactError if a snapshot or the certificate is missing.
    """
    return SHARDS[blend.stage].shards(blend, store, plan, plan.partitions)


def build_blend_shards_spec(
    blend: BlendDeclaration, *, partitions: Partitions, inputs: tuple[ArtifactSpec, ...]
) -> ArtifactSpec:
    """Return the spec of a blend's shards.

    Args:
        blend: The declaration.
        partitions: The partitions of the shards.
        inputs: The specs of the shards' snapshots and, if text is tokenized, of the engine's certificate.
    """
    shard_kind = SHARDS[blend.stage]
    return ArtifactSpec(
        declaration=blend,
        name=shard_kind.name,
        version=shard_kind.version,
        description=shard_kind.description,
        kinds=shard_kind.kinds,
        inputs=inputs,
        partitions=partitions,
        pool="cpu",
        recipes=partial(_build_recipes, blend),
        build=partial(_build_shards, blend),
        reads=partial(estimate_readings, blend, tokenized=True) if blend.stage != "rl" else None,
        metadata=shard_kind.metadata,
        losses=lambda _, receipts: find_shard_losses(blend, receipts),
        rows=shard_kind.rows,
        columns=shard_kind.columns(blend),
        column_descriptions=shard_kind.column_descriptions,
        check_groups=(
            PartitionChecks(
                checks=configure_checks(
                    (
                        *shard_kind.checks,
                        *list_rule_checks(blend),
                        *list_screen_checks(blend),
                        *list_duplicate_checks(blend),
                    ),
                    blend.prove.level,
                    blend.tokenizer,
                ),
                planned=lambda store, names: shard_kind.shards(blend, store, load_blend_plan(blend, store), names),
                open=shard_kind.open,
                workers=lambda *_: choose_check_workers(blend),
                documents=count_documents if blend.stage != "rl" else None,
            ),
        ),
    )


def _select_shards(
    blend: BlendDeclaration, store: ArtifactStore, partitions: Iterable[str | None]
) -> Sequence[ShardToBuild]:
    plan = load_blend_plan(blend, store)
    return SHARDS[blend.stage].shards(blend, store, plan, [partition or "" for partition in partitions])


def _build_recipes(blend: BlendDeclaration, store: ArtifactStore, partitions: Sequence[str | None]) -> Iterator[Recipe]:
    yield from list_known_recipes(blend, store, _select_shards(blend, store, partitions))


def list_known_recipes(
    blend: BlendDeclaration, store: ArtifactStore, shards: Iterable[ShardToBuild]
) -> Iterator[Recipe]:
    """Yield the recipe of each shard, or of each artifact that reads the rows of a shard."""
    has_list = blend.retractions is not None and blend.retractions.exists()
    for shard in shards:
        # With a retraction list, leave the key of a missing shard empty, because the listed rows that the shard reads
        # are known only after its build.
        is_known = not has_list or store.receipt(shard.artifact) is not None
        yield shard.recipe if is_known else replace(shard.recipe, key="")


def _build_shards(blend: BlendDeclaration, request: BuildRequest) -> Iterable[Outcome]:
    plan = load_blend_plan(blend, request.store)
    shard_kind = SHARDS[blend.stage]
    shards = shard_kind.shards(blend, request.store, plan, request.partitions)
    missing_shards = [] if shard_kind.load_tools is None else find_missing_subjects(shards)
    return shard_kind.build(
        shards,
        workers=request.workers,
        engine=blend.engine,
        verification=blend.verify,
        fetches=prepare_fetches(blend, plan, request.partitions),
        progress=request.progress,
        prepare=build_shared_preparation(blend, missing_shards),
    )


def build_shared_preparation(blend: BlendDeclaration, missing_shards: Sequence[object]) -> Callable[[], object] | None:
    """Return a function that loads what workers share: the models of taggers, and the tools of missing shards.

    Return None if there is nothing to load.
    """
    load_taggers, load_tools = build_row_preparation(blend), SHARDS[blend.stage].load_tools
    functions: list[Callable[[], object]] = [] if load_taggers is None else [load_taggers]
    if load_tools is not None and missing_shards:
        functions.append(partial(load_tools, missing_shards[0]))
    return partial(_call_each, functions) if functions else None


def _call_each(functions: Sequence[Callable[[], object]]) -> None:
    for function in functions:
        function()


def build_in_tasks(
    blend: BlendDeclaration,
    request: BuildRequest,
    shards: Sequence[S],
    ensure: Callable[[S, Verification, Fetch | None], tuple[Receipt, bool]],
    prepare: Callable[[], object] | None,
) -> Iterator[Outcome]:
    """Build artifacts that read the sources of a shard, each by one task that calls `ensure`.

    Workers share what `prepare` loads.
    """
    fetches = prepare_fetches(blend, load_blend_plan(blend, request.store), request.partitions)
    jobs = build_whole_shard_jobs(shards, ensure, blend.verify, fetches)
    yield from run_tasks(jobs, workers=request.workers, engine=blend.engine, progress=request.progress, prepare=prepare)


def choose_check_workers(blend: BlendDeclaration) -> CheckWorkers:
    """Return the workers for the checks of shards and tables, which share the models of taggers."""
    return CheckWorkers(engine=blend.engine, declared=blend.workers, prepare=build_row_preparation(blend))
