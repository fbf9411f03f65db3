"""The artifact `<dataset>/indexed_bins`, one partition per shard: Megatron's bin and idx of a pretraining blend.

The shard is the canonical token stream, built as the corpus pipeline builds it (`corpus/token_bins.py`): its
`tokens.bin` is Megatron's `.bin`, and `tokens.idx` is derived from the same document ends. `<directory>/tokens` is the
prefix that Megatron opens.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dataprep_assets.formats import document_ends, megatron
from dataprep_assets.graph.finding import Finding, files_intact, judged, ledger_of, name_of, verdict
from dataprep_assets.graph.proof_level import samples_of
from dataprep_assets.graph.spec import Proof
from dataprep_assets.graph.verdicts import proven
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_shards import BlendShards
from dataprep_assets.pipelines.blend.blend_snapshot import shard_parts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan import BlendPlan
from dataprep_assets.pipelines.blend.stream import blend_stream
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.losses_proof import LOSSES_PROOF, losses_within_limit
from dataprep_assets.stream.round_trip_proofs import certificate_valid, encode_of, round_trip
from dataprep_assets.stream.separator_proofs import boundaries_match
from dataprep_assets.stream.shard_job import build_token_bins
from dataprep_assets.stream.stream_index import index_metadata
from dataprep_assets.stream.token_bins_proofs import (
    CERTIFICATE_VALID,
    FILES_INTACT,
    IDS_IN_VOCABULARY,
    LEDGER_BALANCES,
    ROUND_TRIP,
    ids_in_vocabulary,
    ledger_balances,
)
from dataprep_assets.stream.token_shard import (
    ENDS,
    MEGATRON_INDEX,
    TOKENS,
    VERSION,
    TokenBinsFacts,
    TokenShard,
)
from dataprep_assets.tokenization.bundle import loaded_once

INDEXED_BINS_PROOFS = (
    FILES_INTACT,
    LEDGER_BALANCES,
    Proof("index_matches_stream", "The idx describes the bin: sizes, pointers, lengths of 1 and more, indices 0 to S."),
    IDS_IN_VOCABULARY,
    Proof(
        "documents_end_right",
        "Every document begins and ends with the configured tokens, none of them doubled.",
    ),
    CERTIFICATE_VALID,
    ROUND_TRIP,
    LOSSES_PROOF,
)

_REBUILD = "Materialize this partition of indexed_bins again"


def prove_indexed_bins(shard: TokenShard) -> dict[str, Finding]:
    """Every proof of one shard; a missing shard fails them all."""

    def prove(directory: Path, receipt: Receipt) -> dict[str, Finding]:
        bundle = loaded_once(shard.plan.tokenizer)
        return {
            "files_intact": files_intact(directory, receipt),
            "ledger_balances": ledger_balances(directory, receipt),
            "index_matches_stream": index_matches_stream(directory, receipt),
            "ids_in_vocabulary": ids_in_vocabulary(directory, receipt, bundle.vocab_size),
            # a shard of another key was made with other settings: these say nothing of its tokens
            "documents_end_right": judged(boundaries_match)(
                directory, receipt, shard.plan if receipt.key == shard.key else None, _REBUILD
            ),
            "certificate_valid": certificate_valid(receipt, bundle, shard.plan.special_tokens),
            "round_trip": round_trip(
                directory,
                receipt,
                {file.label: file for file in shard.files},
                bundle,
                text_field=shard.plan.text_field,
                selection=shard.plan.selection,
                max_tokens=shard.plan.max_tokens,
                samples=samples_of(shard.plan.level),
                encode=encode_of(shard.plan),
            ),
            LOSSES_PROOF.name: losses_within_limit(receipt, shard.plan.max_loss),
        }

    return proven(shard.artifact, shard.store, INDEXED_BINS_PROOFS, prove)


@judged
def index_matches_stream(directory: Path, receipt: Receipt) -> Finding:
    """`tokens.idx` is that of `tokens.bin`, one sequence per document, and of the counts and dtype of the receipt."""
    megatron.validate(directory / TOKENS, directory / MEGATRON_INDEX)
    index, ledger = megatron.read_idx(directory / MEGATRON_INDEX), ledger_of(receipt)
    return verdict(
        _index_defects(directory, receipt, index),
        f"{ledger.documents} sequences of {ledger.tokens} {index.dtype} tokens, as the receipt says.",
        _REBUILD,
        facts={"sequences": len(index.lengths), "tokens": int(index.lengths.sum(dtype=np.int64))},
    )


def _index_defects(directory: Path, receipt: Receipt, index: megatron.MegatronIndex) -> Iterator[str]:
    name, ledger = name_of(receipt), ledger_of(receipt)
    dtype = TokenBinsFacts.of(receipt).dtype
    if index.dtype != dtype:
        yield f"{name}: the idx says {index.dtype}, the receipt {dtype}"
    if len(index.lengths) != ledger.documents:
        yield f"{name}: the idx has {len(index.lengths)} sequences, the ledger {ledger.documents} documents"
    if (tokens := int(index.lengths.sum(dtype=np.int64))) != ledger.tokens:
        yield f"{name}: the idx has {tokens} tokens, the ledger {ledger.tokens}"
    if empty := int(np.count_nonzero(np.asarray(index.lengths) < 1)):
        yield f"{name}: {empty} sequences have no token; Megatron takes no sequence shorter than 1"
    ends = document_ends.open_ends(directory / ENDS)
    # prepended as uint64: with an int NumPy would make both float64, which is not exact beyond 2^53
    if len(ends) != len(index.lengths) or not np.array_equal(np.diff(ends, prepend=np.uint64(0)), index.lengths):
        yield f"{name}: the lengths of the idx are not those of {ENDS}"


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
