"""The artifact `<dataset>/pairs`, one partition per shard: preference pairs as messages, ids and masks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.errors import count_of
from dataprep_assets.execution.jobs import Outcome, run_tasks
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.formats.conversations import preference_rows
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.pipelines.blend.blend_shards import BlendShards
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import load_duplicate_rows
from dataprep_assets.pipelines.blend.pairs.pairs_checks import PAIRS_CHECKS, OpenedPairs
from dataprep_assets.pipelines.blend.pairs.shard import VERSION, PairsFacts, PairsShard, build_pairs_shard
from dataprep_assets.pipelines.blend.plan.blend_snapshot import load_shard_parts
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatSource
from dataprep_assets.pipelines.blend.sft.packed_sft import build_chat_plans
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.shard_job import build_whole_shard_jobs
from dataprep_assets.stream.token_stream import Fetch
from dataprep_assets.table import format_share

PAIRS = "pairs"


def prepare_pairs_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[PairsShard]:
    """Return the shards with these partition keys, ready to build.

    `blend` is the declaration, `store` contains the artifacts, and `plan` is the committed plan. Raises
    MissingArtifactError if a snapshot or the certificate is missing.
    """
    certificate, options = load_certificate(blend, store), blend.pairs_options
    plans = build_chat_plans(blend, certificate, plan)
    shards = []
    for partition in partitions:
        unit, planned_shard = plan.find_shard(partition)
        chat_plan = replace(plans[unit.name], duplicates=load_duplicate_rows(blend, store, partition))
        parts = load_shard_parts(blend, store, plan, partition)
        # Divide the shard's size evenly among its files, because the plan does not contain the size of each row range.
        sources = tuple(ChatSource.from_part(part, size=planned_shard.total_bytes // len(parts)) for part in parts)
        shards.append(
            PairsShard(
                artifact=blend.artifact(PAIRS, partition),
                store=store,
                sources=sources,
                plan=chat_plan,
                row_group_size=options.row_group_size,
                compression=options.compression,
                budget=blend.bad_records.budget,
                salt=blend.force,
            ).compare_existing()
        )
    return shards


def build_pairs(
    shards: Sequence[PairsShard],
    *,
    workers: int,
    engine: TaskEngine = ON_PROCESSES,
    verification: Verification = "full",
    fetches: Mapping[str, Fetch] | None = None,
    progress: Progress | None = None,
    prepare: Callable[[], object] | None = None,
) -> Iterator[Outcome]:
    """Build the shards that are out of date, with one task per shard; `build_rl_shards` explains the arguments."""
    jobs = build_whole_shard_jobs(shards, build_pairs_shard, verification, fetches)
    return run_tasks(jobs, workers=workers, engine=engine, progress=progress, prepare=prepare)


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts = PairsFacts.from_receipt(receipt)
    names = (
        "pairs",
        "labeled",
        "prompt_tokens",
        "chosen_tokens",
        "rejected_tokens",
        "chosen_longer",
        "rejected_longer",
    )
    return {name: getattr(facts, name) for name in (*names, "longest")}


def describe_pairs(receipts: Iterable[Receipt]) -> str:
    """Return a line with the numbers of pairs and of tokens, and the share of pairs whose chosen answer is longer."""
    shards = [PairsFacts.from_receipt(receipt) for receipt in receipts]
    rows, labeled, longer = (sum(getattr(s, name) for s in shards) for name in ("pairs", "labeled", "chosen_longer"))
    tokens = {
        part: sum(getattr(shard, f"{part}_tokens") for shard in shards) for part in ("prompt", "chosen", "rejected")
    }
    pairs = rows - labeled
    counts = [count_of(pairs, "pair")] * bool(pairs) + [count_of(labeled, "labeled answer")] * bool(labeled)
    share = f"; the chosen answer is longer in {format_share(longer / pairs)} of the pairs" if pairs else ""
    return (
        f"{', '.join(counts)}: {tokens['prompt']:,} tokens in prompts, {tokens['chosen']:,} in chosen and "
        f"{tokens['rejected']:,} in rejected answers{share}"
    )


PAIRS_SHARDS = BlendShards(
    name=PAIRS,
    description="Preference pairs: prompt, chosen and rejected answer as messages, token ids and masks.",
    kinds={"parquet", "huggingface"},
    shards=prepare_pairs_shards,
    build=build_pairs,
    checks=PAIRS_CHECKS,
    open=OpenedPairs.open,
    version=VERSION,
    metadata=_build_metadata,
    columns=lambda _: preference_rows.COLUMN_TYPES,
    column_descriptions=preference_rows.COLUMN_DESCRIPTIONS,
)
