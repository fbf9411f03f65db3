"""The artifact `<dataset>/packed_sft`, one partition per shard: conversations as packed rows with a loss mask.

Each shard has one Parquet file of packed rows, the origins of its sequences, and its receipt.
Source files are spooled in parallel (`spool.py`); a shard is packed (`packing.py`) as soon as its last file is spooled.
The order of the sequences before packing is that of the sources and their rows, so the bytes do not depend on workers.
A killed run keeps the finished spools, and its rerun redoes only the files that were not finished.

Entry points: `PACKED_SFT_SHARDS`, `sft_shards`, `build_packed_sft`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from dataprep_assets.engine.artifact.metadata_values import Shown
from dataprep_assets.execution.jobs import Outcome, run_and_sweep, run_tasks
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.formats import packed_rows
from dataprep_assets.integrity.artifacts import ArtifactStore, missing_subjects
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.pipelines.blend.blend_shards import BlendShards
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.blend_snapshot import shard_parts
from dataprep_assets.pipelines.blend.plan.fields import conversation_fields
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource, chat_plan
from dataprep_assets.pipelines.blend.sft.declared_template import declared_template
from dataprep_assets.pipelines.blend.sft.packed_sft_checks import PACKED_SFT_CHECKS, open_shard
from dataprep_assets.pipelines.blend.sft.packing import build_sft_shard, current_sft_shard, discard_spools, pack_shard
from dataprep_assets.pipelines.blend.sft.shard import VERSION, PackedSftFacts, PackPlan, SftShard
from dataprep_assets.pipelines.blend.sft.spool import load_tools, spool_source
from dataprep_assets.sources.readers.row_files import RowRange
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.shard_job import ShardJob, ShardPieces, find_current, whole_shard_jobs
from dataprep_assets.stream.token_stream import Fetch
from dataprep_assets.stream.tokenizer import load_bundle
from dataprep_assets.tokenization.certificate import Certificate
from dataprep_assets.tokenization.chat.capabilities import Capabilities

PACKED_SFT = "packed_sft"


def sft_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[SftShard]:
    """The shards with these partition keys, ready to build.

    `blend` is the declaration, `store` holds the artifacts, `plan` is the committed plan. Raises MissingArtifactError
    when a snapshot or the certificate is missing.
    """
    certificate, options = load_certificate(blend, store), blend.sft_options
    # once a dataset: a plan renders and encodes conversations to try its template
    plans = {unit.name: plan_of(blend, certificate, unit.dataset) for unit in plan.units}
    shards = []
    for partition in partitions:
        unit, planned_shard = plan.find(partition)
        parts = shard_parts(blend, store, plan, partition)
        shards.append(
            SftShard(
                artifact=blend.artifact(PACKED_SFT, partition),
                store=store,
                sources=tuple(
                    ChatSource(
                        label=part.label,
                        path=part.path,
                        format=part.format,
                        compression=part.compression,
                        sha256=part.sha256,
                        ordinal=part.ordinal,
                        # for progress alone: its share, as the plan knows no size of a range
                        size=planned_shard.total_bytes // len(parts),
                        rows=part.rows or RowRange(),
                        digests=part.digests,
                        max_record_bytes=part.max_record_bytes,
                    )
                    for part in parts
                ),
                plan=plans[unit.name],
                packing=PackPlan(
                    algorithm=options.algorithm,
                    seed=options.seed,
                    row_group_bins=options.row_group_size,
                    compression=options.compression,
                ),
                budget=blend.bad_records.budget,
                salt=blend.force,
            )
        )
    return shards


def plan_of(blend: BlendDeclaration, certificate: Certificate, dataset: BlendDataset) -> ChatPlan:
    """Return how the conversations of one of a blend's datasets are encoded; raises as `chat_plan`."""
    options = blend.sft_options
    return chat_plan(
        load_bundle(blend.required_tokenizer),
        certificate,
        declared_template(options, blend.required_tokenizer),
        **options.plan_settings(),
        fields=conversation_fields(options, dataset),
        bad_rows=blend.bad_records.policy,
        level=blend.prove.level,
        max_loss=blend.required_tokenizer.max_loss,
    )


