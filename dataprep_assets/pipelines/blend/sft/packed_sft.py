"""Builds packed chat data: for each shard one Parquet file of packed rows, where its sequences come from, its receipt.

Source files are spooled in parallel (`spool.py`); a shard is packed (`packing.py`) as soon as its last file is spooled.
The order of the sequences before packing is that of the sources and their rows, so the bytes do not depend on workers.
A killed run keeps the finished spools, and its rerun redoes only the files that were not finished.

Entry points: `sft_shards`, `build_packed_sft`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from dataprep_assets.execution.processes import Finished, Meter, Progress, Task, WorkerPool
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.commit import sweep
from dataprep_assets.integrity.receipt import Verification
from dataprep_assets.pipelines.blend.blend_snapshot import shard_parts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan, PlannedUnit
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource, chat_plan
from dataprep_assets.pipelines.blend.sft.packing import discard_spools, pack_shard
from dataprep_assets.pipelines.blend.sft.shard import PackPlan, SftShard
from dataprep_assets.pipelines.blend.sft.spool import spool_source
from dataprep_assets.pipelines.blend.stream import load_blend_certificate
from dataprep_assets.pipelines.corpus.engine_certificate import load_bundle
from dataprep_assets.pipelines.corpus.token_bins import ONE_THREAD, ShardResult
from dataprep_assets.sources.rows import RowRange
from dataprep_assets.tokenization.certificate import Certificate
from dataprep_assets.tokenization.chat.messages import ConversationFields
from dataprep_assets.tokenization.chat.template import ChatTemplate

__all__ = ["PACKED_SFT", "build_packed_sft", "sft_shards"]

PACKED_SFT = "packed_sft"
_SPOOLED = 1
"""Source files spooled ahead for each worker, beyond the one it is working on."""


def sft_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[SftShard]:
    """The shards with these partition keys, ready to build.

    `blend` is the declaration, `store` holds the artifacts, `plan` is the committed plan. Raises MissingArtifactError
    when a snapshot or the certificate is missing.
    """
    certificate, options = load_blend_certificate(blend, store), blend.sft_options
    plans = {unit.name: _chat_plan(blend, certificate, unit) for unit in plan.units}
    shards = []
    for partition in partitions:
        unit, planned = plan.find(partition)
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
                        size=planned.total_bytes // len(parts),
                        rows=part.rows or RowRange(),
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


def _chat_plan(blend: BlendDeclaration, certificate: Certificate, unit: PlannedUnit) -> ChatPlan:
    options, dataset = blend.sft_options, unit.dataset
    return chat_plan(
        load_bundle(blend.required_tokenizer),
        certificate,
        ChatTemplate.load(options.chat_template, Path()),
        pack_size=options.pack_size,
        fields=ConversationFields(
            messages=dataset.messages_field or options.messages_field,
            tools=dataset.tools_field or options.tools_field,
            used_in=options.used_in_field,
            used_in_filter=options.used_in_filter,
        ),
        template_date=options.template_date,
        stop=options.stop,
        turns=options.turns,
        bad_rows=blend.bad_records.policy,
        max_doc_tokens=options.max_doc_tokens,
        too_long=options.too_long,
        sample_rate=options.sample_rate,
    )


def build_packed_sft(
    shards: Sequence[SftShard],
    *,
    workers: int,
    verification: Verification = "full",
    on_progress: Callable[[Meter, int], None] | None = None,
) -> Iterator[ShardResult]:
    """Build all shards that are not current: yields each as soon as it is verified, built or failed.

    `workers` is the number of worker processes; `verification` says how thoroughly a finished shard is read;
    `on_progress` is called with the meter and the number of workers after every event. A failed shard does not stop the
    others. A worker that dies does (WorkerDiedError), and what is finished is kept.
    """
    meter = Meter(sum(shard.size for shard in shards))
    by_partition = {shard.partition: shard for shard in shards}
    waiting: dict[str, set[int]] = {}
    finals: list[Path] = []
    with WorkerPool(workers, ONE_THREAD) as pool:
        for shard in shards:
            look = Task(f"verify:{shard.partition}:", shard.store.current, (shard.artifact, shard.key, verification))
            pool.submit(look)
        queue: list[Task] = []
        for event in pool.events():
            if isinstance(event, Finished):
                kind, partition, ordinal = event.task.label.split(":", 2)
                shard = by_partition[partition]
                if event.error is not None:
                    doomed = f":{partition}:"
                    queue = [task for task in queue if doomed not in task.label]
                    pool.cancel(lambda label, doomed=doomed: doomed in label)  # type: ignore[misc]
                    if kind == "verify" or waiting.pop(partition, None) is not None:
                        yield ShardResult(partition=partition, error=event.error)
                elif kind == "verify" and event.result is not None:
                    finals.append(shard.store.directory(shard.artifact))
                    discard_spools(shard)
                    meter.add({"source_bytes": shard.size})
                    yield ShardResult(partition=partition, receipt=event.result, reused=True)
                elif kind == "verify":
                    waiting[partition] = {source.ordinal for source in shard.sources}
                    queue += _spool_tasks(shard) or [_pack_task(shard, verification)]
                elif kind == "spool" and partition in waiting:
                    waiting[partition].discard(int(ordinal))
                    if not waiting[partition]:
                        pool.submit(_pack_task(shard, verification), first=True)
                elif kind == "pack":
                    del waiting[partition]
                    yield ShardResult(partition=partition, receipt=event.result)
                while queue and pool.outstanding < (1 + _SPOOLED) * pool.count:
                    pool.submit(queue.pop(0))
            elif isinstance(event, Progress):
                meter.add(event.done)
            if on_progress is not None:
                on_progress(meter, pool.count)
        sweep(finals)


def _spool_tasks(shard: SftShard) -> list[Task]:
    return [
        Task(
            f"spool:{shard.partition}:{source.ordinal}",
            spool_source,
            (shard.plan, source, shard.scratch, shard.artifact),
        )
        for source in shard.sources
    ]


def _pack_task(shard: SftShard, verification: Verification) -> Task:
    return Task(f"pack:{shard.partition}:", pack_shard, (shard, verification))
