"""The artifact `<dataset>/indexed_bins`, one partition per shard: Megatron's bin and idx of a pretraining blend.

The shard is the canonical token stream, built as the corpus pipeline builds it (`corpus/token_bins.py`): its
`tokens.bin` is Megatron's `.bin`, and `tokens.idx` is derived from the same document ends. `<directory>/tokens` is the
prefix that Megatron opens.
"""

from collections.abc import Iterable

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.blend_shards import BlendShards
from dataprep_assets.pipelines.blend.blend_snapshot import shard_parts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.indexed_bins_proofs import INDEXED_BINS_PROOFS, prove_indexed_bins
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.blend.stream import blend_stream
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.shard_job import build_token_bins
from dataprep_assets.stream.stream_index import index_metadata
from dataprep_assets.stream.token_shard import VERSION, TokenShard

INDEXED_BINS = "indexed_bins"


def indexed_bins_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[TokenShard]:
    """The shards with these partition keys, ready to build.

    `blend` is the declaration, `store` holds the artifacts, `plan` is the committed plan. Raises MissingArtifactError
    when a snapshot or the certificate is missing.
    """
    certificate = load_certificate(blend, store)
    shards = []
    for partition in partitions:
        unit, planned = plan.find(partition)
        shards.append(
            TokenShard(
                artifact=blend.artifact(INDEXED_BINS, partition),
                store=store,
                plan=blend_stream(blend, certificate, unit.dataset.text_field),
                budget=blend.bad_records.budget,
                files=shard_parts(blend, store, plan, partition),
                # asked for as a sum alone: a range of a cut file has no size of its own
                sizes=(planned.total_bytes,),
                megatron=True,
                salt=blend.force,
            )
        )
    return shards


INDEXED_BINS_SHARDS = BlendShards(
    name=INDEXED_BINS,
    description="Megatron's bin and idx of each shard: tokenized once.",
    kinds={"numpy", "huggingface"},
    shards=indexed_bins_shards,
    build=build_token_bins,
    proofs=INDEXED_BINS_PROOFS,
    prove=lambda _: prove_indexed_bins,
    version=VERSION,
    metadata=index_metadata,
)