def build_packed_sft(
    shards: Sequence[SftShard],
    *,
    workers: int,
    engine: TaskEngine = ON_PROCESSES,
    verification: Verification = "full",
    fetches: Mapping[str, Fetch] | None = None,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """Build the shards that are not current, on processes of this machine in parallel over files, else over shards.

    Args:
        shards: The shards to build.
        workers: Number of workers.
        engine: Who does the work.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetches: Partition → a function that fetches its sources to a worker on another machine.
        progress: Counts and shows the work; None: nothing is shown.

    Yields each shard's outcome as soon as it is verified, built or failed. A failed shard does not stop the others. A
    shard whose workers keep dying does (WorkerDiedError); finished shards are kept.
    """
    if engine.is_this_machine:
        # the tokenizer is loaded once, by the process that the workers are forks of; not at all if every shard is there
        sft_jobs, missing_shards = (
            [_spooled_and_packed(shard, verification) for shard in shards],
            missing_subjects(shards),
        )
        prepare = partial(load_tools, missing_shards[0].plan) if missing_shards else None
        return run_and_sweep(sft_jobs, workers=workers, progress=progress, prepare=prepare)
    jobs = whole_shard_jobs(shards, build_sft_shard, verification, fetches, found=_find_receipt)
    return run_tasks(jobs, workers=workers, engine=engine, progress=progress)


def _find_receipt(shard: SftShard, verification: Verification) -> Receipt | None:
    if (receipt := find_current(shard, verification)) is not None:
        discard_spools(shard)
    return receipt


def _spooled_and_packed(shard: SftShard, verification: Verification) -> ShardJob:
    pieces = ShardPieces(
        names=("spool", "pack"),
        tasks={
            source.ordinal: (spool_source, (shard.plan, source, shard.scratch, shard.artifact))
            for source in shard.sources
        },
        last=lambda _: (pack_shard, (shard, verification)),
    )
    return ShardJob(shard, (current_sft_shard, (shard, verification)), lambda _: pieces)


def _metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    facts = PackedSftFacts.of(receipt)
    return {
        "sequences": facts.sequences,
        "bins": facts.bins,
        "trained_tokens": facts.trained_tokens,
        "truncated": facts.truncated,
        "truncated_to_pack_size": facts.truncated_to_pack_size,
        "fill": facts.fill,
        "packing_factor": facts.packing_factor,
        "stop_token": facts.stop_token,
    }


def turns_lines(blend: BlendDeclaration, receipts: Iterable[Receipt]) -> list[str]:
    """A line that says which conversations became a sequence for each user turn, and who decided it."""
    modes = sorted({receipt.recipe["settings"]["turns"] for receipt in receipts})
    why = ": as the template needs" if blend.sft_options.turns == "auto" else ""
    return [f"turns: {mode}{why}" for mode in modes]


def template_lines(receipts: Iterable[Receipt]) -> list[str]:
    """Lines on what each chat template writes, and where its marks and its generation prompt differ."""
    lines = []
    for facts in {facts.template_digest: facts for facts in map(PackedSftFacts.of, receipts)}.values():
        lines.append(f"template {facts.template}: {Capabilities.from_table(facts.template_writes).sentence}")
        lines += [f"template {facts.template}: {difference}" for difference in facts.template_differences]
    return lines


PACKED_SFT_SHARDS = BlendShards(
    name=PACKED_SFT,
    description="Packed conversations: input_ids, loss_mask, seq_start_id.",
    kinds={"parquet", "huggingface"},
    shards=sft_shards,
    build=build_packed_sft,
    checks=PACKED_SFT_CHECKS,
    open=open_shard,
    version=VERSION,
    metadata=_metadata,
    rows=lambda receipt: PackedSftFacts.of(receipt).bins,
    columns=lambda _: packed_rows.COLUMN_TYPES,
)
