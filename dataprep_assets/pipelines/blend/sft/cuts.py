"""Counts of what the packing of a blend cut or left out, for the end of a run. Entry point: `cut_lines`."""

from collections import Counter

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.blend.sft.packed_sft import PACKED_SFT
from dataprep_assets.pipelines.blend.sft.shard import PackedSftFacts


def cut_lines(blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan) -> list[str]:
    """A line with the counts of sequences that were cut or left out; none if none was, or for another stage.

    `blend` is the declaration, `store` holds the shards, `plan` is the committed plan.
    """
    if blend.stage != "sft":
        return []
    receipts = store.receipts([blend.artifact(PACKED_SFT, partition) for partition in plan.partitions])
    facts = [PackedSftFacts.of(receipt) for receipt in receipts if receipt is not None]
    options = blend.sft_options
    counts = {
        f"cut to `max_doc_tokens` ({options.max_doc_tokens})": sum(f.truncated for f in facts),
        f"cut to `pack_size` ({options.pack_size})": sum(f.truncated_to_pack_size for f in facts),
    }
    dropped = sum((Counter(f.sequences_dropped) for f in facts), Counter[str]())
    counts |= {f"left out ({reason})": count for reason, count in sorted(dropped.items())}
    told = [f"{count:,} {what}" for what, count in counts.items() if count]
    total = sum(f.sequences for f in facts) + dropped.total()
    return [f"of {total:,} sequences: {', '.join(told)}"] if told else []
