"""The artifact `<dataset>/packed_sft`, one partition per shard: conversations as packed rows with a loss mask.

Each shard has one Parquet file of packed rows, the origins of its sequences, and its receipt. Source files are spooled
in parallel (`spool.py`), and a shard is packed (`packing.py`) as soon as its last file is spooled. Before packing,
sequences have the order of the sources and their rows, so the bytes do not depend on the number of workers. Finished
spools are kept when a run is killed, so the next run spools only the other files.

Entry points: `PACKED_SFT_SHARDS`, `prepare_sft_shards`, `build_packed_sft`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.execution.jobs import Outcome, run_and_sweep, run_tasks
from dataprep_assets.execution.pool import ON_PROCESSES, TaskEngine
from dataprep_assets.execution.progress import Progress
from dataprep_assets.formats import packed_rows
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.pipelines.blend.blend_shards import BlendShards
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import load_duplicate_rows
from dataprep_assets.pipelines.blend.plan.blend_snapshot import load_shard_parts
from dataprep_assets.pipelines.blend.plan.fields import get_conversation_fields
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan
from dataprep_assets.pipelines.blend.removal.row_ids import load_row_retractions
from dataprep_assets.pipelines.blend.screening.row_rules import load_row_rules
from dataprep_assets.pipelines.blend.screening.row_screen import load_row_screen
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource, chat_plan
from dataprep_assets.pipelines.blend.sft.declared_template import load_declared_template
from dataprep_assets.pipelines.blend.sft.packed_sft_checks import PACKED_SFT_CHECKS, open_shard
from dataprep_assets.pipelines.blend.sft.packing import (
    build_sft_shard,
    discard_spools,
    find_current_sft_shard,
    pack_shard,
)
from dataprep_assets.pipelines.blend.sft.shard import VERSION, ChatFacts, PackedSftFacts, PackPlan, SftShard
from dataprep_assets.pipelines.blend.sft.spool import load_tools, spool_source
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.shard_job import ShardJob, ShardPieces, build_whole_shard_jobs, find_cheap_receipt
from dataprep_assets.stream.token_stream import Fetch
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.table import format_share
from dataprep_assets.tokenization.certificate import Certificate
from dataprep_assets.tokenization.chat.capabilities import Capabilities

PACKED_SFT = "packed_sft"


def prepare_sft_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[SftShard]:
    """Return the shards with these partition keys, ready to build.

    `blend` is the declaration, `store` contains the artifacts, and `plan` is the committed plan. Raises
    MissingArtifactError if a snapshot or the certificate is missing.
    """
    certificate, options = load_certificate(blend, store), blend.sft_options
    plans = build_chat_plans(blend, certificate, plan)
    pad_id = _find_pad_id(blend) if options.pad_to_multiple > 1 else None
    shards = []
    for partition in partitions:
        unit, planned_shard = plan.find_shard(partition)
        chat_plan = replace(plans[unit.name], duplicates=load_duplicate_rows(blend, store, partition))
        parts = load_shard_parts(blend, store, plan, partition)
        shards.append(
            SftShard(
                artifact=blend.artifact(PACKED_SFT, partition),
                store=store,
                sources=tuple(
                    # Divide the shard's size evenly among its files, because the plan does not contain the size of each
                    # row range.
                    ChatSource.from_part(part, size=planned_shard.total_bytes // len(parts))
                    for part in parts
                ),
                plan=chat_plan,
                packing=PackPlan(
                    algorithm=options.algorithm,
                    seed=options.seed,
                    row_group_bins=options.row_group_size,
                    compression=options.compression,
                    pad_to_multiple=options.pad_to_multiple,
                    pad_id=pad_id,
                ),
                budget=blend.bad_records.budget,
                salt=blend.force,
            ).compare_existing()
        )
    return shards


def _find_pad_id(blend: BlendDeclaration) -> int:
    """Return the id of EOS, with which sequences are padded because Megatron-Bridge recognizes padding by it.

    Raises ConfigError if the tokenizer has no EOS.
    """
    bundle = load_declared_tokenizer(blend.required_tokenizer)
    if (eos := bundle.find_configured("eos_token")) is None:
        raise ConfigError(
            f"sft.pad_to_multiple: {bundle.name} has no eos_token, which Megatron-Bridge uses as padding. Add it "
            "to `tokenizer_config.json`, or remove the key"
        )
    return bundle.find_token(eos, key="sft.pad_to_multiple").id


def build_chat_plans(blend: BlendDeclaration, certificate: Certificate, plan: BlendPlan) -> dict[str, ChatPlan]:
    """Return the chat plan of each unit of a plan, by name. Raises the errors of `chat_plan`."""
    # Build one plan for all datasets, because each build is slow: it renders and encodes trial conversations, which
    # depend neither on fields nor on rules.
    common = build_chat_plan(blend, certificate, plan.units[0].dataset)
    return {unit.name: replace(common, **_read_dataset_settings(blend, unit.dataset)) for unit in plan.units}


def _read_dataset_settings(blend: BlendDeclaration, dataset: BlendDataset) -> dict[str, Any]:
    """Return the settings of a chat plan that differ between the datasets of a blend."""
    return {
        "fields": replace(get_conversation_fields(blend.chat_options, dataset), rewriting=blend.rewriting),
        "rules": load_row_rules(blend, dataset.name),
    }


def build_chat_plan(blend: BlendDeclaration, certificate: Certificate, dataset: BlendDataset) -> ChatPlan:
    """Return the chat plan for a dataset of a blend. Raises the errors of `chat_plan`."""
    options = blend.chat_options
    return chat_plan(
        load_declared_tokenizer(blend.required_tokenizer),
        certificate,
        load_declared_template(options, blend.required_tokenizer),
        **options.plan_settings(),
        bad_rows=blend.bad_records.policy,
        level=blend.prove.level,
        max_loss=blend.required_tokenizer.max_loss,
        names_keys=not blend.sensitive,
        retractions=load_row_retractions(blend),
        screen=load_row_screen(blend),
        **_read_dataset_settings(blend, dataset),
    )


def build_packed_sft(
    shards: Sequence[SftShard],
    *,
    workers: int,
    engine: TaskEngine = ON_PROCESSES,
    verification: Verification = "full",
    fetches: Mapping[str, Fetch] | None = None,
    progress: Progress | None = None,
    prepare: Callable[[], object] | None = None,
) -> Iterator[Outcome]:
    """Build the shards that are out of date. Tasks are source files on this machine, and whole shards on a cluster.

    Args:
        shards: The shards to build.
        workers: Number of workers.
        engine: The engine that runs the tasks.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetches: Partition → function that downloads the shard's sources to a worker on a different machine.
        progress: Counts and shows the work; with None, nothing is shown.
        prepare: Loads what workers share, before they are forked.

    Yields each shard's outcome as soon as it is verified, built or failed. A failed shard does not stop the others. A
    shard whose workers keep dying stops the build (WorkerDiedError); finished shards are kept.
    """
    if engine.is_this_machine:
        sft_jobs = [_build_job(shard, verification) for shard in shards]
        return run_and_sweep(sft_jobs, workers=workers, progress=progress, prepare=prepare)
    jobs = build_whole_shard_jobs(shards, build_sft_shard, verification, fetches, find_receipt=_find_receipt)
    return run_tasks(jobs, workers=workers, engine=engine, progress=progress)


def _load_shared_tools(shard: SftShard) -> None:
    load_tools(shard.plan)
    if shard.plan.screen is not None:
        shard.plan.screen.tagger.benchmarks  # noqa: B018


def _find_receipt(shard: SftShard, verification: Verification) -> Receipt | None:
    if (receipt := find_cheap_receipt(shard, verification)) is not None:
        discard_spools(shard)
    return receipt


def _build_job(shard: SftShard, verification: Verification) -> ShardJob:
    pieces = ShardPieces(
        names=("spool", "pack"),
        tasks={
            source.ordinal: (spool_source, (shard.plan, source, shard.scratch, shard.artifact))
            for source in shard.sources
        },
        last=lambda _: (pack_shard, (shard, verification)),
    )
    return ShardJob(shard, (find_current_sft_shard, (shard, verification)), lambda _: pieces)


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    facts = PackedSftFacts.from_receipt(receipt)
    return {
        "sequences": facts.sequences,
        "packed_rows": facts.bins,
        "trained_tokens": facts.trained_tokens,
        "truncated_sequences": facts.truncated,
        "truncated_to_pack_size": facts.truncated_to_pack_size,
        "fill": facts.fill,
        "packing_factor": facts.packing_factor,
        "stop_token": facts.stop_token,
    }


def describe_contents(receipts: Iterable[Receipt]) -> str:
    """Return a line with the numbers of conversations, sequences and tokens, and the share of tokens in the loss."""
    shards = [PackedSftFacts.from_receipt(receipt) for receipt in receipts]
    conversations, sequences = (
        sum(getattr(shard, name) for shard in shards) for name in ("conversations", "sequences")
    )
    tokens, trained_tokens = (sum(getattr(shard, name) for shard in shards) for name in ("tokens", "trained_tokens"))
    share = f" ({format_share(trained_tokens / tokens)})" if tokens else ""
    return (
        f"{count_of(conversations, 'conversation')}, {count_of(sequences, 'sequence')}, {count_of(tokens, 'token')}, "
        f"of which {count_of(trained_tokens, 'is', 'are')} in the loss{share}"
    )


def describe_turns(blend: BlendDeclaration, receipts: Iterable[Receipt]) -> list[str]:
    """Return a line for each mode of turns in the shards, with a note if the mode was chosen automatically."""
    modes = sorted({receipt.recipe["settings"]["turns"] for receipt in receipts})
    reason = " (chosen for the template)" if blend.sft_options.turns == "auto" else ""
    return [f"turns: {mode}{reason}" for mode in modes]


def describe_templates(receipts: Iterable[Receipt]) -> list[str]:
    """Return lines about each chat template: its features, and differences between its marks and generation prompt."""
    lines = []
    for facts in {facts.template_digest: facts for facts in map(ChatFacts.from_receipt, receipts)}.values():
        lines.append(f"template {facts.template}: {Capabilities.from_table(facts.template_writes).sentence}")
        lines += [f"template {facts.template}: {difference}" for difference in facts.template_differences]
    return lines


PACKED_SFT_SHARDS = BlendShards(
    name=PACKED_SFT,
    description="Packed conversations of each shard: `input_ids`, `loss_mask`, `seq_start_id`.",
    kinds={"parquet", "huggingface"},
    shards=prepare_sft_shards,
    build=build_packed_sft,
    checks=PACKED_SFT_CHECKS,
    open=open_shard,
    version=VERSION,
    load_tools=_load_shared_tools,
    metadata=_build_metadata,
    rows=lambda receipt: PackedSftFacts.from_receipt(receipt).bins,
    columns=lambda blend: packed_rows.list_column_types(blend.sft_options.pad_to_multiple > 1),
    column_descriptions=packed_rows.COLUMN_DESCRIPTIONS,
)
