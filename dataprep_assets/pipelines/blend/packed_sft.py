"""From the plan of an SFT blend to the work of its packed shards, which `builds/sft/packed_sft.py` builds."""

from collections.abc import Iterable
from pathlib import Path

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan, PlannedUnit
from dataprep_assets.pipelines.blend.sft.packed_sft import PackPlan, SftWork
from dataprep_assets.pipelines.blend.sft.spool import ChatPlan, ChatSource, chat_plan
from dataprep_assets.pipelines.blend.snapshot import shard_parts
from dataprep_assets.pipelines.blend.stream import load_blend_certificate
from dataprep_assets.pipelines.corpus.engine_certificate import load_bundle
from dataprep_assets.sources.rows import RowRange
from dataprep_assets.tokenization.certificate import Certificate
from dataprep_assets.tokenization.chat.messages import ConversationFields
from dataprep_assets.tokenization.chat.template import ChatTemplate

ARTIFACT = "packed_sft"


def sft_works(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[SftWork]:
    """The work of the given shards; MissingArtifactError when a snapshot or the certificate is not there."""
    certificate, options = load_blend_certificate(blend, store), blend.sft_options
    plans = {unit.name: _chat_plan(blend, certificate, unit) for unit in plan.units}
    works = []
    for partition in partitions:
        unit, shard = plan.find(partition)
        parts = shard_parts(blend, store, plan, partition)
        works.append(
            SftWork(
                artifact=blend.artifact(ARTIFACT, partition),
                store=store,
                sources=tuple(
                    ChatSource(
                        label=part.label,
                        path=part.path,
                        format=part.format,
                        compression=part.compression,
                        sha256=part.sha256,
                        ordinal=part.ordinal,
                        size=shard.total_bytes // len(parts),
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
    return works


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
