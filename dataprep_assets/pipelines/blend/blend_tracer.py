"""Tracer of a blend, with one kind for each stage.

Entry point: `build_blend_tracer`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dataprep_assets.curation.retractions import read_retracted_ids
from dataprep_assets.curation.selection import Selection
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.trace.trace import Tracer
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.indexed_bins import INDEXED_BINS
from dataprep_assets.pipelines.blend.pairs.pairs_tracer import PairsTracer
from dataprep_assets.pipelines.blend.plan.blend_snapshot import load_shard_parts
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.removal.row_ids import load_blend_ids
from dataprep_assets.pipelines.blend.rl.record_tracer import RecordTracer
from dataprep_assets.pipelines.blend.sft.chat_tracer import ChatTracer
from dataprep_assets.pipelines.blend.shard_tracer import ShardTracer
from dataprep_assets.sources.readers.records import RecordFields
from dataprep_assets.stream.stream_tracer import StreamTracer, list_traced_shards
from dataprep_assets.stream.tokenizer import load_declared_tokenizer

SHARD_TRACERS: Mapping[str, type[ShardTracer[Any, Any]]] = {"sft": ChatTracer, "pairs": PairsTracer, "rl": RecordTracer}
"""Stage → tracer of its shards. The shards of `pretrain`, which is not listed, are streams of tokens."""


def build_blend_tracer(blend: BlendDeclaration, store: ArtifactStore, specs: Sequence[ArtifactSpec]) -> Tracer:
    """Return the tracer of a blend, which treats the blend's datasets as splits.

    Args:
        blend: The declaration.
        store: The store of the blend's artifacts. All shards must already be built.
        specs: The specs of the blend's artifacts.
    """
    plan = load_blend_plan(blend, store)
    if blend.stage in SHARD_TRACERS:
        return SHARD_TRACERS[blend.stage](blend, store, {unit.name: unit.partitions for unit in plan.units})
    splits = {
        unit.name: list_traced_shards(store, [blend.artifact(INDEXED_BINS, key) for key in unit.partitions])
        for unit in plan.units
    }
    bundle = partial(load_declared_tokenizer, blend.required_tokenizer)
    return StreamTracer(
        blend,
        store,
        specs,
        splits,
        bundle=bundle,
        ids=lambda: load_blend_ids(blend),
        refusal=partial(_find_refusal_reason, blend, store),
    )


def _find_refusal_reason(blend: BlendDeclaration, store: ArtifactStore, file: str, row: int) -> str | None:
    """Return the reason why a row of a source file is not a document, in words; None if the reason cannot be found."""
    plan, ids = load_blend_plan(blend, store), load_blend_ids(blend)
    try:
        selection = Selection(
            ids=ids,
            retracted=read_retracted_ids(blend.retractions, ids),
            min_characters=blend.pretrain_options.min_doc_chars,
        )
        for partition in plan.partitions:
            fields = RecordFields(plan.find_shard(partition)[0].dataset.text_field, ids.id_field if ids else None)
            for part in load_shard_parts(blend, store, plan, partition):
                # Skip parts with other row ranges of the file, because only one range contains the row.
                is_inside = part.rows is None or part.rows.select_rows(row, 1) == slice(0, 1)
                if part.label == file and is_inside and (block := part.record_at(row, fields)) is not None:
                    return selection.explain_refusal(block)
    except (DataprepError, OSError):
        return None
    return None
