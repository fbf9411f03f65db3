"""Builds Megatron's bin and idx of a pretraining blend, a shard a partition.

The shard is the canonical token stream, built by the corpus pipeline's own machinery (`builds/token_bins.py`): its
`tokens.bin` is Megatron's `.bin`, and `tokens.idx` is derived from the same document ends. `<directory>/tokens` is the
prefix that Megatron opens.
"""

from collections.abc import Iterable

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.blend.snapshot import shard_parts
from dataprep_assets.pipelines.blend.stream import blend_stream, load_blend_certificate
from dataprep_assets.pipelines.corpus.token_bins import ShardWork

ARTIFACT = "indexed_bins"


def indexed_bins_works(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[ShardWork]:
    """The work of the given shards; MissingArtifactError when a snapshot or the certificate is not there."""
    certificate = load_blend_certificate(blend, store)
    works = []
    for partition in partitions:
        unit, shard = plan.find(partition)
        works.append(
            ShardWork(
                artifact=blend.artifact(ARTIFACT, partition),
                store=store,
                plan=blend_stream(blend, certificate, unit.dataset.text_field),
                budget=blend.bad_records.budget,
                files=shard_parts(blend, store, plan, partition),
                sizes=(shard.total_bytes,),
                megatron=True,
                salt=blend.force,
            )
        )
    return works
