"""Artifact `<dataset>/indexed_bins`, one partition per shard: Megatron's `.bin` and `.idx` files of a blend.

A shard is a canonical token stream, built like a corpus pipeline's shard (`corpus/token_bins.py`). Its `tokens.bin`
is Megatron's `.bin` file, and `tokens.idx` is derived from the same document ends. Megatron reads both by the prefix
`<directory>/tokens`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dataprep_assets.curation.selection import is_bad_row
from dataprep_assets.engine.checks.check import (
    FILES_INTACT,
    Check,
    Finding,
    build_verdict,
    describe_artifact,
    require_ledger,
)
from dataprep_assets.errors import count_of
from dataprep_assets.formats import document_ends, megatron
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend_shards import BlendShards
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.blend_snapshot import load_shard_parts
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan
from dataprep_assets.pipelines.blend.stream import build_stream_plan
from dataprep_assets.stream.declaration import find_exceeded_budget
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.separators import boundaries_match
from dataprep_assets.stream.shard_job import build_token_bins
from dataprep_assets.stream.stream_index import describe_index, list_current_retractions
from dataprep_assets.stream.token_bins_checks import (
    CERTIFICATE_VALID,
    IDS_IN_VOCABULARY,
    LEDGER_BALANCES,
    LOSSES,
    NO_RETRACTED_DOCUMENT,
    ROUND_TRIP,
    OpenedTokens,
)
from dataprep_assets.stream.token_shard import (
    ENDS,
    MEGATRON_INDEX,
    TOKENS,
    VERSION,
    TokenBinsFacts,
    TokenShard,
)

_REBUILD = "Rebuild this partition of indexed_bins"


def index_matches_stream(shard: OpenedTokens) -> Finding:
    """Check that `tokens.idx` has one sequence per document of `tokens.bin`, and the receipt's counts and dtype."""
    directory, receipt = shard.directory, shard.receipt
    megatron.validate(directory / TOKENS, directory / MEGATRON_INDEX)
    index, ledger = megatron.read_idx(directory / MEGATRON_INDEX), require_ledger(receipt)
    return build_verdict(
        _find_index_defects(directory, receipt, index),
        f"The index has {count_of(ledger.documents, 'sequence')} with {ledger.tokens:,} {index.dtype} tokens, as in "
        "the receipt.",
        _REBUILD,
        facts={"sequences": len(index.lengths), "tokens": int(index.lengths.sum(dtype=np.int64))},
    )


def _find_index_defects(directory: Path, receipt: Receipt, index: megatron.MegatronIndex) -> Iterator[str]:
    """Yield a sentence for each property of the index that does not match the stream or the receipt."""
    name, ledger = describe_artifact(receipt), require_ledger(receipt)
    dtype = TokenBinsFacts.from_receipt(receipt).dtype
    if index.dtype != dtype:
        yield f"{name}: the .idx file has dtype {index.dtype}, but the receipt has {dtype}"
    if len(index.lengths) != ledger.documents:
        yield (
            f"{name}: the .idx file has {count_of(len(index.lengths), 'sequence')}, but the ledger has "
            f"{count_of(ledger.documents, 'document')}"
        )
    if (tokens := int(index.lengths.sum(dtype=np.int64))) != ledger.tokens:
        yield f"{name}: the .idx file has {count_of(tokens, 'token')}, but the ledger has {ledger.tokens:,}"
    if empty := int(np.count_nonzero(np.asarray(index.lengths) < 1)):
        yield (
            f"{name}: {count_of(empty, 'sequence has', 'sequences have')} no tokens, but Megatron needs at least 1 "
            "token per sequence"
        )
    ends = document_ends.open_ends(directory / ENDS)
    # Prepend 0 as uint64, because NumPy would convert an int and uint64 to float64, which is inexact above 2^53.
    if len(ends) != len(index.lengths) or not np.array_equal(np.diff(ends, prepend=np.uint64(0)), index.lengths):
        yield f"{name}: the lengths in the .idx file differ from {ENDS}"


def document_boundaries_valid(shard: OpenedTokens) -> Finding:
    """Check that every document begins and ends with the configured tokens, each exactly once."""
    return boundaries_match(shard.directory, shard.receipt, shard.recipe, _REBUILD)


INDEXED_BINS_CHECKS: tuple[Check[OpenedTokens], ...] = (
    FILES_INTACT,
    LEDGER_BALANCES,
    Check(
        "index_matches_stream",
        "The `.idx` file matches the `.bin` file: its sizes and pointers are correct, every length is at least 1, and "
        "document indices are consecutive.",
        index_matches_stream,
    ),
    IDS_IN_VOCABULARY,
    Check(
        "document_boundaries_valid",
        "Every document begins and ends with the configured tokens, each exactly once.",
        document_boundaries_valid,
    ),
    CERTIFICATE_VALID,
    ROUND_TRIP,
    LOSSES,
    NO_RETRACTED_DOCUMENT,
)
INDEXED_BINS = "indexed_bins"


def prepare_indexed_bins_shards(
    blend: BlendDeclaration, store: ArtifactStore, plan: BlendPlan, partitions: Iterable[str]
) -> list[TokenShard]:
    """Return the shards with these partition keys, ready to build.

    `blend` is the declaration, `store` contains the artifacts, and `plan` is the committed plan. Raises
    MissingArtifactError if a snapshot or the certificate is missing.
    """
    certificate = load_certificate(blend, store)
    shards = []
    for partition in partitions:
        unit, planned_shard = plan.find_shard(partition)
        artifact = blend.artifact(INDEXED_BINS, partition)
        stream = build_stream_plan(blend, certificate, unit.dataset.text_field)
        shards.append(
            TokenShard(
                artifact=artifact,
                store=store,
                plan=stream,
                retracted=list_current_retractions(store, artifact, stream.retracted_ids),
                budget=blend.bad_records.budget,
                files=load_shard_parts(blend, store, plan, partition),
                # Pass only the total size, because the plan does not contain the size of each row range.
                sizes=(planned_shard.total_bytes,),
                megatron=True,
                salt=blend.force,
                exceeded_budget=find_exceeded_budget(
                    blend.bad_records.policy, blend.bad_records.budget, store, artifact, is_bad_row
                ),
            )
        )
    return shards


INDEXED_BINS_SHARDS = BlendShards(
    name=INDEXED_BINS,
    description="`.bin` and `.idx` files of each shard, for Megatron.",
    kinds={"numpy", "huggingface"},
    shards=prepare_indexed_bins_shards,
    build=build_token_bins,
    checks=INDEXED_BINS_CHECKS,
    open=OpenedTokens.open,
    version=VERSION,
    metadata=describe_index,
)
